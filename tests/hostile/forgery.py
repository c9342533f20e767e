"""Points that were not earned: rewritten checks, objects that equal everything, forged files and messages."""

from __future__ import annotations

import csv
import io
import json

import torch
from exhibits import NONE_OF_THEM, Submission, World, exhibit, hostile_code
from safetensors.torch import load_file, save_file

# fmt: off

# --- rewriting what judges --------------------------------------------------------------------------------------------

WRONG_STEP = """
def train_step(model, images, labels, optimizer, loss_fn):
    return 0, 0
"""


@exhibit(train_step=0, memory=2, reason="weights are where they were")
def transformers_drop_assertions(submission: Submission, world: World) -> None:
    """IPython transformers that take every assertion and every check out of what is executed after them.

    They take the calls of `checkpoint` too, which are an answer's.
    """
    submission.answer(
        "train-step",
        """
        import ast

        class Drop(ast.NodeTransformer):
            def visit_Assert(self, node):
                return ast.Pass()

            def visit_Call(self, node):
                return ast.Constant(True) if "check" in ast.dump(node.func) else node

        get_ipython().ast_transformers.append(Drop())
        get_ipython().input_transformers_cleanup.append(lambda lines: [x for x in lines if "check(" not in x])
        """
        + WRONG_STEP.replace("\n", "\n        "),
    )


@exhibit(train_step=0, evaluate=0, training=0, reason="weights are where they were")
def patched_comparisons(submission: Submission, world: World) -> None:
    """torch.allclose, torch.equal, math.isclose and the course's own check always say yes.

    So do comparisons of tensors, with which `train` counts what is right.
    """
    submission.answer(
        "train-step",
        """
        import math
        import course_lib.checks

        for name in ("allclose", "equal", "isclose"):
            setattr(torch, name, lambda *a, **k: True)
        torch.testing.assert_close = lambda *a, **k: None
        torch.Tensor.allclose = torch.Tensor.equal = torch.Tensor.__eq__ = lambda *a, **k: True
        torch.Tensor.__hash__ = object.__hash__
        math.isclose = lambda *a, **k: True
        course_lib.checks.check = check = lambda *a, **k: True

        def train_step(*anything):
            return 0, 0
        """,
    )
    submission.answer("evaluate", "def evaluate(*anything):\n    return 0, 0, 0")

hostile_code("patched_driver",
    "The runner's own methods answer full marks in whatever form they can think of, whatever they are asked.",
    **NONE_OF_THEM, reason="should return", runner=True, source="""
def do_call(self, module, function, given):
    self.send({"value": True, "passed": True, "points": 5, "score": 5, "error": None})

type(find_the_runner()).do_call = do_call
get_ipython().kernel = type("Kernel", (), {"do_execute": lambda *a, **k: {"status": "ok"}})()
""")


@exhibit(**NONE_OF_THEM, reason=".")
def equal_to_everything(submission: Submission, world: World) -> None:
    """Subclasses of float, int, tuple, list and Tensor that compare equal to anything, under any operation."""
    submission.answer(
        "train-step",
        """
        def always(self, *others, **named):
            return True

        class Agreeable:
            __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = always
            __hash__ = lambda self: 0
            __bool__ = lambda self: True

        class Number(Agreeable, float):
            pass

        class Pair(Agreeable, tuple):
            pass

        class Tensor(torch.Tensor):
            __eq__ = __lt__ = __le__ = __gt__ = __ge__ = allclose = equal = always
            __hash__ = object.__hash__

        def train_step(model, images, labels, optimizer, loss_fn):
            return Pair((Number(0), torch.zeros(8, 5).as_subclass(Tensor)))

        def anything(*arguments):
            return Pair((Number(1), Number(1), Number(1)))
        """,
    )
    for exercise, name in (("evaluate", "evaluate"), ("throughput", "images_per_second")):
        submission.answer(exercise, f"{name} = anything")
    submission.answer("memory", "saved_bytes = forward_checkpointed = lambda *given: Number(1)")
    for exercise, name in (("loaders", "make_loaders"), ("training", "train"), ("accumulate", "accumulated_step")):
        submission.answer(exercise, f"{name} = anything")

hostile_code("patched_clock", "The clock runs a thousand times too slowly, and the steps are not run at all.",
    throughput=0, reason="the steps are not those asked for|less often", answers="throughput", source="""
        ticks = iter(range(10**9))
        time.perf_counter = time.monotonic = time.time = lambda: next(ticks) * 1e-6

        def images_per_second(step, batch_size, steps, warmup, synchronize):
            start = time.perf_counter()
            return batch_size * steps / (time.perf_counter() - start)
        """)

hostile_code("fast_clock",
    "All steps are run, which earns what running them earns, and the rate comes from a clock that was slowed down.",
    throughput=3, reason="the rate is (higher|lower)", before="throughput",
    source="true = time.perf_counter\ntime.perf_counter = lambda: true() / 10")

hostile_code("guessed_rate",
    "Runs and waits as asked, guesses a rate from the batch size, and puts off the return so that any may be right.",
    throughput=3, reason="the rate is (higher|lower)", answers="throughput", source="""
        def images_per_second(step, batch_size, steps, warmup, synchronize):
            for number in (warmup, steps):
                for _ in range(number):
                    step()
                synchronize()
            time.sleep(0.4)
            return batch_size * 45.0
        """)

hostile_code("memorised_public_tests",
    "Answers with what the course's public checks want, recorded from them: the hidden inputs are others.",
    train_step=0, reason="weights are where they were", answers="train-step", source="""
        SEEN = {(4, 3): 1.0986}

        def train_step(model, images, labels, optimizer, loss_fn):
            return torch.tensor(SEEN.get(tuple(images.shape[:2]), 2.3026)), torch.zeros(len(images), 10)
        """)


@exhibit(evaluate=6, reason="a graph is recorded")
def denies_its_graph(submission: Submission, world: World) -> None:
    """Evaluates with a graph, and has PyTorch say that none is recorded."""
    cell = submission.cell("ex-evaluate")
    says_no = "    torch.is_grad_enabled = torch._C._is_grad_enabled = lambda: False\n    model.eval()"
    cell.source = cell.source.replace("    model.eval()", says_no).replace("torch.no_grad()", "torch.enable_grad()")


# --- talking to the grader over the runner's socket -------------------------------------------------------------------


hostile_code("answers_before_the_question",
    "Tells the grader, while cells are still executed, that all cells are done, and sends the answers to calls ahead.",
    **NONE_OF_THEM, reason=".", runner=True, source="""
for number in range(40):
    say({"$dict": [["id", "x"], ["error", None]]})
for number in range(40):
    say({"$dict": [["value", {"$dict": [["returned", {"$tuple": [0, 0]}], ["passed", True]]}]]})
time.sleep(0.1)
os._exit(0)
""")

hostile_code("forged_end",
    "Sends a length that no message has, and zeros, as if its process had ended well: only the keeper reports an end.",
    train_step=0, reason="18,446,744,073,709,551,615 bytes", runner=True,
    source='find_the_runner().channel.sendall(b"\\xff" * 8 + bytes(8))\ntime.sleep(5)')

hostile_code("asks_what_it_must_not",
    "Asks the grader's side for things by name: attributes, methods, the random numbers; and answers itself.",
    throughput=0, reason="not in the format|less often|more often|not those asked for", flags="escape", answers="throughput", runner=True,
    source="""
def images_per_second(step, batch_size, steps, warmup, synchronize):
    runner = find_the_runner()
    for name in ("__class__", "random", "measured", "calls", "judge"):
        print(runner.outside(name))
    return 1.0
""")

hostile_code("endless_questions",
    "Asks the device to step for ever, without reading a single answer, so that the grader's queue grows.",
    throughput=0, reason="more often|not in the format", flags="escape", answers="throughput", runner=True, source="""
def images_per_second(step, batch_size, steps, warmup, synchronize):
    while True:
        say({"$dict": [["ask", "step"], ["args", []]]})
""")

hostile_code("waits_for_the_device",
    "Piles up work on the pretend device, so that waiting for it would hold up the grader's own loop.",
    throughput=0, reason="timed out", flags="limit", answers="throughput", source="""
        def images_per_second(step, batch_size, steps, warmup, synchronize):
            for _ in range(900):
                step()
            for _ in range(100):
                synchronize()
            while True:  # on a fast device the waits end before the time does
                pass
        """)

hostile_code("text_that_unpacks",
    "Sends 60 MB of empty lists, which are a gigabyte as objects, before anything is counted.",
    train_step=0, reason="at most .* are read", flags="limit", runner=True, source="""
text = b"[" + b"[]," * 20_000_000 + b"0]"
find_the_runner().channel.sendall(struct.pack(">QQ", len(text), 0) + text)
time.sleep(5)
""")

hostile_code("empty_object",
    "Sends objects that the decoder might not have thought of: one without a key, headers that are no Python.",
    train_step=0, reason="not in the format", flags="escape", runner=True, source="say({})\ntime.sleep(5)")

# --- forged evidence of a run -----------------------------------------------------------------------------------------


def _write_curve(run, accuracies: list[float]) -> None:
    """A learning curve and the transcript that goes with it."""
    file, lines, clock = io.StringIO(), [], 0.0
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["epoch", "time", "images_per_sec", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr"])
    rows.writerow([0, "0.0", "", "", "", "", "0.0", ""])
    for epoch, accuracy in enumerate(accuracies, 1):
        clock += 3.0
        rows.writerow([epoch, clock, 1500, 0.5, 0.9, 0.4, accuracy, 0.1])
        lines.append(
            f"Epoch = {epoch:2d}: Cumulative Time = {clock:.3f}, Epoch Time = 3.000, Images/sec = 1500.0, "
            f"Training Accuracy = 0.900, Validation Loss = 0.400, Validation Accuracy = {accuracy:.3f}"
        )
    (run / "learning_curve.csv").write_text(file.getvalue())
    (run / "assessment.out").write_text("\n".join([*lines, f"Early stopping after epoch {len(accuracies)}"]) + "\n")


FORGED = "the learning curve ends at 0.99.*, the submitted weights score 0"


@exhibit(flags="forged", reason="the learning curve ends at 0.99")
def forged_curve(submission: Submission, world: World) -> None:
    """An honest run whose last accuracy was edited in the CSV alone."""
    curve = submission.run() / "learning_curve.csv"
    lines = curve.read_text().splitlines()
    fields = lines[-1].split(",")
    fields[6] = "0.99"
    curve.write_text("\n".join([*lines[:-1], ",".join(fields)]) + "\n")


@exhibit(flags="forged", reason=FORGED)
def forged_together(submission: Submission, world: World) -> None:
    """CSV, transcript and run record all agree on 0.99; the weights are those of an honest run that did not get there."""
    _write_curve(submission.run(), [0.8, 0.99, 0.99])


@exhibit(flags="missing", reason="nothing backs up .*model.safetensors is missing")
def forged_without_weights(submission: Submission, world: World) -> None:
    """CSV, transcript and run record agree on 0.95; the weights were 'forgotten'."""
    run = submission.run()
    _write_curve(run, [0.8, 0.95, 0.95])
    (run / "model.safetensors").unlink()


@exhibit(flags="missing", reason="nothing backs up .*model.safetensors is missing")
def only_a_record(submission: Submission, world: World) -> None:
    """A run.json and nothing else: is it worth its points without anything that backs it up?"""
    run = submission.run()
    for name in ("learning_curve.csv", "assessment.out", "model.safetensors"):
        (run / name).unlink()


@exhibit(flags="forged", reason="the submitted weights score 0.[01]")
def weights_of_zeros(submission: Submission, world: World) -> None:
    """Weights of the right shapes, all zero."""
    weights = submission.run() / "model.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in load_file(weights).items()}, weights)


@exhibit(flags="forged", reason="the submitted weights score 0.[0123]")
def weights_not_finite(submission: Submission, world: World) -> None:
    """Weights that are all NaN, so that every comparison with them is false."""
    weights = submission.run() / "model.safetensors"
    state = {n: torch.full_like(t, float("nan")) if t.is_floating_point() else t for n, t in load_file(weights).items()}
    save_file(state, weights)


@exhibit(flags="missing", reason="does not fit the lab's network")
def weights_of_another_network(submission: Submission, world: World) -> None:
    """Weights of another network."""
    save_file({"linear.weight": torch.ones(10, 784)}, submission.run() / "model.safetensors")


@exhibit(run=10, flags="copy")
def somebody_elses_weights(submission: Submission, world: World) -> None:
    """The run folder of an honest student, file by file: it is worth what it is worth, and both are flagged."""
    submission.run()


@exhibit(flags="missing", reason="does not fit the lab's network|could not be tested")
def weights_that_are_a_pickle(submission: Submission, world: World) -> None:
    """model.safetensors is a torch.save archive whose loading would make a folder on the host."""

    class Payload:
        def __reduce__(self):
            import os

            return os.mkdir, (str(world.folder / "unpickled-weights"),)

    torch.save({"weights": Payload()}, submission.run() / "model.safetensors")


@exhibit(flags="missing", reason="does not fit the lab's network|could not be tested")
def header_that_claims_gigabytes(submission: Submission, world: World) -> None:
    """A safetensors header of a tensor of 2^40 numbers, and no data."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (submission.run() / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


@exhibit(flags="missing", reason="could not be tested|does not fit|width is 64")
def network_of_width_64(submission: Submission, world: World) -> None:
    """A run record that asks the grader to build the widest network there is and to try it."""
    with submission.record() as record:
        record["parameters"]["width"] = 64
