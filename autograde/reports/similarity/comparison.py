"""Answers that are more alike than their class, or like the library: a reason to look and talk, never a grade.

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
    (3) its score is above the class's outer fence, the upper quartile of all pairs' scores plus three interquartile
    ranges (Tukey, *Exploratory Data Analysis*, 1977, section 2D). A class of fewer than `SMALL_CLASS` has no quartiles
    worth the name: no fence, and the weights are as if it were that large.

Answers in words
    The same with words for tokens, in small letters and without punctuation. Six words in a row are hardly ever shared
    by chance, so a flagged pair shares most of its sentences. A text that was put in other words is not seen.

Blind spots
    A copy of the commonplace (10 of 24 copies in the tests' classes), of one exercise, or round a fifth of the class.
    `Similarity` counts what it could not see in this class, and `blind_spots` says it.

The library's own solutions
    `compare_with_library` flags an answer when at least `LIBRARY_FLOOR` of its own fragments, and `LIBRARY_LEAST` of
    them, are in one withheld module. A function of the library that is pasted into an answer runs, and its text is public.
    Tried on the answers in this repository's tests (November 2026): of 74 right and wrong ones, written in many styles,
    one is flagged, a line of sends that is the library's slower way too. Of 293 functions of withheld modules, nine common
    names in them changed, 273 are flagged; those that are not are short.

Libraries tried (November 2026)
    compare50 1.2.15 cannot be installed beside nbformat. copydetect 0.5.0 makes every name V, attributes too: at the same
    rate of wrong pairs it finds 23 to 53 % of 60 disguised copies, six tokens with attributes kept 97 %. Neither knows
    what a whole class writes. Pygments, which both build on, is used here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from math import log2
from statistics import quantiles
from typing import Any

from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Generic, Name, String, Text

__all__ = ["AnswerMatch", "Fragment", "LibraryMatch", "Pair", "Similarity", "compare", "compare_with_library", "cut"]

LENGTH = 6
FLOOR = 0.75
LEAST_BITS = 8.0
SMALL_CLASS = 8
COMMON_SHARE = 0.2
COMMON_STUDENTS = 5
MAX_FLAGGED = 100
LIBRARY_FLOOR = 0.6
LIBRARY_LEAST = 18
MAX_CHARACTERS = 50_000
MAX_LINES = 2_000
MAX_TOKENS = 5_000
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Fragment:
    """A stretch that both wrote: first and last line, from 1; its length; how many students wrote its rarest part."""

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
    """Two students with unusually similar answers: `score` in 0–1, `shared` in bits, and the answers that match, the strongest first."""

    left: str
    right: str
    score: float
    shared: float
    answers: tuple[AnswerMatch, ...]


@dataclass(frozen=True)
class Similarity:
    """The result of comparing a class."""

    # Submissions in the class, and those with something of their own to compare
    students: int
    compared: int
    # Of the scores of all pairs of these; `fence` is 0 in a class too small for one
    median: float
    fence: float
    flagged: tuple[Pair, ...]  # by falling score, at most `MAX_FLAGGED`
    left_out: int = 0  # pairs that the rule flags beyond these
    # What it does not see. `short`: answers of which most students wrote too little of their own for a copy of it alone
    # to be flagged. `too_little`: how many submissions as a whole have too little of their own. `without_reference`:
    # answers to which the course has no solution, so that what everybody may write counts. `cut`: answers whose end was
    # not looked at.
    short: tuple[str, ...] = ()
    too_little: int = 0
    without_reference: tuple[str, ...] = ()
    cut: int = 0


@dataclass(frozen=True)
class LibraryMatch:
    """One answer that is alike a module: `score` is the share of its own fragments that the module has."""

    student: str
    grade_id: str
    module: str
    score: float


def compare(
    answers: Mapping[str, Mapping[str, str]],
    starter: Mapping[str, str],
    reference: Mapping[str, str] | None = None,
    in_words: bool = False,
) -> Similarity:
    """Find the unusually similar pairs; the module's docstring has the rule.

    The result depends on the texts only, not on the order of the mappings. Nothing that a student wrote makes it raise;
    what is beyond `MAX_CHARACTERS`, `MAX_LINES` or `MAX_TOKENS` of an answer is not looked at.

    Parameters
    ----------
    answers : mapping
        Student → grade_id → source. An answer that is missing is an empty one.
    starter : mapping
        grade_id → the starter code. Only these answers are compared.
    in_words : bool
        The answers are prose, not code.
    """
    exercises: dict[str, _Exercise] = {}
    own: dict[str, Counter] = defaultdict(Counter)
    alike: dict[tuple[str, str], Counter] = defaultdict(Counter)
    for grade_id in sorted(starter):
        exercise = exercises[grade_id] = _Exercise(grade_id, answers, starter, reference or {}, in_words)
        for fragment, weight in exercise.weights.items():
            writers = exercise.writers[fragment]
            for student in writers:
                own[student][grade_id] += weight
            for pair in combinations(writers, 2):
                alike[pair][grade_id] += weight

    total = {student: sum(parts.values()) for student, parts in own.items()}
    least = max(LEAST_BITS, log2(max(1, len(total) * (len(total) - 1) // 2)))
    dice = {
        pair: min(1.0, 2 * sum(parts.values()) / (total[pair[0]] + total[pair[1]])) for pair, parts in alike.items()
    }
    median, fence = _quartiles(dice.values(), len(total))
    stands_out = sorted(
        (-score, pair)
        for pair, score in dice.items()
        if score >= FLOOR and score > fence and sum(alike[pair].values()) / LENGTH >= least
    )
    flagged = []
    for negative, (left, right) in stands_out[:MAX_FLAGGED]:
        parts = alike[left, right]
        matches = []
        for grade_id, weight in sorted(parts.items(), key=lambda part: (-part[1], part[0])):
            score = 2 * weight / (own[left][grade_id] + own[right][grade_id])
            both = exercises[grade_id].common(left, right)
            matches.append(AnswerMatch(grade_id, round(score, 4), round(weight / LENGTH, 2), both))
        flagged.append(Pair(left, right, round(-negative, 4), round(sum(parts.values()) / LENGTH, 2), tuple(matches)))
    short = []
    for grade_id, exercise in exercises.items():
        enough = sum(parts[grade_id] / LENGTH >= least for parts in own.values())
        if exercise.answered and 2 * enough < exercise.answered:
            short.append(grade_id)
    return Similarity(
        len(answers),
        len(total),
        round(median, 4),
        round(fence, 4),
        tuple(flagged),
        len(stands_out) - len(flagged),
        tuple(short),
        sum(bits / LENGTH < least for bits in total.values()),
        tuple(grade_id for grade_id, exercise in exercises.items() if not exercise.reference),
        sum(_is_cut(texts.get(grade_id, "")) for texts in answers.values() for grade_id in starter),
    )


def compare_with_library(
    answers: Mapping[str, Mapping[str, str]],
    starter: Mapping[str, str],
    reference: Mapping[str, str],
    library: Mapping[str, str],
) -> list[LibraryMatch]:
    """Find answers that are much like a module of the library, for each the module that is most alike.

    `library` is path → source of the modules that hold solutions. The matches are in order of students and grade_ids.
    """
    matches: list[LibraryMatch] = []
    lexed = {path: _Lexed(source) for path, source in sorted(library.items())}
    for grade_id in sorted(starter):
        exercise = _Exercise(grade_id, answers, starter, reference)
        modules = {path: set(_AnswerTokens(source, exercise.start).fragments) for path, source in lexed.items()}
        for student, tokens in exercise.answers.items():
            own = exercise.uncommon.intersection(tokens.fragments)
            shared = {path: len(own & theirs) for path, theirs in modules.items()}
            path = max(shared, key=shared.__getitem__, default="")
            if shared and shared[path] >= LIBRARY_LEAST and shared[path] >= LIBRARY_FLOOR * len(own):
                matches.append(LibraryMatch(student, grade_id, path, round(shared[path] / len(own), 2)))
    return sorted(matches, key=lambda match: (match.student, match.grade_id))


def cut(source: str) -> str:
    """The part of an answer that is looked at, with ``\\n`` between its lines."""
    text = source[:MAX_CHARACTERS] if isinstance(source, str) else ""
    return "\n".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n", MAX_LINES)[:MAX_LINES])


def _is_cut(source: Any) -> bool:
    return isinstance(source, str) and (
        len(source) > MAX_CHARACTERS or source.count("\n") + source.count("\r") > MAX_LINES
    )


class _Exercise:
    """One exercise of a class.

    Attributes
    ----------
    answers : dict of str to _AnswerTokens
        By student.
    writers : dict of tuple to list of str
        For each fragment that neither the starter nor the reference has, the students who wrote it.
    uncommon : set of tuple
        Those of these fragments that are not common in the class.
    weights : dict of tuple to float
        Of the uncommon fragments that not everybody wrote.
    answered : int
        How many handed in more than the starter.
    reference : bool
        Whether the course's solution has something that the starter has not.
    """

    def __init__(
        self,
        grade_id: str,
        answers: Mapping[str, Mapping[str, str]],
        starter: Mapping[str, str],
        reference: Mapping[str, str],
        in_words: bool = False,
    ):
        self.start = _StarterTokens.read(starter[grade_id], in_words)
        solution = _AnswerTokens(_Lexed(reference.get(grade_id, ""), in_words), self.start)
        given = self.start.fragments | set(solution.fragments)
        self.reference = len(given) > len(self.start.fragments)
        self.answers = {
            student: _AnswerTokens(_Lexed(answers[student].get(grade_id, ""), in_words), self.start)
            for student in sorted(answers)
        }
        self.writers: dict[tuple, list[str]] = defaultdict(list)
        for student, tokens in self.answers.items():
            for fragment in tokens.fragments:
                if fragment not in given:
                    self.writers[fragment].append(student)
        # Those who handed in the starter are no part of the class in which a fragment can be common.
        self.answered = sum(not self.start.fragments.issuperset(tokens.fragments) for tokens in self.answers.values())
        limit, n = max(COMMON_STUDENTS, COMMON_SHARE * self.answered), max(self.answered, SMALL_CLASS)
        counts = {fragment: len(students) for fragment, students in self.writers.items()}
        self.uncommon = {fragment for fragment, count in counts.items() if count <= limit}
        self.weights = {fragment: log2(n / count) for fragment, count in counts.items() if count <= limit and count < n}

    def common(self, one: str, other: str) -> tuple[Fragment, ...]:
        """What two students share that counts, as runs that are longest first met, none on both sides twice."""
        left, right = self.answers[one], self.answers[other]
        fragments, taken, at = [], set(), 0
        while at < len(left.words):
            run, match = 0, 0
            # A handful of candidates: an answer of one token a thousand times over must not take a million steps.
            for start in islice((p for p in right.fragments.get(left.at(at), ()) if p not in taken), 8):
                length = 0
                while (shared := left.at(at + length)) in self.weights and shared == right.at(start + length):
                    if start + length in taken:
                        break
                    length += 1
                run, match = max((run, match), (length, start), key=lambda it: it[0])
            if run:
                taken.update(range(match, match + run))
                last = run + LENGTH - 2
                lines = left.span(at, at + last), right.span(match, match + last)
                students = min(len(self.writers[left.at(at + step)]) for step in range(run))
                fragments.append(Fragment(*lines, last + 1, students))
            at += max(run, 1)
        return tuple(fragments)


@dataclass(frozen=True)
class _StarterTokens:
    """The tokens of the starter code."""

    names: frozenset[str] = frozenset()
    parameters: Mapping[str, list[str]] = field(default_factory=dict)
    fragments: frozenset[tuple] = frozenset()

    @classmethod
    def read(cls, source: str, in_words: bool = False) -> _StarterTokens:
        lexed = _Lexed(source, in_words)
        bare = cls(frozenset(word for _, kind, word in lexed.tokens if kind in Name), _parameters(lexed.tokens))
        return replace(bare, fragments=frozenset(_AnswerTokens(lexed, bare).fragments))


class _Lexed:
    """The tokens of a source, and the line of each."""

    def __init__(self, source: str, in_words: bool = False):
        text = cut(source)
        self.tokens = _word_tokens(text) if in_words else _tokens(text)
        newlines = [place for place, character in enumerate(text) if character == "\n"]
        self.lines = [bisect_right(newlines, place) + 1 for place, _, _ in self.tokens]


class _AnswerTokens:
    """An answer as tokens in the words of the starter, the line of each, and where each fragment begins."""

    def __init__(self, lexed: _Lexed, start: _StarterTokens):
        self.words = _normalised(lexed.tokens, start)
        self.lines = lexed.lines
        self.fragments: dict[tuple, list[int]] = defaultdict(list)
        for place in range(len(self.words) - LENGTH + 1):
            self.fragments[self.at(place)].append(place)
        handed_out = (place for fragment in start.fragments for place in self.fragments.get(fragment, ()))
        self.given = {place + step for place in handed_out for step in range(LENGTH)}

    def at(self, place: int) -> tuple:
        return tuple(self.words[place : place + LENGTH])

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The lines of a run of tokens, less the starter's at its ends."""
        added = [place for place in range(first, last + 1) if place not in self.given] or [first, last]
        return self.lines[added[0]], self.lines[added[-1]]


def _tokens(text: str) -> list[tuple[int, Any, str]]:
    # get_tokens_unprocessed neither strips nor guesses, so that the places are those of the text.
    kept = []
    for place, kind, word in PythonLexer().get_tokens_unprocessed(text):
        if kind in Comment or kind in Text or kind in String.Doc or not word.strip():
            continue
        if kind in String and kind not in String.Interpol and kept and kept[-1][1] is String:
            continue
        if len(kept) == MAX_TOKENS:
            break
        kept.append((place, String, "S") if kind in String and kind not in String.Interpol else (place, kind, word))
    return kept


def _word_tokens(text: str) -> list[tuple[int, Any, str]]:
    # A kind that no rule about code has an eye on.
    return [(found.start(), Generic, found[0].casefold()) for found in islice(_WORD.finditer(text), MAX_TOKENS)]


def _parameters(tokens: list[tuple[int, Any, str]]) -> dict[str, list[str]]:
    """Function → names of its parameters, in order; the first of a name."""
    parameters: dict[str, list[str]] = {}
    for at, (_, kind, function) in enumerate(tokens):
        if kind not in Name.Function or function in parameters:
            continue
        names, depth, before = [], 0, ""
        for _, kind, word in tokens[at + 1 : at + 200]:
            depth += (word in "([{") - (word in ")]}")
            if depth <= 0:
                break
            if depth == 1 and kind in Name and before in ("(", ",", "*", "**"):
                names.append(word)
            before = word
        parameters[function] = names
    return parameters


def _normalised(tokens: list[tuple[int, Any, str]], start: _StarterTokens) -> list[str]:
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


def _quartiles(scores: Iterable[float], students: int) -> tuple[float, float]:
    """Median and outer fence of all pairs' scores, those that share nothing included."""
    if students < SMALL_CLASS:
        return 0.0, 0.0
    some = list(scores)
    low, median, high = quantiles(some + [0.0] * (students * (students - 1) // 2 - len(some)), n=4)
    return median, high + 3 * (high - low)
