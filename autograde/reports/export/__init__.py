"""A lab's scores in the formats of nbgrader, Canvas and Moodle, and to an LMS by LTI; one module for each."""
