"""The commands `lab grade`, `lab report`, `lab export` and `lab new`, and the hooks that nbgrader calls."""
