"""Lab 00: other right answers, and what each known mistake loses."""

# Of the mistakes in `course_lib.exercises.answers.lab00`: parts that are lost → their names.
LOSES = {"schedule": {"between ends": "rises"}}

_RATE = "def learning_rate(step, steps, base_lr):\n    return "

RIGHT = {"schedule": [_RATE + "base_lr * (steps - step) / steps"]}

# Mistakes without a name of their own: exercise, answer, parts that are lost, words of the reason.
WRONG = {
    "constant": ("schedule", _RATE + "base_lr", "between ends", "by the same amount"),
    "one step early": ("schedule", _RATE + "base_lr * (1 - (step + 1) / steps)", "between ends", "by the same amount"),
    "along a cosine": (
        "schedule",
        _RATE + "base_lr * (1 + __import__('math').cos(__import__('math').pi * step / steps)) / 2",
        "between",
        "by the same amount",
    ),
}

# Where a mistake is not named by its diagnosis: words of the reason.
SAYS = {}
