"""The only writer to nbgrader's gradebook and to its folder of autograded notebooks."""
