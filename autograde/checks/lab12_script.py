"""Hidden check of lab 12's script for torchrun."""

from __future__ import annotations

from autograde.checks.compare import is_int
from autograde.checks.joined_group import joined_wrongly
from autograde.checks.registry import Ask, Findings, shape_of
from autograde.rubric.criteria import Finding

__all__ = ["script"]

RANKS = 2


def script(ask: Ask) -> Findings:
    """The script as torchrun would run it, with a worker that only tells who is there and what it was given."""
    numbers = [float(n) for n in ask.random.normal(0, 100, RANKS)]
    tokens = [int(n) for n in ask.random.integers(10**6, 10**9, RANKS)]
    stopped = bool(ask.random.random() < 0.5)
    given = [{"number": n, "token": t, "stopped": stopped, "gpus": RANKS} for n, t in zip(numbers, tokens, strict=True)]
    found = ask.call("script", given)
    look = "write down what a rank must do before it can call the worker, and what is left to do after it"
    if not all(isinstance(one, dict) and isinstance(one.get("calls"), list) for one in found):
        source = found[0].get("source") if isinstance(found[0], dict) else None
        wrong = Finding(False, f"script should be the script's text, it is {shape_of(source)}", look)
        return {"worker": wrong, "run": wrong, "leaves": wrong}
    calls = [[call if isinstance(call, dict) else {} for call in one["calls"]] for one in found]
    ran = _ran(calls, numbers, tokens, look)
    if ran.passed:
        ran = joined_wrongly(ask, found, given) or ran
    met = all(len(one) >= 1 and one[0].get("numbers") == numbers for one in calls)
    left = met and all(one.get("left") is True for one in found)
    reason = "the process group is left at the end"
    if not left:
        reason = "at the script's end the process group is still there" if met else ran.reason
    return {
        "worker": ran,
        "run": _run(calls, [one.get("finished") for one in found], tokens, stopped, ran, look),
        "leaves": Finding(left, reason, look),
    }


def _ran(calls: list[list[dict]], numbers: list[float], tokens: list[int], look: str) -> Finding:
    for mine, token in zip(calls, tokens, strict=True):
        if len(mine) != 1:
            return Finding(False, "the worker did not run" if not mine else "the worker ran more than once", look)
        if mine[0].get("numbers") is None:
            return Finding(False, "the worker ran before there was a process group", look)
        if mine[0]["numbers"] != numbers:
            return Finding(False, "the worker's ranks do not see each other in the order of their ranks", look)
        if not is_int(mine[0].get("token"), token):
            return Finding(False, "the worker was not given what parse_arguments returned", look)
    return Finding(True, "every rank ran the worker once, with the arguments, in one process group")


def _run(
    calls: list[list[dict]], finished: list[object], tokens: list[int], stopped: bool, ran: Finding, look: str
) -> Finding:
    if not all(calls):
        return Finding(False, ran.reason, look)
    if not is_int(calls[0][0].get("run"), tokens[0] + 1) or calls[1][0].get("run") is not None:
        return Finding(False, "the worker was not given what open_run returned: a run on rank 0, None elsewhere", look)
    if finished[0] != [stopped] or finished[1] != []:
        return Finding(False, 'rank 0 does not end its run, once, by run.finish(result["stopped"])', look)
    return Finding(True, "rank 0 gave the worker its run and finished it")
