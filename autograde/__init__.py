"""Grades a class's submissions of the labs from the evidence of their runs, inside nbgrader's workflow.

A submission is hostile until shown otherwise: it is read as data, within bounds, and nothing in it is executed.
"""

from course_lib.system.nbformat_import import leave_addresses_out

leave_addresses_out()  # the command and the server of its workers start a second sooner
