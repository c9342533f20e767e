"""Hidden function checks: what an exercise's function does with inputs that nobody has seen before.

A check has two halves. The *observer*, sent as text, runs beside the student's code: it turns plain data into a model, an
optimiser, a batch, calls the student's function, and returns what came of it as plain data. It knows no answer. The
*check* stays in the grader: it draws the inputs from the grading's own random numbers, computes the reference, and
compares. Both halves are an exercise's description (`course_lib.exercises`); `described` makes a check of it.
"""
