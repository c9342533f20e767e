"""Pairs of submissions that are more alike than their class: a reason to look and talk, never a grade.

Fragments
    Pygments cuts an answer into tokens; nothing is compiled or run. Comments, docstrings and white space are dropped, a
    string is any string, and a name that the student chose is any name. Names of attributes, of what is called and of the
    starter code stay, and the starter's parameters keep theirs when a student renames them in place. A *fragment* is
    `LENGTH` tokens in a row (k-gram fingerprints; Schleimer, Wilkerson and Aiken, "Winnowing", SIGMOD 2003, section 2.
    The exercises have some 50 tokens, so all are kept, which is winnowing with a window of 1).

What counts
    Nothing that the starter code or the reference solution has, and nothing that more than a fifth of the class wrote
    if that is more than five students. Any other fragment weighs log2(n / m), for m of the n who answered.

The rule
    A pair's score is twice the weight of the fragments both have over the sum of each one's own (Dice), all answers
    together; the former weight, divided by `LENGTH` since a rare token is in so many fragments, is what they share in
    bits. A pair is flagged when
    (1) its score is at least `FLOOR`;
    (2) it shares at least `LEAST_BITS`, and log2 of the number of pairs: the larger the class, the more two agree by
    chance;
    (3) its score lies beyond the class's outer fence, the upper quartile of all pairs' scores plus three interquartile
    ranges (Tukey, *Exploratory Data Analysis*, 1977, section 2D). A class of fewer than `SMALL_CLASS` has no quartiles
    worth the name: no fence, and the weights are as if it were that large.

Blind spots
    A copy of what everybody writes, one of a single exercise among several, one handed round a fifth of the class.

Libraries tried (November 2026, Python 3.11, one core; a made-up class of 200, the four answers of lab 01 each)
    compare50 1.2.15 cannot be installed beside nbformat: it wants attrs < 21, jsonschema attrs >= 22.2. It is GPL, pulls
    in lib50 (requests, cryptography, pexpect) and starts a process pool; 4 s. Its fragments of 25 tokens are as long as
    most of these answers.
    copydetect 0.5.0 (its last release, March 2024): 0.9 s for the fingerprints, 6.5 s for the pairs, 0.5 s to import, as
    it imports matplotlib.pyplot. It makes every name V, attributes too: with the weights above, and the score's threshold
    where one wrong pair is flagged in twelve classes of 40, it finds 23 to 53 % of 60 disguised copies (fragments of 12
    to 8 characters), six tokens with attributes kept 97 %. Its boilerplate option drops repeats that are no boilerplate,
    and its winnowing differs from process to process (it compares `hash` of str).
    Neither knows what a whole class writes. So: Pygments, which both build on, and the few lines below.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from math import log2
from statistics import quantiles
from typing import Any

from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Name, String, Text

__all__ = ["AnswerMatch", "Fragment", "Pair", "Similarity", "compare", "cut"]

LENGTH = 6
FLOOR = 0.75
LEAST_BITS = 8.0
SMALL_CLASS = 8
COMMON_SHARE = 0.2
COMMON_STUDENTS = 5
MAX_FLAGGED = 100
MAX_CHARACTERS = 50_000
MAX_LINES = 2_000


@dataclass(frozen=True)
class Fragment:
    """A stretch that both wrote. Lines count from 1, the last included; `tokens` is its length.

    `students` is how many of the class wrote its rarest part, these two included.
    """

    left: tuple[int, int]
    right: tuple[int, int]
    tokens: int
    students: int


@dataclass(frozen=True)
class AnswerMatch:
    """One answer of a pair: `score` as the pair's but of this answer alone, `shared` its part of the bits."""

    grade_id: str
    score: float
    shared: float
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True)
class Pair:
    """Two students who stand out: `score` in 0–1, `shared` in bits, and the answers that match, the strongest first."""

    left: str
    right: str
    score: float
    shared: float
    answers: tuple[AnswerMatch, ...]


@dataclass(frozen=True)
class Similarity:
    """What comparing a class came to.

    Attributes
    ----------
    students : int
        Submissions in the class.
    compared : int
        Those with something of their own to compare.
    median, fence : float
        Of the scores of all pairs of these; `fence` is 0 in a class too small for one.
    flagged : tuple of Pair
        By falling score, at most `MAX_FLAGGED`.
    left_out : int
        Pairs that the rule flags beyond these.
    """

    students: int
    compared: int
    median: float
    fence: float
    flagged: tuple[Pair, ...]
    left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_json(cls, whole: Mapping[str, Any]) -> Similarity:
        """The inverse of `to_json`, also after a round trip through text.

        Raises
        ------
        KeyError, TypeError
            If a field is missing or unknown.
        """
        fields = {name: whole[name] for name in cls.__dataclass_fields__}
        fields["flagged"] = tuple(_pair_from_json(pair) for pair in whole["flagged"])
        return cls(**fields)


def compare(
    answers: Mapping[str, Mapping[str, str]],
    starter: Mapping[str, str],
    reference: Mapping[str, str] | None = None,
    *,
    common_share: float = COMMON_SHARE,
    common_students: int = COMMON_STUDENTS,
    floor: float = FLOOR,
    least_bits: float = LEAST_BITS,
) -> Similarity:
    """Find the pairs that stand out; the module's docstring has the rule.

    The result depends on the texts only, not on the order of the mappings. Nothing that a student wrote makes it raise;
    what is beyond `MAX_CHARACTERS` or `MAX_LINES` of an answer is not looked at.

    Parameters
    ----------
    answers : mapping
        Student → grade_id → source. An answer that is missing is an empty one.
    starter : mapping
        grade_id → the source as handed out. Only these answers are compared.
    reference : mapping, optional
        grade_id → the course's own solution.
    common_share, common_students : float, int
        A fragment is common when more than this share of those who answered, and more than this many, wrote it.
    floor, least_bits : float
        The least score, and the least shared weight in bits, of a flagged pair.

    Returns
    -------
    Similarity
    """
    read: dict[str, dict[str, _Answer]] = {student: {} for student in sorted(answers)}
    weights: dict[str, dict[tuple, float]] = {}
    writers: dict[str, Counter] = {}
    for grade_id in sorted(starter):
        start = _Starter.read(starter[grade_id])
        given = start.fragments | set(_Answer((reference or {}).get(grade_id, ""), start).fragments)
        for student, row in read.items():
            row[grade_id] = _Answer(answers[student].get(grade_id, ""), start)
        # Those who handed in the starter are no part of the class in which a fragment can be common.
        answered = sum(not start.fragments.issuperset(row[grade_id].fragments) for row in read.values())
        count = Counter(fragment for row in read.values() for fragment in row[grade_id].fragments)
        limit, n = max(common_students, common_share * answered), max(answered, SMALL_CLASS)
        writers[grade_id] = count
        weights[grade_id] = {
            fragment: log2(n / m) for fragment, m in count.items() if m <= limit and m < n and fragment not in given
        }

    own: dict[str, Counter] = {
        student: Counter({g: sum(weights[g].get(f, 0.0) for f in answer.fragments) for g, answer in row.items()})
        for student, row in read.items()
    }
    total = {student: sum(parts.values()) for student, parts in own.items()}
    alike = _shared_weights(read, weights)
    students = [student for student in read if total[student] > 0]
    chance = log2(max(1, len(students) * (len(students) - 1) // 2))
    dice = {
        pair: min(1.0, 2 * sum(parts.values()) / (total[pair[0]] + total[pair[1]])) for pair, parts in alike.items()
    }
    median, fence = _quartiles(dice.values(), len(students))
    stands_out = sorted(
        (-score, pair)
        for pair, score in dice.items()
        if score >= floor and score > fence and sum(alike[pair].values()) / LENGTH >= max(least_bits, chance)
    )
    flagged = []
    for score, (left, right) in stands_out[:MAX_FLAGGED]:
        parts = alike[left, right]
        matches = [
            AnswerMatch(
                grade_id,
                round(2 * weight / (own[left][grade_id] + own[right][grade_id]), 4),
                round(weight / LENGTH, 2),
                _fragments(read[left][grade_id], read[right][grade_id], weights[grade_id], writers[grade_id]),
            )
            for grade_id, weight in sorted(parts.items(), key=lambda part: (-part[1], part[0]))
        ]
        flagged.append(Pair(left, right, round(-score, 4), round(sum(parts.values()) / LENGTH, 2), tuple(matches)))
    left_out = len(stands_out) - len(flagged)
    return Similarity(len(read), len(students), round(median, 4), round(fence, 4), tuple(flagged), left_out)


def cut(source: str) -> str:
    """The part of an answer that is looked at, with ``\\n`` between its lines."""
    text = source[:MAX_CHARACTERS] if isinstance(source, str) else ""
    return "\n".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n", MAX_LINES)[:MAX_LINES])


@dataclass(frozen=True)
class _Starter:
    """What an answer was handed out with."""

    names: frozenset[str] = frozenset()
    parameters: Mapping[str, list[str]] = field(default_factory=dict)
    fragments: frozenset[tuple] = frozenset()

    @classmethod
    def read(cls, source: str) -> _Starter:
        tokens = _tokens(cut(source))
        bare = cls(frozenset(word for _, kind, word in tokens if kind in Name), _parameters(tokens))
        return replace(bare, fragments=frozenset(_Answer(source, bare).fragments))


class _Answer:
    """An answer as tokens, the line of each, and where each fragment begins."""

    def __init__(self, source: str, start: _Starter):
        text = cut(source)
        tokens = _tokens(text)
        self.words = _normalised(tokens, start)
        newlines = [place for place, character in enumerate(text) if character == "\n"]
        self.lines = [bisect_right(newlines, place) + 1 for place, _, _ in tokens]
        self.fragments: dict[tuple, list[int]] = defaultdict(list)
        for place in range(len(self.words) - LENGTH + 1):
            self.fragments[tuple(self.words[place : place + LENGTH])].append(place)


def _tokens(text: str) -> list[tuple[int, Any, str]]:
    # get_tokens_unprocessed neither strips nor guesses, so that the places are those of the text.
    kept = []
    for place, kind, word in PythonLexer().get_tokens_unprocessed(text):
        if kind in Comment or kind in Text or kind in String.Doc or not word.strip():
            continue
        if kind in String and kind not in String.Interpol and kept and kept[-1][1] is String:
            continue
        kept.append((place, String, "S") if kind in String and kind not in String.Interpol else (place, kind, word))
    return kept


def _parameters(tokens: list[tuple[int, Any, str]]) -> dict[str, list[str]]:
    """Function → names of its parameters, in order; the first of a name."""
    found: dict[str, list[str]] = {}
    for at, (_, kind, function) in enumerate(tokens):
        if kind not in Name.Function or function in found:
            continue
        names, depth, before = [], 0, ""
        for _, kind, word in tokens[at + 1 : at + 200]:
            depth += (word in "([{") - (word in ")]}")
            if depth <= 0:
                break
            if depth == 1 and kind in Name and before in ("(", ",", "*", "**"):
                names.append(word)
            before = word
        found[function] = names
    return found


def _normalised(tokens: list[tuple[int, Any, str]], start: _Starter) -> list[str]:
    """The tokens' words, with V for the names that a student chose."""
    ours = {
        mine: given
        for function, names in _parameters(tokens).items()
        for mine, given in zip(names, start.parameters.get(function, ()), strict=False)
        if len(names) == len(start.parameters[function])
    }
    words: list[str] = []
    for at, (_, kind, word) in enumerate(tokens):
        attribute = words and words[-1] == "."
        called = at + 1 < len(tokens) and tokens[at + 1][2] == "("
        if kind not in Name or kind in Name.Builtin or kind in Name.Namespace or attribute:
            words.append(word)
        elif word in ours:
            words.append(ours[word])
        else:
            words.append(word if called or word in start.names else "V")
    return words


def _shared_weights(
    read: Mapping[str, Mapping[str, _Answer]], weights: Mapping[str, Mapping[tuple, float]]
) -> dict[tuple[str, str], Counter]:
    """Pair → grade_id → weight of the fragments both have. Common ones weigh nothing, so few pairs meet in each."""
    alike: dict[tuple[str, str], Counter] = defaultdict(Counter)
    for grade_id, weight in weights.items():
        having: dict[tuple, list[str]] = defaultdict(list)
        for student, row in read.items():
            for fragment in row[grade_id].fragments:
                if fragment in weight:
                    having[fragment].append(student)
        for fragment, students in having.items():
            for pair in combinations(students, 2):
                alike[pair][grade_id] += weight[fragment]
    return alike


def _quartiles(scores: Iterable[float], students: int) -> tuple[float, float]:
    """Median and outer fence of all pairs' scores, those that share nothing included."""
    if students < SMALL_CLASS:
        return 0.0, 0.0
    some = list(scores)
    low, median, high = quantiles(some + [0.0] * (students * (students - 1) // 2 - len(some)), n=4)
    return median, high + 3 * (high - low)


def _fragments(
    left: _Answer, right: _Answer, weight: Mapping[tuple, float], writers: Mapping[tuple, int]
) -> tuple[Fragment, ...]:
    """What the two share that counts, as runs that are longest first met, none on both sides twice."""
    found, taken, at = [], set(), 0
    while at < len(left.words):
        best = (0, 0)
        # A handful of candidates: an answer of one token a thousand times over must not take a million steps.
        for other in [p for p in right.fragments.get(_at(left, at), ()) if p not in taken][:8]:
            run = 0
            while (shared := _at(left, at + run)) in weight and shared == _at(right, other + run):
                if other + run in taken:
                    break
                run += 1
            best = max(best, (run, -other))
        run, other = best[0], -best[1]
        if run:
            taken.update(range(other, other + run))
            last = run + LENGTH - 2
            found.append(
                Fragment(
                    (left.lines[at], left.lines[at + last]),
                    (right.lines[other], right.lines[other + last]),
                    last + 1,
                    min(writers[_at(left, at + step)] for step in range(run)),
                )
            )
        at += max(run, 1)
    return tuple(found)


def _at(answer: _Answer, place: int) -> tuple:
    return tuple(answer.words[place : place + LENGTH])


def _pair_from_json(pair: Mapping[str, Any]) -> Pair:
    answers = []
    for match in pair["answers"]:
        fragments = [
            Fragment(**part | {"left": tuple(part["left"]), "right": tuple(part["right"])})
            for part in match["fragments"]
        ]
        answers.append(AnswerMatch(**match | {"fragments": tuple(fragments)}))
    return Pair(**pair | {"answers": tuple(answers)})
