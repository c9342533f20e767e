"""Rubrics say what earns points; verdicts say what a submission earned."""
