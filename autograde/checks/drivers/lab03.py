# Drivers of lab 03.
def batch_and_steps(student, given, outside):
    return [student("batch_and_steps")(*arguments) for arguments in given]


def scaled_lr(student, given, outside):
    return [student("scaled_lr")(*arguments) for arguments in given]


def noise_or_not(student, given, outside):
    return {
        "summaries": [student("summarise")(list(values)) for values in given["values"]],
        "verdicts": [student("is_noise")(list(first), list(second)) for first, second in given["pairs"]],
    }


def noise_scale(student, given, outside):
    return [student("noise_scale")(small, big, list(norms), list(more)) for small, big, norms, more in given]


def prediction(student, given, outside):
    return {
        "steps": [student("predicted_steps")(*arguments) for arguments in given["steps"]],
        "batches": [student("useful_batch")(*arguments) for arguments in given["batches"]],
    }
