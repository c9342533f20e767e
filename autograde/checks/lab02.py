"""Hidden checks of lab 02: arguments, meeting, order and the stopping rule; the others have files of their own."""

from __future__ import annotations

import math
import time
from typing import Any

from autograde.checks.compare import is_int
from autograde.checks.lab02_data_parallel import samplers, wrap
from autograde.checks.lab02_reductions import metrics, throughput
from autograde.checks.lab02_script import script
from autograde.checks.lab02_worker import worker
from autograde.checks.registry import AnswerError, Ask, DelayedReply, Findings, HiddenCheck, shape_of
from autograde.rubric.criteria import Finding

__all__ = ["CHECKS"]

RANKS = 3
SECONDS = 20.0  # ranks that wait for each other wait for ever; nothing here takes two seconds

_DEFAULTS = {"num_nodes": 1, "node_id": 0, "num_gpus": 1}


def _each(ask: Ask, *calls: tuple[str, Any]) -> list[Any]:
    """What each call returned, or the error that it ended with; where all raised, the first error is raised."""
    found: list[Any] = []
    for function, given in calls:
        try:
            found.append(ask.call(function, given))
        except AnswerError as error:
            found.append(error)
    if all(isinstance(value, AnswerError) for value in found):
        raise found[0]
    return found


def _raised(error: AnswerError) -> Finding:
    return Finding(False, str(error), error.remedy)


def arguments(ask: Ask) -> Findings:
    """Three arguments, and two formulas of them, for jobs drawn anew."""
    given = {name: int(ask.random.integers(2, 60)) for name in _DEFAULTS}
    epochs = int(ask.random.integers(100, 1000))
    line = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    jobs = []
    for nodes, gpus in ask.random.integers(2, 40, (8, 2)).tolist():
        job = {"num_nodes": nodes, "num_gpus": gpus, "node_id": int(ask.random.integers(0, nodes))}
        jobs.append((job, int(ask.random.integers(0, gpus))))
    parsed, sizes, ranks = _each(
        ask,
        ("arguments", [[], [*line, "--epochs", str(epochs)]]),
        ("world_size", [job for job, _ in jobs]),
        ("global_rank", jobs),
    )
    expected_ranks = [job["node_id"] * job["num_gpus"] + local for job, local in jobs]
    return {
        "arguments": _parsed(parsed, given, epochs),
        "world-size": _formula(
            sizes,
            [job["num_nodes"] * job["num_gpus"] for job, _ in jobs],
            "the world size counts the ranks of all nodes",
            "write down the ranks of 3 nodes with 4 GPUs each, and count",
        ),
        "rank": _formula(
            ranks,
            expected_ranks,
            "each process has its own rank among all",
            "write down, for 3 nodes with 4 GPUs each, the rank of every pair of node and local rank",
        ),
    }


def _parsed(parsed: Any, given: dict[str, int], epochs: int) -> Finding:
    if isinstance(parsed, AnswerError):
        return _raised(parsed)
    look = "print parse_arguments([]), and parse_arguments of each new argument with a number behind it"
    bare, full = parsed if isinstance(parsed, list) and len(parsed) == 2 else ({}, {})
    if full == "refused":
        return Finding(False, "the parser refuses --num-nodes, --node-id or --num-gpus with a number behind it", look)
    if not isinstance(bare, dict) or not isinstance(full, dict):
        return Finding(False, f"should return the parser's namespace, it returned {shape_of(bare)}", look)
    for name, default in _DEFAULTS.items():
        option = f"--{name.replace('_', '-')}"
        if name not in full or name not in bare:
            return Finding(False, f"there is no args.{name}", look)
        if not is_int(bare[name], default):
            return Finding(False, f"{option} is not {default} by default", look)
        if isinstance(full[name], str):
            return Finding(False, f"{option} is kept as text; it should become an int", look)
        if not is_int(full[name], given[name]):
            return Finding(False, f"the number given after {option} does not arrive in args.{name}", look)
    if not is_int(full.get("epochs"), epochs):
        return Finding(False, "the arguments that were there before no longer arrive", look)
    return Finding(True, "the three arguments have their names, types and defaults")


def _formula(found: Any, expected: list[int], right: str, look: str) -> Finding:
    if isinstance(found, AnswerError):
        return _raised(found)
    answers = found if isinstance(found, list) and len(found) == len(expected) else [None] * len(expected)
    wrong = [i for i, (a, b) in enumerate(zip(answers, expected, strict=True)) if not is_int(a, b)]
    if not wrong:
        return Finding(True, right)
    first = answers[wrong[0]]
    if type(first) is not int:
        return Finding(False, f"should return an int, it returned {shape_of(first)}", look)
    return Finding(False, "wrong for jobs of several nodes and GPUs", look)


def process_group(ask: Ask) -> Findings:
    """Each rank brings a number; together they see them all, in the order of ranks."""
    numbers = [float(n) for n in ask.random.normal(0, 100, RANKS)]
    found = ask.call("process_group", [{"number": number} for number in numbers])
    seen = [one.get("numbers") if isinstance(one, dict) else None for one in found]
    returned = [one.get("returned") if isinstance(one, dict) else None for one in found]
    look = "on two ranks, print dist.is_initialized(), dist.get_rank() and dist.get_world_size() after your function"
    if all(numbers == one for one in seen):
        joined = Finding(True, f"{RANKS} ranks found each other, each with its own rank")
    elif None in seen:
        joined = Finding(False, "after your function there is no process group on this rank", look)
    else:
        joined = Finding(False, "the ranks do not all see each other in the order of their ranks", look)
    right = joined.passed and all(is_int(value, rank) for rank, value in enumerate(returned))
    reason = "every rank returns its rank"
    if not right:
        reason = "what it returns is not this process's rank in the group, an int" if joined.passed else joined.reason
    return {"joined": joined, "rank": Finding(right, reason, "print what start_process_group returns on each rank")}


ROUNDS, HELD = 30, 0.8  # seconds; who sleeps as long in each round does not end within the limit
QUIET = 250  # bytes: acknowledgements of what was sent before still come in; one barrier of two ranks has 800


class _Preparation:
    """Work that rank 0 should do before the others, and that takes as long as the grader likes."""

    def __init__(self, seconds: float, tokens: list[int]) -> None:
        self.seconds, self.tokens = seconds, tokens
        self.begun: list[int] = []  # ranks, in order
        self.early: set[int] = set()  # ranks that began before rank 0 had finished
        self.finished = math.inf

    def prepare(self, rank: int) -> DelayedReply | int:
        now = time.monotonic()
        if len(self.begun) > 100:
            raise ValueError
        self.begun.append(rank)
        if rank != 0:
            if now < self.finished:
                self.early.add(rank)
            return self.tokens[rank]
        self.finished = min(self.finished, now + self.seconds)
        return DelayedReply(self.seconds, self.tokens[rank])


def prepare_once(ask: Ask) -> Findings:
    """Many rounds; in one of them, which nobody knows, rank 0's preparation takes longer than one can sleep in each."""
    tokens = [[int(n) for n in ask.random.integers(10**6, 10**9, RANKS)] for _ in range(ROUNDS)]
    held = int(ask.random.integers(0, ROUNDS))
    rounds = [_Preparation(HELD if number == held else 0.0, mine) for number, mine in enumerate(tokens)]
    before = ask.bytes_on_loopback()
    returned = [ask.call("prepare_once", [None] * RANKS, {"prepare": one.prepare}) for one in rounds]
    after = ask.bytes_on_loopback()
    early = [rank for one in rounds for rank in one.early]
    wrong = None
    if not all(0 in one.begun for one in rounds):
        wrong = "rank 0 never called prepare()"
    elif early:
        wrong = f"rank {min(early)} began before rank 0 had finished"
    elif before is not None and after - before < ROUNDS * QUIET:
        wrong = "no message passed between the ranks, so the others cannot know when rank 0 has finished"
    times = [sum(one.begun.count(rank) for one in rounds) / ROUNDS for rank in range(RANKS)]
    once = all(sorted(one.begun) == list(range(RANKS)) for one in rounds)
    right = [
        all(is_int(values[rank], mine[rank]) for values, mine in zip(returned, tokens, strict=True))
        for rank in range(RANKS)
    ]
    look = "let prepare() print the rank and the time, before and after a short sleep"
    return {
        "order": Finding(wrong is None, wrong or "rank 0 prepared, and the others began after it had finished", look),
        "once": Finding(
            once,
            "every rank called prepare() once"
            if once
            else f"prepare() was called {', '.join(f'{n:g}' for n in times)} times on ranks 0, 1, 2",
            look,
        ),
        "returns": Finding(
            all(right),
            "every rank returns what its own prepare() returned"
            if all(right)
            else f"rank {right.index(False)} does not return what its own prepare() returned",
            "print what prepare_once returns on each rank",
        ),
    }


def early_stop(ask: Ask) -> Findings:
    """On histories that end well and badly, and on those at the edges of the rule."""
    random = ask.random
    target = float(random.uniform(0.3, 0.9))
    rule, edges = [], []
    for _ in range(40):
        patience = int(random.integers(1, 6))
        history = random.uniform(target - 0.2, target - 1e-3, patience + int(random.integers(0, 5))).tolist()
        good = random.random(len(history)) < 0.5
        if random.random() < 0.5:
            good[-patience:] = True
        else:
            good[len(good) - 1 - int(random.integers(0, patience))] = False
        history = [
            target + 0.09 * float(random.random()) + 1e-3 if g else a for a, g in zip(history, good, strict=True)
        ]
        rule.append((history, target, patience))
        edges.append(([target] * patience, target, patience))
        edges.append(([target + 0.05] * int(random.integers(0, patience)), target, patience))
    edges.append(([], target, 1))
    on_rule, on_edges = _each(ask, ("early_stop", rule), ("early_stop", edges))
    look = "write down five accuracies, the target and the patience, and decide by hand for each epoch"
    return {
        "rule": _decisions(on_rule, [min(h[-p:]) >= t for h, t, p in rule], "right on histories drawn anew", look),
        "edges": _edges(on_edges, [len(h) >= p for h, _, p in edges], look),
    }


def _decisions(found: Any, expected: list[bool], right: str, look: str) -> Finding:
    if isinstance(found, AnswerError):
        return _raised(found)
    answers = found if isinstance(found, list) and len(found) == len(expected) else [None] * len(expected)
    late = sum(a is not True for a, b in zip(answers, expected, strict=True) if b)
    early = sum(a is not False for a, b in zip(answers, expected, strict=True) if not b)
    if late == early == 0:
        return Finding(True, right)
    if late and early:
        return Finding(False, "it stops where it should not, and goes on where it should stop", look)
    return Finding(False, "it goes on where it should stop" if late else "it stops where it should not", look)


def _edges(found: Any, expected: list[bool], look: str) -> Finding:
    finding = _decisions(found, expected, "an accuracy equal to the target counts; a short history does not stop", look)
    if finding.passed or isinstance(found, AnswerError):
        return finding
    if "should not" in finding.reason:
        return Finding(False, "it stops after fewer epochs than patience asks for", look)
    return Finding(False, "an accuracy that equals the target does not count, but should", look)


CHECKS = {
    "arguments": HiddenCheck(
        arguments,
        {
            "arguments": "The three arguments, their types and defaults",
            "world-size": "World size of any job",
            "rank": "Global rank of any process",
        },
    ),
    "process-group": HiddenCheck(
        process_group,
        {"joined": "The ranks find each other by the environment", "rank": "Returns this process's rank"},
        ranks=RANKS,
        process_group=False,
        seconds=SECONDS,
    ),
    "prepare-once": HiddenCheck(
        prepare_once,
        {
            "order": "The others begin when rank 0 has finished",
            "once": "Each rank prepares once",
            "returns": "Each rank returns its own result",
        },
        ranks=RANKS,
        seconds=SECONDS,
    ),
    "samplers": HiddenCheck(
        samplers,
        {
            "shares": "Ranks train on different images, together on all",
            "epochs": "A new order in each epoch, the same for the same seed",
            "batches": "Full training batches of the size asked for",
            "test": "Every test image, in order, in batches of 250",
        },
    ),
    "wrap": HiddenCheck(
        wrap,
        {
            "weights": "All ranks start from rank 0's weights",
            "gradients": "Gradients are averaged over the ranks",
            "sync": "Batch norm is synchronised when asked, and only then",
        },
        ranks=2,
        seconds=SECONDS,
    ),
    "throughput": HiddenCheck(
        throughput,
        {
            "rate": "Images per second of the whole job",
            "seconds": "Seconds of the slowest rank",
            "everywhere": "The same pair on every rank",
        },
        ranks=RANKS,
        seconds=SECONDS,
    ),
    "metrics": HiddenCheck(
        metrics,
        {
            "accuracy": "Accuracy over all ranks' images",
            "loss": "Mean loss over all ranks' images",
            "everywhere": "The same pair on every rank",
        },
        ranks=RANKS,
        seconds=SECONDS,
    ),
    "early-stop": HiddenCheck(
        early_stop,
        {"rule": "Decides by the last epochs", "edges": "Equal counts; a short history does not stop"},
    ),
    "worker": HiddenCheck(
        worker,
        {
            "order": "A new order of images in each epoch",
            "training": "Trains the wrapped model on every batch, by the schedule",
            "accuracy": "Every rank has the accuracy that the weights have",
            "records": "Rate, time and losses of the whole job",
        },
        ranks=2,
        seconds=45.0,
    ),
    "script": HiddenCheck(
        script,
        {"worker": "Runs the worker on every rank, in a process group", "leaves": "Leaves the process group"},
        ranks=2,
        process_group=False,
        seconds=SECONDS,
    ),
}
