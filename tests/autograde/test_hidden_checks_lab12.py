"""Lab 12's hidden checks against right answers in several styles and the mistakes that students make."""

import pytest
from graded_lab import GradedLab, cases, loses, with_seconds

LAB = "12_assessment"
EXERCISES = ["batches", "wrap", "optimizer", "schedule", "metrics", "early-stop", "report", "worker", "script"]


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2, 3):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points, judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


@pytest.mark.parametrize("exercise", EXERCISES)
def test_blank_loses_all_and_says_so(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0
    assert all("not answered" in reason for reason in judged.reasons.values()), judged.reasons
    assert judged.flags == ["missing"]


RIGHT = {
    "a batch object of one's own": (
        "batches",
        """
class Dealt:
    def __init__(self, split, size, mean, std, rank, ranks, seed, augment):
        self.split, self.size, self.rank, self.ranks, self.seed, self.augment, self.epoch = split, size, rank, ranks, seed, augment, 0
        self.mean, self.std = (torch.tensor(x).view(1, -1, 1, 1) for x in (mean, std))
        self.share = len(split) // ranks
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __iter__(self):
        n = len(self.split)
        order = torch.arange(n)[self.rank :: self.ranks]
        if self.seed is not None:
            order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed * 97 + self.epoch))
            order = order[self.rank * self.share : (self.rank + 1) * self.share][: self.share // self.size * self.size]
        generator = torch.Generator().manual_seed(1000 * self.epoch + self.rank)
        for part in order.split(self.size):
            images = self.split.images[part].float() / 255
            yield ((self.augment(images, generator) if self.augment else images) - self.mean) / self.std, self.split.labels[part]

def make_batches(data, batch_size, device, rank, world_size, seed, augmentation):
    common = data.mean, data.std, rank, world_size
    return [Dealt(data.train, batch_size, *common, seed, AUGMENTATIONS[augmentation]), Dealt(data.test, 500, *common, None, None)]
""",
    ),
    "a group for each parameter": (
        "optimizer",
        """
def make_optimizer(name, model, lr, momentum, weight_decay):
    groups = [{"params": p, "weight_decay": weight_decay if p.dim() >= 2 else 0} for p in reversed(list(model.parameters()))]
    makers = {
        "sgd": lambda: torch.optim.SGD(groups, lr, momentum, nesterov=bool(momentum), foreach=False),
        "novograd": lambda: NovoGrad(groups, lr, (momentum, 0.98), grad_averaging=True, foreach=False),
    }
    if name not in makers:
        raise ValueError(name)
    return makers[name]()
""",
    ),
    "the library's schedule": (
        "schedule",
        """
from torch.optim.lr_scheduler import LinearLR, SequentialLR

def make_schedule(optimizer, total_steps, warmup_steps):
    fall = LinearLR(optimizer, 1.0, 0.0, total_steps - warmup_steps)
    if not warmup_steps:
        return fall
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, 1.0, warmup_steps), fall], [warmup_steps])
""",
    ),
    "objects": (
        "metrics",
        """
import numpy as np

def reduce_epoch(trained, validated, seconds, device):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, (*trained, *validated, seconds))
    a, b, n, c, d, m = np.sum(rows, axis=0)[:6].tolist()
    slowest = max(row[6] for row in rows)
    return [n / slowest, slowest, a / n, b / n, c / m, d / m]
""",
    ),
    "f-strings": (
        "report",
        """
def report(epoch, total_time, epoch_time, images_per_sec, train_accuracy, val_loss, val_accuracy, stopped):
    if dist.get_rank():
        return
    assessment_print(f"Epoch = {epoch:2d}: Cumulative Time = {total_time:5.3f}, Epoch Time = {epoch_time:5.3f}, Images/sec = {images_per_sec}, "
                     f"Training Accuracy = {train_accuracy:5.3f}, Validation Loss = {val_loss:5.3f}, Validation Accuracy = {val_accuracy:5.3f}")
    if stopped:
        assessment_print("Early stopping after epoch", epoch)
""",
    ),
}


@pytest.mark.parametrize("style", RIGHT)
def test_right_in_another_style(lab, style):
    exercise, answer = RIGHT[style]
    judged = lab.judge(exercise, answer, seed=5)
    assert judged.points == judged.max_points, judged.reasons


AUGMENT = ", augment=AUGMENTATIONS[augmentation]"
ALIKE = """
class Alike:
    def __call__(self, images, generator):
        top, left = torch.randint(9, (2,), generator=generator).tolist()
        return nn.functional.pad(images, (4,) * 4)[:, :, top : top + images.shape[2], left : left + images.shape[3]]

AUGMENTATIONS = {"crop": Alike(), "none": None}
"""
WRONG = {
    "ranks alike": ("batches", "rank=rank, world_size=world_size", "rank=0, world_size=1", "shares test", "train on the same images"),
    "seed of each rank": ("batches", "seed=seed", "seed=seed + rank", "shares", "train on the same images"),
    "seed forgotten": ("batches", ", seed=seed", "", "shares", "another seed"),
    "size for all ranks": ("batches", "Batches(data.train, batch_size, device", "Batches(data.train, batch_size + 1, device", "shares", "size asked for"),
    "not normalised": ("batches", "std=data.std", "std=(1.0, 1.0, 1.0)", "shares augmentation test", "stored, normalised"),
    "never augmented": ("batches", AUGMENT, "", "augmentation", "come as stored"),
    "always augmented": ("batches", "AUGMENTATIONS[augmentation]", 'AUGMENTATIONS["crop"]', "shares", "without augmentation"),
    "other augmentation": ("batches", "AUGMENTATIONS[augmentation]", "augmentation != 'none' and AUGMENTATIONS['affine'] or None",
                           "augmentation", "no crop of the padded one"),
    "drawn once a batch": ("batches", "def make_batches", ALIKE + "\n\ndef make_batches", "augmentation", "a batch are cropped alike"),
    "test on every rank": ("batches", "500, device, **shares", "500, device, mean=data.mean, std=data.std", "test", "ranks test the same"),
    "one loader": ("batches", "return train_batches, Batches", "return Batches", "shares augmentation test", "a pair"),
    "never converted": ("wrap", "if sync_batchnorm:", "if False:", "sync", "when it was asked for"),
    "not wrapped": ("wrap", "return nn.parallel.DistributedDataParallel(model, device_ids=device_ids)", "return model",
                    "weights gradients", "rank 0's weights"),
    "no nesterov": ("optimizer", ", nesterov=momentum > 0", "", "sgd", "SGD's steps"),
    "nesterov always": ("optimizer", "nesterov=momentum > 0", "nesterov=True", "sgd", "ValueError"),
    "default betas": ("optimizer", "betas=(momentum, 0.98), ", "", "novograd", "NovoGrad's steps"),
    "no averaging": ("optimizer", ", grad_averaging=True", "", "novograd", "NovoGrad's steps"),
    "decay on all": ("optimizer", '"weight_decay": 0.0', '"weight_decay": weight_decay', "decay", "norms too"),
    "no decay": ("optimizer", '"weight_decay": weight_decay}', '"weight_decay": 0.0}', "decay", "with weight decay"),
    "any name": ("optimizer", 'raise ValueError(f"optimizer {name!r}: sgd or novograd")', "return torch.optim.Adam(groups)", "names",
                 "does not raise ValueError"),
    "warm-up from 0": ("schedule", "0.1 + 0.9 * step", "1.0 * step", "warmup edges", "warm-up are wrong"),
    "one step ahead": ("schedule", "def factor(step):", "def factor(step):\n        step += 1", "warmup decay edges", "warm-up are wrong"),
    "no fall": ("schedule", "return max(0.0, (total_steps - step) / (total_steps - warmup_steps))", "return 1.0", "decay edges", "after the warm-up"),
    "negative beyond": ("schedule", "max(0.0, (total_steps - step) / (total_steps - warmup_steps))",
                        "(total_steps - step) / (total_steps - warmup_steps)", "edges", "beyond the last step"),
    "not reduced": ("metrics", "dist.all_reduce(sums)", "pass", "throughput training validation everywhere", "a rank's own"),
    "own seconds": ("metrics", "dist.all_reduce(slowest, op=dist.ReduceOp.MAX)", "pass", "throughput everywhere", "a rank's own"),
    "own training accuracy": ("metrics", "correct / images,", "trained[1] / trained[2],", "training everywhere", "a rank's own"),
    "mean of accuracies": ("metrics", "sums = torch.tensor([*trained, *validated]",
                           "sums = torch.tensor([*trained, *(x / validated[2] for x in validated)]", "validation", "means, or sums"),
    "on rank 0 alone": ("metrics", "dist.all_reduce(sums)", "dist.reduce(sums, 0)", "everywhere", "not every rank"),
    "five numbers": ("metrics", "images / epoch_time, epoch_time,", "epoch_time,", "throughput training validation everywhere", "six numbers"),
    "equal does not count": ("early-stop", "accuracy >= target", "accuracy > target", "edges", "equals the target"),
    "any of the last": ("early-stop", "all(", "any(", "rule", "stops where it should not"),
    "every rank reports": ("report", "dist.get_rank() == 0", "True", "alone", "other ranks report too"),
    "printed": ("report", "assessment_print(", "print(", "alone format stop", "reports nothing"),
    "no stop line": ("report", "if stopped", "if False", "stop", "second line"),
    "rounded": ("report", "EPOCH_LINE.format(epoch, total_time,", "EPOCH_LINE.format(epoch, round(total_time),", "format", "the multi-GPU tutorial's"),
    "no set_epoch": ("worker", "train_batches.set_epoch(epoch)", "pass", "order", "same order"),
    "never moved": (
        "worker", "        start = time.perf_counter()\n", "        start = time.perf_counter()\n        optimizer.step = lambda *given: None\n",
        "training", "have not moved as",
    ),
    "twice the gradient": (
        "worker", "optimizer, train_loss_fn, scheduler", "optimizer, lambda *given: 2 * train_loss_fn(*given), scheduler", "training", "have not moved as",
    ),
    "bare model trained": ("worker", "train_epoch(model,", "train_epoch(model.module,", "training", "weights differ"),
    "no schedule": ("worker", ", scheduler=schedule", "", "training", "the schedule's"),
    "own accuracy": ("worker", "accuracies.append(val_accuracy)", "accuracies.append(validated[1] / validated[2])", "accuracy", "disagree"),
    "training accuracy": ("worker", "append(val_accuracy)", "append(train_accuracy)", "accuracy", "not that of the trained weights"),
    "never stopped": ("worker", "stopped = should_stop(accuracies, args.target_accuracy, args.patience)", "pass", "stop", "did not end"),
    "stop not told": ("worker", "val_accuracy, stopped)", "val_accuracy, False)", "stop", "not told of the stop"),
    "epoch from 0": ("worker", "report(epoch + 1", "report(epoch", "report", "counted from 1"),
    "time not summed": ("worker", "total_time += epoch_time", "total_time = epoch_time", "report", "not the sum"),
    "clock over validation": ("worker", "seconds = time.perf_counter() - start", "pass", "validated = evaluate(model.module, test_batches, loss_fn)",
                              "validated = evaluate(model.module, test_batches, loss_fn)\n        seconds = 0.01 * (time.perf_counter() - start)",
                              "report", "not what training took"),
    "own training accuracy told": ("worker", "rate, train_accuracy, val_loss", "rate, trained[1] / trained[2] + 1e-4, val_loss", "report", "not a share"),
    "no group": ("script", 'dist.init_process_group("nccl" if own_gpu else "gloo")\n    run = open_run(args)\n', "run = None\n",
                 "    leave_process_group()\n", "", "worker run leaves", "before there was a process group"),
    "nccl wherever there is a GPU": ("script", '"nccl" if own_gpu', '"nccl" if torch.cuda.is_available()', "worker", "share a GPU"),
    "no set_device": ("script", "torch.cuda.set_device(local_rank)", "pass", "worker", "while GPU 0 was its current device"),
    "group stays": ("script", "    leave_process_group()\n", "", "leaves", "still there"),
    "no run": ("script", "worker(args, run)", "worker(args)", "run", "was not given what open_run returned"),
    "not finished": ("script", 'run.finish(result["stopped"])', "pass", "run", "does not end its run"),
    "finished always": ("script", 'result["stopped"]', "not result['stopped']", "run", "does not end its run"),
    "other arguments": ("script", "worker(args, run)", "worker(None, run)", "worker", "parse_arguments"),
    "no text": ("script", "script = ", "script = 1; text = ", "worker run leaves", "the script's text"),
}  # fmt: skip


# Of those with ranks the first of each exercise, too.
@pytest.mark.parametrize("mistake", cases(WRONG, " ".join(EXERCISES)))
def test_mistake_loses_its_part(lab, mistake):
    exercise, *edits, lost, reason = WRONG[mistake]
    loses(lab, exercise, lab.edited(exercise, *edits), lost, reason)


def test_a_reduction_on_one_rank_ends_and_is_told(lab, monkeypatch):
    with_seconds(monkeypatch, 3)
    judged = lab.judge(
        "metrics", lab.edited("metrics", "dist.all_reduce(sums)", "if dist.get_rank() == 0: dist.all_reduce(sums)")
    )
    assert judged.points == 0 and judged.flags == ["limit"]
    assert all(text.startswith("timed out after 3 s") for text in judged.reasons.values())
