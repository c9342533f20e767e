"""What people and nbgrader call: `lab grade`, `lab report`, `lab export`, and nbgrader's hooks."""
