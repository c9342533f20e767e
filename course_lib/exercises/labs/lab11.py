"""Lab 11: the scaling study. Throughput, speed-up and efficiency, the laws, bytes sent, and a model of a step."""

from __future__ import annotations

import statistics

from course_lib.exercises.description import Exercise, Part

__all__ = ["EXERCISES"]


def _draw_epochs(random):
    """Each kind of case shows one thing: where two epochs are left, their median is their mean."""

    def epochs(ranks, number=2, longest=4):
        return random.uniform(1, longest, (ranks, number)).round(2).tolist()

    def case(later, first=None):
        if first is None:  # changes nothing: the median of the others
            first = statistics.median(map(max, zip(*later, strict=True)))
        return int(random.integers(500, 50_000)), [[first, *one] for one in later]

    several = [epochs(int(ranks)) for ranks in random.integers(3, 6, 4)]
    for later in several:
        later[1][0] += 6  # another rank is the slowest in each epoch, never rank 0
        later[-1][1] += 6
    return {
        "first": [case(epochs(1), first) for first in (9.0, 10.0, 0.1)],
        "slowest": [case(later) for later in several],
        "median": [case([[*epochs(1, 3, 1.2)[0], 40.0]]) for _ in range(3)],
    }


def observe_throughput(case, steady_throughput):
    return steady_throughput(case[0], [list(one) for one in case[1]])


throughput = Exercise(
    ("steady_throughput",), _draw_epochs, observe_throughput,
    {
        "first": Part("Leaves the first epoch out",
            "with one rank, the throughput is not that of the epochs after the first"),
        "slowest": Part("Takes each epoch's slowest rank",
            "with several ranks, the throughput is not that of each epoch's slowest rank"),
        "median": Part("Takes the median of the epochs",
            "where one epoch is disturbed, the throughput is not that of the median epoch"),
    },
    "take ranks with epochs of 9, 2, 3, 2 s and 5, 2.5, 2, 4 s, and write each step down by hand",
    "{0:,} images an epoch, ranks with epochs of {1} s",
)  # fmt: skip


def _draw_times(random):
    def case(kind, *ranks):
        sequential, longer = round(float(random.uniform(5, 20)), 2), random.uniform(1.05, 1.5, len(ranks)).tolist()
        longer = longer if kind == "weak" else [factor / n for factor, n in zip(longer, ranks, strict=True)]
        times = {n: round(sequential * factor, 3) for n, factor in zip(ranks, longer, strict=True)}
        return sequential, times, kind

    cases = {kind: [case(kind, 2, 4), case(kind, 3, 8, 16)] for kind in ("strong", "weak")}
    return cases | {"baseline": [case(kind, *ranks) for kind in cases for ranks in ((1, 2, 8), (1, 5))]}


def observe_table(case, scaling):
    sequential, times, kind = case
    table = scaling(sequential, dict(times), kind)
    return {f"{ranks:d} rank(s)": pair for ranks, pair in table.items()} if isinstance(table, dict) else table


speedups = Exercise(
    ("scaling",), _draw_times, observe_table,
    {
        "strong": Part("Strong scaling",
            "for the same work, the table {ranks: (speed-up, efficiency)} is wrong: T_seq / T(N), and that per rank"),
        "weak": Part("Weak scaling",
            "for N times the work, the table {ranks: (speed-up, efficiency)} is wrong: N · T_seq / T(N), and that per rank"),
        "baseline": Part("Against the sequential program",
            "where the parallel program was run on 1 rank too, the table is not against the sequential program",
            needs="strong weak"),
    },
    "take 10 s in sequence, {1: 11.0, 2: 6.0} in parallel, and write the table down by hand",
    "{2} scaling, {0} s in sequence, {1} in parallel",
)  # fmt: skip


def _draw_laws(random):
    def point(law):
        ranks, serial = int(random.integers(2, 4096)), round(float(random.uniform(0.001, 0.6)), 3)
        return {"law": law, "point": (ranks, serial), "about": f"{law}({ranks}, {serial})"}

    def share(number, serial, factors, alone=False):
        """Speed-ups by Amdahl's law, times drawn factors."""
        ranks = sorted(random.choice(range(2, 17), number, replace=False).tolist())
        gains = [f / (serial + (1 - serial) / n) for n, f in zip(ranks, random.uniform(*factors, number), strict=True)]
        found = ({1: 1.0} if alone else {}) | {n: round(float(gain), 3) for n, gain in zip(ranks, gains, strict=True)}
        return {"speedups": found, "about": f"serial_share({found})"}

    better, worse, near = (1.05, 1.2), (0.4, 0.95), (0.85, 1.15)  # `better`: than the ranks, a negative share
    return {
        "amdahl": [point("amdahl") for _ in range(6)],
        "gustafson": [point("gustafson") for _ in range(6)],
        "single": [share(1, 0, better), share(1, 0, worse), share(1, 0, worse, True)],
        "fit": [share(4, 0, better), share(4, 0.02, near), share(4, 0.1, near, True), share(4, 0.3, near, True)],
    }


def observe_law(case, amdahl, gustafson, serial_share):
    if "speedups" in case:
        return serial_share(dict(case["speedups"]))
    return {"amdahl": amdahl, "gustafson": gustafson}[case["law"]](*case["point"])


laws = Exercise(
    ("amdahl", "gustafson", "serial_share"), _draw_laws, observe_law,
    {
        "amdahl": Part("Amdahl's law", "the speed-up is not Amdahl's", "16 ranks with 5 % are 9.1 times as fast"),
        "gustafson": Part("Gustafson's law", "the speed-up is not Gustafson's",
            "2,048 ranks with 5 % do 1,946 times the work"),
        "single": Part("The share from one number of ranks", "from one number of ranks, the share is not right"),
        "fit": Part("The share from several, by least squares",
            "from several numbers of ranks, the share is not the least-squares slope"),
    },
    "take N = 2 and a speed-up of 1.6: the share is 25 %",
)  # fmt: skip


def _draw_gradients(random):
    sizes = random.integers(10**5, 10**8, 5).astype(float).tolist()
    ranks = random.choice(range(3, 40), 5, replace=False).tolist()
    several = [2, *(int(random.integers(2, n)) for n in ranks[1:4]), ranks[4]]  # up to one on every rank
    each = list(zip(sizes, ranks, several, strict=True))
    alone = [*((size, n, 1) for size, n, _ in each), (sizes[0], 1, 1)]
    return {
        "ring": [("ring", *one) for one in [*alone, each[0]]],
        "server": [("parameter server", *one) for one in alone],
        "sharded": [("parameter server", *one) for one in each],
    }


def observe_sent(case, busiest_sends):
    return busiest_sends(*(case[:3] if case[3] == 1 else case))


sent = Exercise(
    ("busiest_sends",), _draw_gradients, observe_sent,
    {
        "ring": Part("What a rank of a ring sends", "it is not what a rank of a ring sends"),
        "server": Part("What the one server sends", "it is not what the server sends"),
        "sharded": Part("What the busiest of several servers sends", "it is not what the busiest of several servers sends"),
    },
    "take 4 ranks, 12 MB and 2 servers, and list what each rank sends to whom",
    "{0}, {1:,.0f} bytes, {2} rank(s), {3} server(s)",
)  # fmt: skip


def _draw_models(random):
    def four(low, high):
        return tuple(float(f"{one:.3g}") for one in 10 ** random.uniform(low, high))

    def fit(noise):
        t0, c, alpha, beta = numbers = four((-3.5, -4.5, -5, -9.8), (-2, -2.5, -3.5, -8.5))
        points = [(n, b, size) for n in (1, 2, 4, 8) for b in (4, 128, 1024) for size in (10**5, 4 * 10**6, 5 * 10**7)]
        seconds = [t0 + c * b + 2 * (n - 1) * (alpha + beta * size / n) for n, b, size in points]
        factors = (1 + noise * random.uniform(-1, 1, len(points))).tolist()
        about = f"times made from (t0, c, alpha, beta) = {numbers}, each times 1 ± {noise} at most"
        return {"rows": [(*p, t * f) for p, t, f in zip(points, seconds, factors, strict=True)], "about": about}

    def worth(*most):
        batch, nbytes = int(random.integers(8, 256)), int(random.integers(10**5, 10**7))
        least = round(float(random.uniform(0.3, 0.95)), 3)
        return four((-4, -4.5, -6, -10), (-2.5, -2.5, -4, -9)), batch, nbytes, least, *most

    questions = [*(worth(*most) for most in [(), (64,)] * 4), ((1e-3, 1e-3, 0.0, 1e-12), 64, 1000, 0.9, 300)]
    return {
        "line": [fit(0) for _ in range(4)],
        "noise": [fit(0.08) for _ in range(4)],
        "worth": [{"question": each, "about": f"ranks_worth{each}"} for each in questions],
    }


def observe_model(case, fit_step, ranks_worth):
    if "question" in case:
        return ranks_worth(*case["question"])
    four = fit_step([tuple(row) for row in case["rows"]])
    return four.tolist() if hasattr(four, "tolist") else four


model = Exercise(
    ("fit_step", "ranks_worth"), _draw_models, observe_model,
    {
        "line": Part("Finds the four numbers that made the times",
            "where the times are the model's, it does not find the numbers that made them, (t0, c, alpha, beta)",
            "make times from four numbers of your own, fit them, and compare; then multiply each by 1 ± 0.05",
            tolerance=1e-3),
        "noise": Part("Finds them among noisy times, long and short",
            "with times that are off by 8 %, the four numbers are not the best ones",
            "divide each row, and its right-hand side, by its seconds", needs="line", tolerance=1e-3),
        "worth": Part("How many ranks are worth it", "it is not the largest number of ranks whose T(1)/T(N) is enough"),
    },
    "with t0 = 0, c = 2.57 ms, α = 20 µs, β = 0.1 ns, 32 images, 102 MB, 0.5: it is 1,547 ranks",
)  # fmt: skip

EXERCISES = {"throughput": throughput, "scaling": speedups, "laws": laws, "bytes": sent, "model": model}
