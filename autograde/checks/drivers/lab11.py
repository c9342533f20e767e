# Drivers of lab 11: every answer is a number, or a few.


def throughput(student, given, outside):
    return [student("steady_throughput")(images, [list(one) for one in seconds]) for images, seconds in given]


def scaling(student, given, outside):
    found = []
    for sequential, times, kind in given:
        table = student("scaling")(sequential, {int(ranks): seconds for ranks, seconds in times}, kind)
        found.append([[key, value] for key, value in list(table.items())[:50]] if isinstance(table, dict) else None)
    return found


def laws(student, given, outside):
    return [student(given["law"])(ranks, serial) for ranks, serial in given["points"]]


def shares(student, given, outside):
    return [student("serial_share")({int(ranks): gain for ranks, gain in speedups}) for speedups in given]


def sent(student, given, outside):
    return [student("busiest_sends")(*question) for question in given]


def fit(student, given, outside):
    found = []
    for rows in given:
        four = student("fit_step")([tuple(row) for row in rows])
        found.append(four.tolist() if hasattr(four, "tolist") else four)
    return found


def worth(student, given, outside):
    return [student("ranks_worth")(tuple(four), *more) for four, *more in given]
