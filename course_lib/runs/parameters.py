"""Rules for a notebook's parameters: written beside each parameter, and checked before any long work begins.

The comment of an assignment in the cell tagged ``parameters`` begins with the rule, and its meaning follows::

    epochs = 4                   # [1, 10000] at most; the source trains up to 40
    batch_size = 32              # [1, train_samples / num_gpus] images per step and per rank
    momentum = 0.9               # [0.0, 1.0) of SGD
    lr_rule = "linear"           # {linear, sqrt, none} how the learning rate follows the batch
    dataset = "fashion-mnist"    # {grey data} a staged data set

An interval holds whole numbers if its lower bound is written as one. A bound is a number, ``inf``, another parameter,
``NAME.train`` or ``NAME.test`` (images of the data set that the parameter NAME chooses), ``machine`` (ranks that this
machine carries), or a quotient of these. A number of images that may be 0 means all of them when it is 0. A set lists
words, or asks for data: ``{data}``, ``{grey data}``, ``{colour data}``, ``{data up to 32x32}``. A rule for a list is a
rule for each of its values.

The rules are in the notebook, not in a table of this library or in ``profiles.yaml``: they are needed wherever the
notebook runs, also under plain papermill and in a student's copy, and should be visible where a value is edited.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import io
import math
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from course_lib.system.hardware import available_cores

__all__ = ["ParameterError", "Rule", "check_parameters", "check_values", "did_you_mean", "read_rules"]

_COMMENT = re.compile(r"#\s*([\[(][^\[\](){}]*,[^\[\](){}]*[\])]|\{[^{}]+\}):?\s*(.*)")
_DATA = re.compile(r"(?:(grey|colour) )?data(?: up to (\d+)x\d+)?")


class ParameterError(ValueError):
    """An invalid parameter, in one line: its name, the reason, and valid values."""


@dataclass(frozen=True)
class Rule:
    """The values that one parameter may have.

    Parameters
    ----------
    text : str
        ``[1, 64]``, ``(0.0, inf)``, ``{sgd, novograd}``, …: see this module.
    meaning : str
        For the message.

    Raises
    ------
    ValueError
        `text` is not a rule.
    """

    text: str
    meaning: str = ""

    def __post_init__(self) -> None:
        if not self.words:
            self._bounds()

    @property
    def words(self) -> list[str]:
        """The words of a set; empty for an interval."""
        return [word.strip() for word in self.text[1:-1].split(",")] if self.text.startswith("{") else []

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are allowed."""
        return not self.words and re.fullmatch(r"-?\d+", self._bounds()[0]) is not None

    def _bounds(self) -> tuple[str, str]:
        low, high = (bound.strip() for bound in self.text[1:-1].split(","))
        float(low)
        for atom in high.split("/"):
            if not re.fullmatch(r"[^\W\d]\w*(\.train|\.test)?", atom.strip()):
                float(atom)
        return low, high

    def check(self, name: str, value: Any, values: Mapping[str, Any], rules: Mapping[str, Rule], machine: bool) -> None:
        """Raise `ParameterError` unless `name` may have this `value`, `values` being all parameters."""
        if self.words:
            self._check_word(name, value)
            return
        low, high = self._bounds()
        number = isinstance(value, int | float) and not isinstance(value, bool)
        meaning = f" ({self.meaning})" if self.meaning else ""
        if not number or not math.isfinite(value) or (self.whole and value != int(value)):
            expected = "a whole number" if self.whole else "a number"
            raise ParameterError(f"{name} = {value!r}: {expected} is needed{meaning}")
        if not (value > float(low) if self.text[0] == "(" else value >= float(low)):
            raise ParameterError(f"{name} = {value}: must be in {self.text}{meaning}")
        if high == "machine":
            if machine and value > 1:  # asking the driver takes time, and a sweep has many trials
                _check_machine(name, value)
            return
        limit, why = _bound(high, values, rules)
        if not (value < limit if self.text[-1] == ")" else value <= limit):
            here = f", at most {limit:g} here: {high} is {why}" if why else ""
            raise ParameterError(f"{name} = {value}: must be in {self.text}{here}{meaning}")

    def _check_word(self, name: str, value: Any) -> None:
        data = _DATA.fullmatch(self.words[0])
        words = _data_sets(data[1], int(data[2] or sys.maxsize)) if data else self.words
        if value not in words:
            hint = did_you_mean(value, words)
            raise ParameterError(f"{name} = {value!r}: must be one of {', '.join(words)}{hint and '; ' + hint}")


def check_parameters(**values: Any) -> None:
    """Check a notebook's parameters by the rules in its own parameters cell; elsewhere there are no rules.

    On a machine with GPUs, ``num_gpus`` may not exceed them. On one without, a rank is a CPU process; more
    ranks than cores work, slowly, and `launch` warns.

    Raises
    ------
    ParameterError
        For the first invalid parameter.
    """
    _images.cache_clear()  # in a notebook that is open for days, data are staged meanwhile
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    rules: dict[str, Rule] = {}
    for cell in shell.history_manager.input_hist_raw if shell is not None else ():
        if "output_dir" in cell and "#" in cell:  # the cell with all parameters, as it was executed last
            rules |= read_rules(cell)
    check_values(values, rules)


def check_values(values: Mapping[str, Any], rules: Mapping[str, Rule], machine: bool = True) -> None:
    """Raise `ParameterError` for the first of `values` that its rule does not allow; names without a rule pass.

    `machine`: whether ranks are bounded by what this machine carries.
    """
    for name, rule in rules.items():
        if name not in values:
            continue
        several = isinstance(values[name], list)
        if several and not values[name]:
            raise ParameterError(f"{name} is empty: at least one value is needed")
        for value in values[name] if several else [values[name]]:
            rule.check(name, value, values, rules, machine)


def read_rules(cell: str) -> dict[str, Rule]:
    """The rules in the comments of a parameters cell, by name; none where the text is not Python."""
    try:
        lines = {
            statement.end_lineno: statement.targets[0].id
            for statement in ast.parse(cell).body
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        }
        tokens = list(tokenize.generate_tokens(io.StringIO(cell).readline))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return {}
    comments = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    rules = {}
    for line, name in lines.items():
        text = comments[line].string if line in comments else ""
        while (more := comments.get(line := line + 1)) is not None and line not in lines:
            text += more.string.removeprefix("#")
        if match := _COMMENT.fullmatch(text):
            with contextlib.suppress(ValueError):  # an ordinary comment: (see above, please)
                rules[name] = Rule(match[1], match[2].split(";")[0].strip("… "))
    return rules


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """``did you mean novograd?`` for a word that resembles a known one, else the empty string."""
    near = difflib.get_close_matches(str(word), list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def _bound(text: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> tuple[float, str]:
    """A bound's value and its origin; infinite where it is unknown."""
    numbers = [_atom(atom.strip(), values, rules) for atom in text.split("/")]
    limit = numbers[0]
    for divisor in numbers[1:]:
        limit /= max(divisor, 1)
    if len(numbers) > 1:
        return (limit if math.isinf(limit) else math.floor(limit)), " / ".join(f"{number:g}" for number in numbers)
    what, _, split = text.partition(".")
    if split in ("train", "test"):
        return limit, f"the number of {'training' if split == 'train' else 'test'} images of {values.get(what)}"
    return limit, f"{limit:g}" if text in rules else ""


def _atom(text: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> float:
    what, _, split = text.partition(".")
    if split in ("train", "test") and what.isidentifier():
        from data_prep.errors import DataError

        try:
            return _images(str(values.get(what)), os.environ.get("LAB_DATA"))[split == "test"]
        except DataError:
            return math.inf  # `load` reports what is wrong with the data
    if not text.isidentifier() or text == "inf":
        return float(text)
    value = values.get(text)
    if not isinstance(value, int | float):
        return math.inf
    if value == 0 and text.endswith("_samples") and text in rules:
        return _bound(rules[text]._bounds()[1], values, rules)[0]  # 0: all of them
    return value


def _check_machine(name: str, wanted: int) -> None:
    import torch  # a second; the commands that only read parameters do without

    present, cores = torch.cuda.device_count(), available_cores()
    if present and wanted > present:
        raise ParameterError(
            f"{name} = {wanted}: this machine has {present}; ask for at most that, or for a bigger allocation"
        )
    if not present and wanted > 8 * cores:
        raise ParameterError(
            f"{name} = {wanted}: without GPUs each rank is a process, and {cores} cores carry at most {8 * cores}"
        )


@lru_cache
def _images(name: str, root: str | None) -> tuple[int, int]:
    """Training and test images of a data set. Raises `DataError`, which is not remembered."""
    from data_prep.staged import read

    arrays = read(name, root).arrays
    return len(arrays["train_labels"]), len(arrays["test_labels"])


def _data_sets(colours: str | None, side: int) -> list[str]:
    """Names of the known data sets whose images are grey (or in colour) and at most `side` pixels wide."""
    from data_prep.catalogue import CATALOGUE
    from data_prep.made_up import MADE_UP

    shapes = {name: entry.image_shape for name, entry in CATALOGUE.items()}
    shapes |= {name: shapes[name.removesuffix("-synthetic")] for name in MADE_UP}
    channels = {"grey": (1,), "colour": (3,), None: (1, 3)}[colours]
    return [name for name, shape in shapes.items() if shape[2] in channels and shape[0] <= side]
