"""Lab 09: HogWild. How sparse updates are; `steps`, `worker` and `program` have what the processes do."""

from __future__ import annotations

import torch

from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab09.program import PROGRAM
from course_lib.exercises.labs.lab09.steps import NETWORK, SPARSE
from course_lib.exercises.labs.lab09.worker import WORKER

__all__ = ["EXERCISES"]

# --- sparsity


def _draw_texts(random):
    def case():
        samples, words = int(random.integers(9, 14)), int(random.integers(5, 8))
        vocabulary = torch.from_numpy(random.choice(10_000, samples * words, replace=False))
        indices = vocabulary.reshape(samples, words).clone()
        common, others = int(random.integers(3, 5)), int(random.integers(2, 4))
        indices[:common, 0] = indices[0, 0]  # one word is in several texts
        indices[common : common + others, 1] = indices[0, 1]  # other texts share another one with the first
        indices[:, 2] = indices[:, 3]  # each text has a word twice
        indices[-2] = indices[-2, 0]  # a text has one word only, again and again
        indices = indices[torch.from_numpy(random.permutation(samples))]
        return {"indices": indices, "about": f"{samples} texts of {words} words, {indices.tolist()}"}

    return {"texts": [case() for _ in range(4)]}


def observe_sparsity(case, sparsity):
    found = sparsity(case["indices"].clone())
    if not isinstance(found, tuple | list) or len(found) != 3:
        return None
    return dict(zip(("omega", "delta", "rho"), found, strict=True))


SPARSITY = Exercise(("sparsity",), _draw_texts, observe_sparsity, {
    "omega": Part("The most features of one text, Ω", "Ω is wrong for some texts", keys="omega"),
    "delta": Part("The most frequent feature, Δ", "Δ is wrong for some texts", keys="delta"),
    "rho": Part("The text that collides with the most texts, ρ", "ρ is wrong for some texts", keys="rho"),
}, "write three texts of three words on paper, one word twice in a text and one word in two texts")  # fmt: skip

# --- collision_probability


def _draw_collisions(random):
    def question(processes):
        nonzeros = int(random.integers(2, 12))
        return nonzeros, nonzeros * int(random.integers(3, 40)), int(processes)

    return {
        "two": [*(question(2) for _ in range(4)), (20, int(random.integers(10**5, 10**6)), 2)],
        "many": [
            *(question(processes) for processes in random.integers(3, 10, 4)),
            (4, int(random.integers(300, 500)), 6),
        ],
        # With two processes, the sum over the others would be right for the second.
        "edges": [(7, 7, 2), (5, 8, int(random.integers(3, 6))), (3, 40, 1)],
    }


def observe_collision(case, collision_probability):
    return collision_probability(*case)


COLLISION = Exercise(("collision_probability",), _draw_collisions, observe_collision, {
    "two": Part("Two processes", "wrong for two processes"),
    "many": Part(
        "More than two processes",
        "wrong for more than two processes",
        "with three processes, two others must both miss yours",
    ),
    "edges": Part(
        "Dense updates, and a process alone",
        "wrong where updates must collide, or where there is one process",
        "try as many nonzeros as features, more than half of them, and a single process",
        needs="two",
    ),
}, "count by hand: 2 of 4 features, two processes; of the six ways to choose the other's, one misses yours",
    "{0} of {1:,} features, {2} process(es)")  # fmt: skip

# --- speedups


def _draw_measurements(random):
    def case(counts, runs):
        seconds = {count: [float(s) for s in random.uniform(2, 9, runs)] for count in counts}
        seconds[1].sort()  # so that the first is neither the median nor the slowest
        return {
            "counts": list(counts),
            "runs": runs,
            "seconds": seconds,
            "about": f"counts {list(counts)}, {runs} runs: seconds {seconds}",
        }

    return {"measured": [case((1, 2, 4), 3), case((4, 1, 2), 5), case((1, 3), 5)]}


def observe_speedups(case, speedups):
    calls = []

    def train_once(processes, run):
        calls.append([processes, run])
        return case["seconds"][processes][[P for P, _ in calls].count(processes) - 1]

    found = speedups(train_once, list(case["counts"]), case["runs"])
    if not isinstance(found, dict) or set(found) != set(case["counts"]):
        return {"calls": calls, "median": None, "spread": None}
    rows = [found[count] for count in case["counts"]]
    return {"calls": calls, "median": [row[0] for row in rows], "spread": [list(row[1:]) for row in rows]}


def _in_rounds(case, seen, right):
    counts, calls = case["counts"], seen["calls"]
    if len(calls) != len(counts) * case["runs"]:
        return "it does not call train_once `runs` times for each number of processes"
    rounds = [calls[n : n + len(counts)] for n in range(0, len(calls), len(counts))]
    if any(sorted(processes for processes, _ in each) != sorted(counts) for each in rounds):
        return "all runs of one P follow each other, so a slow minute of the computer hits that P alone: one round of all P after the other"
    if any(run != number for number, each in enumerate(rounds) for _, run in each):
        return "train_once is not given the number of the round, from 0"
    return ""


SPEEDUP = Exercise(("speedups",), _draw_measurements, observe_speedups, {
    "rounds": Part("Runs in rounds of all numbers of processes", "train_once is not called", cases="measured", judge=_in_rounds),
    "median": Part("The median speed-up", "the first number of some P is wrong", cases="measured", keys="median"),
    "spread": Part("The lowest and the highest speed-up", "the second and third number of some P are wrong", cases="measured",
                   keys="spread"),
}, "give it a train_once that prints its arguments and returns 8 / P")  # fmt: skip

EXERCISES = {
    "sparsity": SPARSITY, "collision": COLLISION, "sparse": SPARSE, "network": NETWORK, "worker": WORKER, "program": PROGRAM,
    "speedup": SPEEDUP,
}  # fmt: skip
