"""The commands `lab grade`, `lab report` and `lab export`, and the hooks that nbgrader calls."""
