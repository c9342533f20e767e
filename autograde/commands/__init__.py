"""The commands `lab grade`, `lab report`, `lab export`, `lab extend` and `lab new`, and the hooks that nbgrader calls."""
