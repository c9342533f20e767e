"""The learning management system (LMS): its services of LTI 1.3, and its students in the gradebook."""
