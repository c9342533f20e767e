"""Grades a class's submissions of the labs from the evidence of their runs, inside nbgrader's workflow.

A submission is hostile until shown otherwise: it is read as data, within bounds, and nothing in it is executed.
"""
