"""A lab's scores in the formats of nbgrader, Canvas and Moodle, one module for each format."""
