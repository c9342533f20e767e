"""Hidden check of lab 02's script for torchrun."""

from __future__ import annotations

from autograde.checks.compare import is_int
from autograde.checks.joined_group import joined_wrongly
from autograde.checks.registry import Ask, Findings, shape_of
from autograde.rubric.criteria import Finding

__all__ = ["script"]


def script(ask: Ask) -> Findings:
    """The script as torchrun would run it, with a worker that only tells who is there."""
    ranks = 2
    numbers = [float(n) for n in ask.random.normal(0, 100, ranks)]
    tokens = [int(n) for n in ask.random.integers(10**6, 10**9, ranks)]
    given = [{"number": n, "token": t, "gpus": ranks} for n, t in zip(numbers, tokens, strict=True)]
    found = ask.call("script", given)
    look = "write down what a rank must do before it can call the worker, and what is left to do after it"
    if not all(isinstance(one, dict) and isinstance(one.get("calls"), list) for one in found):
        wrong = Finding(False, f"script should be the script's text, it is {shape_of(found[0].get('source'))}", look)
        return {"worker": wrong, "leaves": wrong}
    ran = Finding(True, "every rank ran the worker once, with the arguments, in one process group")
    for one, token in zip(found, tokens, strict=True):
        calls = [call if isinstance(call, dict) else {} for call in one["calls"]]
        if len(calls) != 1:
            ran = Finding(False, "the worker did not run" if not calls else "the worker ran more than once", look)
        elif calls[0].get("numbers") is None:
            ran = Finding(False, "the worker ran before there was a process group", look)
        elif calls[0]["numbers"] != numbers:
            ran = Finding(False, "the worker's ranks do not see each other in the order of their ranks", look)
        elif not is_int(calls[0].get("token"), token):
            ran = Finding(False, "the worker was not given what parse_arguments returned", look)
    if ran.passed:
        ran = joined_wrongly(ask, found, given) or ran
    met = all(call.get("numbers") == numbers for one in found for call in one["calls"][:1] if isinstance(call, dict))
    met = met and all(one["calls"] for one in found)
    left = met and all(one.get("left") is True for one in found)
    reason = "the process group is left at the end"
    if not left:
        reason = "at the script's end the process group is still there" if met else ran.reason
    return {"worker": ran, "leaves": Finding(left, reason, look)}
