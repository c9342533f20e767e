# Drivers of lab 06.
def send_receive(student, given, outside):
    if given is None:
        return None
    joined(given, outside)
    try:
        outgoing, incoming = given["tensor"].clone(), torch.zeros_like(given["tensor"])
        student("send_receive")(outgoing, given["to"], incoming, given["source"])
        return {"incoming": incoming, "outgoing": outgoing}
    finally:
        left()


def exchanged(outgoing, to, incoming, source):
    """A stand-in for the first exercise: what is wrong there costs nothing in the ring."""
    operations = [dist.P2POp(dist.isend, outgoing, to), dist.P2POp(dist.irecv, incoming, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def in_place(student, name, given, outside, *arguments):
    if given is None:
        return None
    joined(given, outside)
    try:
        tensor = given["tensor"].clone()
        returned = student(name)(tensor, *arguments)
        return {"tensor": tensor, "returned": returned}
    finally:
        left()


def tree_broadcast(student, given, outside):
    return in_place(student, "tree_broadcast", given, outside, *([] if given is None else [given["src"]]))


def ring_all_reduce(student, given, outside):
    student.namespace["send_receive"] = exchanged
    return in_place(student, "ring_all_reduce", given, outside)


def fit(student, given, outside):
    return [student("fit_alpha_beta")(list(sizes), list(seconds)) for sizes, seconds in given]


def predict(student, given, outside):
    return [student("all_reduce_seconds")(*question) for question in given]


def bandwidth(student, given, outside):
    return [student("bus_bandwidth")(*question) for question in given]
