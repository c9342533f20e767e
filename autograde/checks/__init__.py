"""Hidden function checks: what an exercise's function does with inputs that nobody has seen before.

A check has two halves. A *driver* (`drivers/labNN.py`, sent as text) runs beside the student's code: it turns plain data
into a model, an optimiser, a batch, calls the student's function, and returns what came of it as plain data. It knows
no answer. The *check* (`labNN.py`) stays in the grader: it draws the inputs from the grading's own random numbers,
computes the reference, and compares. What a driver times or counts, it counts outside, by asking (`Ask.call`'s
`answers`).
"""
