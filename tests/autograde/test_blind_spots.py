"""Answers in words are compared, and the page of similar submissions says what the comparison could not see."""

import random

import pytest

from autograde.reports.report.pages import Compared, environment, similarity_page
from autograde.reports.similarity.blind_spots import blind_spots
from autograde.reports.similarity.comparison import MAX_CHARACTERS, Similarity, compare

WORDS = [
    "batch",
    "gradient",
    "epoch",
    "device",
    "memory",
    "launch",
    "cost",
    "kernel",
    "grows",
    "falls",
    "because",
    "first",
    "second",
    "loader",
    "page",
    "cache",
    "image",
    "measure",
    "twice",
    "mean",
    "rate",
    "noise",
    "limit",
    "knee",
    "throughput",
    "double",
    "half",
    "steady",
    "warm",
    "cold",
    "queue",
    "thread",
    "core",
    "step",
    "weight",
]
STARTER = {"q-knee": "YOUR ANSWER HERE", "q-first": "YOUR ANSWER HERE"}
REFERENCE = {
    "q-knee": "The launch cost stays and the knee moves to ten times the batch.",
    "q-first": "It ran cold, and the second run was warm.",
}


def sentences(seed, count=5):
    r = random.Random(seed)
    return " ".join(" ".join(r.choices(WORDS, k=12)).capitalize() + "." for _ in range(count))


def a_class(size=20):
    return {f"s{n:02d}": {"q-knee": sentences(n), "q-first": sentences(1000 + n)} for n in range(size)}


def flagged(answers, **settings):
    return [(pair.left, pair.right) for pair in compare(answers, STARTER, REFERENCE, in_words=True, **settings).flagged]


def test_a_copied_text_is_flagged_and_texts_of_one_s_own_and_the_given_ones_are_not():
    answers = a_class()
    assert flagged(answers) == []
    copy = {name: text.upper().replace(".", " !\n\n") for name, text in answers["s03"].items()}
    assert flagged(answers | {"copy": copy}) == [("copy", "s03")]
    for text in ("YOUR ANSWER HERE", "", REFERENCE["q-knee"]):
        given = {"t1": dict.fromkeys(STARTER, text), "t2": dict.fromkeys(STARTER, text)}
        assert flagged(answers | given) == []
    # Code's rules would drop these words: a comment, a name that the student chose.
    hidden = {name: {key: "# " + text for key, text in texts.items()} for name, texts in answers.items()}
    assert flagged(hidden | {"copy": hidden["s03"]}) == [("copy", "s03")]
    found = compare(answers | {"copy": copy}, STARTER, REFERENCE, in_words=True)
    (match, _) = found.flagged[0].answers
    assert match.score == 1 and match.fragments[0].left[0] == 1


@pytest.mark.parametrize("text", ["\ud800 \u202e" * 9, "a" * 200_000, None, "<script>alert(1)</script> " * 50])
def test_no_text_raises_or_reaches_the_page_as_html(text):
    answers = a_class(9) | {name: dict.fromkeys(STARTER, text) for name in ("eve", "mallory")}
    found = compare(answers, STARTER, REFERENCE, in_words=True)
    page = similarity_page(environment(), Compared(found, answers, blind_spots(found, 11, 2, True), True))
    assert "<script" not in page and page.endswith("</html>")


def test_each_blind_spot_is_said_and_a_comparison_that_sees_says_none():
    answers = a_class()
    sees = compare(answers, STARTER, REFERENCE, in_words=True)
    assert blind_spots(sees, 20, 2, in_words=True) == [
        "A text that was put in other words, or translated, is not seen."
    ]
    assert blind_spots(sees, 20, 2) == []
    assert blind_spots(Similarity(0, 0, 0, 0, ()), 20, 0) == [
        "The lab asks for no answers in code, so none are compared."
    ]
    assert "3 of 23 notebooks could not be read" in blind_spots(sees, 23, 2)[0]

    few = compare(a_class(4), STARTER, REFERENCE, in_words=True)
    assert blind_spots(few, 4, 2)[0].startswith("Only 4 submissions have something of their own: with fewer than 8")

    short = {
        name: {"q-knee": sentences(n, 1)[:40], "q-first": text["q-first"]}
        for n, (name, text) in enumerate(answers.items())
    }
    found = compare(short, STARTER, REFERENCE, in_words=True)
    assert found.short == ("q-knee",) and found.too_little == 0
    assert "Too short or too common in this class: q-knee." in blind_spots(found, 20, 2)[0]
    # It is true: a copy of this answer alone is not flagged; of the other one alone it would be.
    same = {
        "copy": {"q-knee": short["s03"]["q-knee"], "q-first": ""},
        "victim": {"q-knee": short["s03"]["q-knee"], "q-first": ""},
    }
    del short["s03"]
    assert flagged(short | same) == []

    tiny = {name: {"q-knee": texts["q-knee"][:60], "q-first": ""} for name, texts in answers.items()}
    found = compare(tiny, STARTER, REFERENCE, in_words=True)
    assert found.too_little == found.compared == 20
    assert any("20 of 20 submissions have so little of their own" in line for line in blind_spots(found, 20, 2))

    found = compare(answers, STARTER, {"q-knee": REFERENCE["q-knee"]}, in_words=True)
    assert found.without_reference == ("q-first",)
    assert "The source notebook has no solution to q-first" in blind_spots(found, 20, 2)[0]

    found = compare(answers | {"long": {"q-knee": "word " * MAX_CHARACTERS}}, STARTER, REFERENCE, in_words=True)
    assert found.cut == 1 and "Of 1 very long answers" in blind_spots(found, 21, 2)[-1]


def test_the_page_has_both_kinds_and_what_each_did_not_see():
    words, code = a_class(), {name: {} for name in a_class()}
    in_words, in_code = compare(words, STARTER, REFERENCE, in_words=True), compare(code, {}, {})
    page = similarity_page(
        environment(),
        Compared(in_code, code, blind_spots(in_code, 20, 0)),
        Compared(in_words, words, blind_spots(in_words, 20, 2, True), True),
    )
    assert (
        page.index("Answers in code") < page.index("asks for no answers in code") < page.index("Answers in words</h2>")
    )
    assert "put in other words, or translated" in page and "A copy from an earlier year" in page
