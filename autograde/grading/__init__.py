"""One submission, graded: exercises, run folder and weights give one verdict."""
