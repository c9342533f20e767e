# Drivers of lab 01.
def train_step(student, given, outside):
    model = make_model(given["spec"], given["state"])
    optimizer = torch.optim.SGD(model.parameters(), **given["sgd"])
    loss_fn = nn.CrossEntropyLoss(label_smoothing=given["smoothing"])
    steps = []
    for images, labels in given["batches"]:
        returned = student("train_step")(model, images, labels, optimizer, loss_fn)
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        steps.append({"returned": returned, "state": tensors(model), "gradients": gradients})
    return steps


def evaluate(student, given, outside):
    model = make_model(given["spec"], given["state"]).train()
    batches = [(images, labels) for images, labels in given["batches"]]
    returned = student("evaluate")(model, batches, nn.CrossEntropyLoss())
    return {"returned": returned, "state": tensors(model)}


def throughput(student, given, outside):
    return student("images_per_second")(
        lambda: outside("step"), given["batch_size"], given["steps"], given["warmup"], lambda: outside("synchronize")
    )


def speedup(student, given, outside):
    return [student("speedup_and_efficiency")(dict(times), ranks) for times, ranks in given]
