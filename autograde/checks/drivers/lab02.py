# Drivers of lab 02.
import argparse


def arguments(student, given, outside):
    found = []
    for argv in given:
        try:
            parsed = student("parse_arguments")(list(argv))
            found.append(vars(parsed) if isinstance(parsed, argparse.Namespace) else parsed)
        except SystemExit:
            found.append("refused")
    return found


def world_size(student, given, outside):
    return [student("world_size")(argparse.Namespace(**job)) for job in given]


def global_rank(student, given, outside):
    return [student("global_rank")(argparse.Namespace(**job), local_rank) for job, local_rank in given]


def prepare_once(student, given, outside):
    return student("prepare_once")(lambda: outside("prepare"), dist.get_rank())


def samplers(student, given, outside):
    found = []
    for rank in range(given["world_size"]):
        sets = [torch.utils.data.TensorDataset(values) for values in (given["train"], given["test"])]
        loaders = student("make_loaders")(*sets, given["batch_size"], rank, given["world_size"], given["seed"])
        if not isinstance(loaders, tuple | list) or len(loaders) != 2:
            return {"returned": loaders}
        train, test = loaders
        epochs = []
        for epoch in given["epochs"]:
            if hasattr(getattr(train, "sampler", None), "set_epoch"):
                train.sampler.set_epoch(epoch)
            epochs.append(batches(train))
        found.append({"epochs": epochs, "test": batches(test)})
    return {"ranks": found}


def batches(loader):
    return [batch[0] for _, batch in zip(range(1000), loader, strict=False)]


def wrap(student, given, outside):
    wrapped = student("wrap")(make_model(given["spec"], given["state"]), torch.device("cpu"), given["sync"])
    bare = getattr(wrapped, "module", wrapped)
    weights = tensors(bare)
    logits = wrapped(given["images"])
    nn.functional.cross_entropy(logits, given["labels"]).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bare.parameters()]
    return {"weights": weights, "logits": logits.detach(), "gradients": gradients}


def throughput(student, given, outside):
    return student("reduce_throughput")(given["images"], given["seconds"], torch.device("cpu"))


def metrics(student, given, outside):
    return student("reduce_metrics")(given["loss_sum"], given["correct"], given["images"], torch.device("cpu"))


def early_stop(student, given, outside):
    return [bool(student("should_stop")(list(accuracies), target, patience)) for accuracies, target, patience in given]
