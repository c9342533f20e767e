"""Copies stand out, independent work does not, and nothing that a student wrote runs, raises or reaches the page as HTML."""

import html
import random
import re
import time
from dataclasses import replace
from textwrap import indent

import nbformat
import pytest
from fake_class import Page
from fake_runs import lab_path
from nbgrader.preprocessors import ClearSolutions

from autograde.reports.report.pages import Compared, environment, similarity_page
from autograde.reports.similarity import comparison as module
from autograde.reports.similarity.comparison import compare


def exercises(notebook):
    return {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("solution")
    }


LAB01 = ("ex-train-step", "ex-evaluate", "ex-throughput")  # beside one answer of a few lines
SIGNATURE = 'def speedup_and_efficiency(times, ranks):\n    """The pair (speed-up, efficiency) on `ranks` ranks."""\n'
SHORT = {
    "ex-speedup": SIGNATURE
    + "    ### BEGIN SOLUTION\n    gain = times[1] / times[ranks]\n    return gain, gain / ranks\n    ### END SOLUTION"
}
BLANK = {"ex-speedup": SIGNATURE + "    # YOUR CODE HERE\n    raise NotImplementedError()"}


def of_lab_01(notebook):
    found = exercises(notebook)
    return {grade_id: found[grade_id] for grade_id in LAB01}


SOLVED = of_lab_01(nbformat.read(lab_path(), as_version=4)) | SHORT
STARTER = of_lab_01(ClearSolutions().preprocess(nbformat.read(lab_path(), as_version=4), {})[0]) | BLANK
PLACEHOLDER = re.compile(r"[ \t]+# YOUR CODE HERE\n\s+raise NotImplementedError\(\)")


def independent(seed):
    """One student's answers to lab 01: the real solutions, each choice that people make made anew."""
    r = random.Random(seed)

    def often(*ways):  # the first ways are the usual ones
        return r.choices(ways, [2.0**-i for i in range(len(ways))])[0]

    def any_of(ways):
        return r.choice(ways.split())

    out, loss = any_of("logits outputs out pred y_hat scores"), any_of("loss loss batch_loss l")
    zero = often("optimizer.zero_grad()", "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)")
    step = ["model.train()"] * r.choice((0, 0, 1)) + [f"{out} = model(images)", f"{loss} = loss_fn({out}, labels)"]
    step.insert(r.randrange(len(step) + 1), zero)
    step += [f"{loss}.backward()", "optimizer.step()"]
    step += often(
        [f"return {loss}.detach(), {out}.detach()"],
        [f"return ({loss}.detach(), {out}.detach())"],
        [f"{loss} = {loss}.detach()", f"{out} = {out}.detach()", f"return {loss}, {out}"],
        [f"result = ({loss}.detach(), {out}.detach())", "return result"],
    )

    x, y = often(("images", "labels"), ("x", "y"), ("inputs", "targets"))
    s, c, n = any_of("loss_sum total_loss running"), any_of("correct hits right"), any_of("n count seen")
    size = often(f"len({y})", f"{y}.size(0)", f"{y}.shape[0]", f"len({x})", f"{x}.size(0)")
    guess = often(f"{out}.argmax(1)", f"{out}.argmax(dim=1)", f"torch.argmax({out}, dim=1)", f"{out}.max(1)[1]")
    inner, value = [f"{out} = model({x})"], f"loss_fn({out}, {y}).item()"
    if r.random() < 0.5:
        inner, value = [*inner, f"value = loss_fn({out}, {y})"], "value.item()"
    if r.random() < 0.4:
        inner, guess = [*inner, f"chosen = {guess}"], "chosen"
    equal = often(f"({guess} == {y}).sum().item()", f"int(({guess} == {y}).sum())", f"{guess}.eq({y}).sum().item()")
    sums = [f"{s} += {often(f'{value} * {size}', f'{size} * {value}')}", f"{c} += {equal}", f"{n} += {size}"]
    if r.random() < 0.35:
        r.shuffle(sums)
    evaluate = often(["model.eval()"], ["was = model.training", "model.eval()"])
    evaluate = evaluate + often(
        [f"{s} = 0.0", f"{c} = 0", f"{n} = 0"], [f"{s} = {c} = {n} = 0"], [f"{s}, {c}, {n} = 0, 0, 0"]
    )
    evaluate += [often("with torch.no_grad():", "with torch.no_grad():", "with torch.inference_mode():")]
    evaluate += [f"    for {x}, {y} in batches:", *("        " + line for line in inner + sums)]
    evaluate += ["model.train(was)"] * ("was = model.training" in evaluate)
    evaluate += [often(f"return {s}, {c}, {n}", f"return ({s}, {c}, {n})")]

    clock, i = often("time.perf_counter()", "time.time()", "time.monotonic()"), often("_", "i")
    images, t = often("batch_size * steps", "steps * batch_size", "(steps * batch_size)"), any_of("start t0 begin tic")
    rate = [
        f"for {i} in range(warmup):",
        "    step()",
        "synchronize()",
        f"{t} = {clock}",
        f"for {i} in range(steps):",
        "    step()",
    ]
    rate += ["synchronize()"]
    rate += often(
        [f"return {images} / ({clock} - {t})"],
        [f"took = {clock} - {t}", f"return {images} / took"],
        [f"end = {clock}", f"return {images} / (end - {t})"],
        [f"took = {clock} - {t}", f"total = {images}", "return total / took"],
    )
    gain = often(
        ["s = times[1] / times[ranks]", "e = s / ranks", "return s, e"],
        ["gain = times[1] / times[ranks]", "return gain, gain / ranks"],
        ["base = times[1]", "s = base / times[ranks]", "e = s / ranks", "return s, e"],
    )
    bodies = zip(STARTER, (step, evaluate, rate, gain), strict=True)
    return {g: PLACEHOLDER.sub(lambda _, b=body: indent("\n".join(b), "    "), STARTER[g]) for g, body in bodies}


def disguised(answers):
    """The same with the chosen names and a parameter renamed, sums reordered, comments added and other white space."""
    changed = {}
    for grade_id, source in answers.items():
        head, _, body = source.split('"""')
        chosen = set(re.findall(r"^\s*(\w+) \+?= ", body, re.M)) | set(re.findall(r"\b(value|chosen|took|end)\b", body))
        for number, name in enumerate(sorted(chosen)):
            body = re.sub(rf"(?<![.\w]){name}\b", f"renamed_{number}", body)
        head, body = (re.sub(r"(?<![.\w])model\b", "net", text) for text in (head, body))
        lines = body.split("\n")
        sums = [at for at, line in enumerate(lines) if re.match(r"\s+\w+ (=|\+=) (0$|0\.0$|.*size|.*len\()", line)][-2:]
        if len(sums) == 2 and sums[1] == sums[0] + 1:
            lines[sums[0]], lines[sums[1]] = lines[sums[1]], lines[sums[0]]
        lines = [
            line.replace("    ", "  ").replace(" = ", "=").replace(", ", " , ") + "  # mine" for line in lines if line
        ]
        changed[grade_id] = f'{head}"""Not the same docstring."""\n' + "\n\n".join(lines)
    return changed


def a_class(size=40, seed=0):
    return {f"s{number:03d}": independent(1000 * seed + number) for number in range(size)}


def compare_lab(answers):
    return compare(answers, STARTER, SOLVED)


def names(found):
    return {frozenset((pair.left, pair.right)) for pair in found.flagged}


def test_independent_work_is_hardly_ever_flagged():
    # Stated rate: at most one pair in four classes of 40, of 3120 pairs. Here people have few ways to choose from.
    found = [compare_lab(a_class(seed=seed)) for seed in range(4)]
    assert all(one.students == 40 and one.compared >= 35 for one in found)
    assert sum(len(one.flagged) for one in found) <= 1


def test_a_disguise_hides_no_copy():
    # What is seen of a verbatim copy is seen of a disguised one. Of 12, 9 when written: the others' is commonplace.
    seen = verbatim = 0
    for seed in range(2):
        answers = a_class(seed=seed)
        for number in range(6):
            victim = f"s{number:03d}"
            seen += {victim, "copy"} in names(compare_lab(answers | {"copy": disguised(answers[victim])}))
            verbatim += {victim, "copy"} in names(compare_lab(answers | {"copy": answers[victim]}))
    assert seen >= 8 and seen >= verbatim - 1


@pytest.fixture(scope="module")
def with_copy():
    """A class, one student of which wrote something unusual that another handed in disguised."""
    answers = a_class(seed=2)
    answers["ann"] = dict(independent(1))
    answers["ann"]["ex-speedup"] = (
        "def speedup_and_efficiency(times, ranks):\n    alone = times.get(1)\n    gain = alone / times.get(ranks)\n"
        "    both = [gain, gain]\n    both[1] = both[1] * (1 / ranks)\n    return tuple(both)\n"
    )
    answers["bob"] = disguised(
        answers["ann"] | {"ex-speedup": answers["ann"]["ex-speedup"].replace("):\n", '):\n    """D."""\n', 1)}
    )
    return answers, compare_lab(answers)


def test_the_evidence_names_answers_and_lines(with_copy):
    answers, found = with_copy
    assert names(found) == {frozenset(("ann", "bob"))}
    (pair,) = found.flagged
    assert pair.score >= module.FLOOR and pair.score > found.fence > found.median
    match = next(match for match in pair.answers if match.grade_id == "ex-speedup")
    assert match.score > 0.9 and {part.students for part in match.fragments} == {2}
    ann, bob = (answers[name]["ex-speedup"].split("\n") for name in ("ann", "bob"))
    for part in match.fragments:
        assert 1 <= part.left[0] <= part.left[1] <= len(ann) and 1 <= part.right[0] <= part.right[1] <= len(bob)
    # The odd line, line 5 of hers, is in the evidence opposite to its renamed twin.
    part = next(part for part in match.fragments if part.left[0] <= 5 <= part.left[1])
    assert "* (1 / ranks)" in ann[4]
    assert "* (1 / ranks)" in "\n".join(bob[part.right[0] - 1 : part.right[1]])


def test_the_order_of_students_does_not_matter(with_copy):
    answers, found = with_copy
    shuffled = list(answers)
    random.Random(0).shuffle(shuffled)
    for order in (shuffled, shuffled[::-1]):
        assert compare_lab({name: answers[name] for name in order}) == found


def test_only_so_much_of_an_answer_is_looked_at():
    assert len(module.cut("a" * 1_000_000)) == 50_000
    assert module.cut("x\r\ny\r" * 2_000).split("\n") == ["x", "y"] * 1_000


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize(
    "handed_in", [STARTER, SOLVED, dict.fromkeys(STARTER, ""), {}], ids=["starter", "reference", "empty", "none"]
)
def test_what_was_given_to_everybody_is_no_copy(handed_in, count):
    alike = {f"t{number}": handed_in for number in range(count)}
    assert compare_lab(alike).flagged == compare_lab(a_class(20) | alike).flagged == ()


UNUSUAL = "".join(f"    odd_{n} = times.popitem()[{n}] ** -ranks\n" for n in range(9)) + "    return odd_1, odd_2\n"


@pytest.mark.parametrize(("writers", "flagged"), [(2, 1), (5, 10), (12, 0)])
def test_what_many_write_is_no_sign(writers, flagged):
    """A stretch that everybody took from the lecture counts nothing, beyond a fifth of the class."""
    lecture = {"ex-speedup": "def speedup_and_efficiency(times, ranks):\n" + UNUSUAL}
    assert len(compare_lab(a_class(28) | {f"t{number}": lecture for number in range(writers)}).flagged) == flagged


HOSTILE = {
    "no Python": "def f(:\n  '''\n)]} \\ 0777 ? $ `" * 30,
    "one line": "x = (1 + 2) * [3] ; " * 50_000,
    "a token": "a" * 1_000_000,
    "nested": "(" * 1_000_000,
    "NULs": "def f(x):\n\0\0 return x\0" * 200,
    "surrogates": "\ud800 = '\udfff'\n\u202e\u2028\x0b\x0c\r" * 200,
    "runs": "import os; os.abort()\nraise SystemExit(f'{os.abort()}')\n" * 30,
    "tabs": "\t" * 100_000 + "x\n" * 100_000,
    "page": "x = '</td></table><script>alert(1)</script><img src=x onerror=alert(1)>' # --> {{ 7 * 7 }} ]]>\ny.z(x, 'a\"b')[0] = x ** 2\n" * 4,
    "no text": None,
}  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_nothing_a_student_wrote_raises_or_makes_a_page_large(source):
    answers = a_class(12) | {name: dict.fromkeys(STARTER, source) for name in ("eve", "mallory")}
    page = draw(compare_lab(answers), answers)
    assert len(page) < 4_000_000 and page.endswith("</html>")


def test_a_class_of_200_takes_seconds():
    answers = a_class(200)
    start = time.process_time()
    compare_lab(answers)
    assert time.process_time() - start < 30  # some 1 s on one core; the bound is the promise


def draw(result, answers):
    return similarity_page(environment(), Compared(result, answers))


def test_student_text_makes_no_element_and_no_attribute(tmp_path):
    lines = UNUSUAL.replace("popitem()", "popitem(TEXT)").replace("\n", "  # TEXT\n")

    def page(text, name):
        answers = {
            f"{name}{number}": {"ex-speedup": "def f(t):\n" + lines.replace("TEXT", text)} for number in range(2)
        }
        result = compare_lab(answers)
        assert len(result.flagged) == 1
        (tmp_path / "page.html").write_text(draw(result, answers))
        return Page(tmp_path / "page.html")

    evil = """'</mark></td></table><script src="//e">alert(1)</script><img onerror=x>" onload="x" {{ 7 * 7 }} &lt;'"""
    name = "<b onclick='x'>&\""
    plain, attacked = page("'plain'", "plain"), page(evil, name)
    assert attacked.tags == plain.tags
    assert evil in attacked.text and name in attacked.text and "49 }}" not in attacked.text
    assert {tag for tag, _ in attacked.tags}.isdisjoint({"script", "img", "link", "iframe", "a"})
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert attacked.all("meta", content=policy, **{"http-equiv": "Content-Security-Policy"})


def test_the_page_shows_both_sides_with_matching_lines_marked(with_copy):
    answers, result = with_copy
    page = draw(result, answers)
    marked = [html.unescape(line) for line in re.findall(r"<mark>(.*?)</mark>", page)]
    match = next(match for match in result.flagged[0].answers if match.grade_id == "ex-speedup")
    for student, side in (("ann", "left"), ("bob", "right")):
        lines = answers[student]["ex-speedup"].split("\n")
        for first, last in (getattr(part, side) for part in match.fragments):
            assert set(lines[first - 1 : last]) <= set(marked), student
    assert not any("speedup_and_efficiency" in line for line in marked), "the starter's line is no match"
    assert "a reason to look and to talk, not a verdict" in page and "How the score is made" in page


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fence": 0.99}, "<b>No pair is flagged.</b>"),
        ({"fence": 1.6}, "<b>Similarity cannot flag anything in this class</b>: no score is above 1"),
        ({"compared": 1}, "<b>Similarity cannot flag anything in this class</b>: there are no two answers"),
    ],
)
def test_the_page_says_where_nothing_can_be_flagged(with_copy, changes, expected):
    answers, result = with_copy
    page = draw(replace(result, flagged=(), **changes), answers)
    assert expected in page and page.count("flagged.</b>") + page.count("cannot flag") == 1
