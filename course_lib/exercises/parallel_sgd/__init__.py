"""Lab 08's exercises whose ranks send messages, or whose steps and clocks the grader counts."""
