"""The instructor's page on a class: its figures are right, it is well-formed, and it fetches and runs nothing."""

import re
from dataclasses import replace
from urllib.parse import unquote, urlsplit

import pytest
from fake_class import FINAL, LAB, OTHER, RECORD, RETURNS, RUN, UPDATE, Page, verdict

import autograde.reports.report as report
from autograde.gradebook.scores import LabPoints
from autograde.reports.export.scores import StudentScore
from autograde.reports.report import ReportError, write_report
from autograde.reports.report.curves import class_median
from autograde.reports.report.histogram import score_histogram
from autograde.rubric.verdict import FLAGS, Flag, RunSummary, verdict_path


def page_of(two_labs, *verdicts, labs=(LAB,)):
    for one in verdicts:
        one.save(two_labs)
    return Page(write_report(list(labs), two_labs, two_labs / "reports" / "page.html"))


def test_every_page_is_well_formed_and_fetches_and_runs_nothing(two_labs):
    main = page_of(two_labs, verdict("ada"), verdict("bob", [FINAL], flags=(Flag("crash", "x"),), sandbox="none"))
    for page in (main, *map(Page, (two_labs / "reports" / LAB).iterdir())):
        names = {tag for tag, _ in page.tags}
        assert not names & {"script", "img", "iframe", "link", "object", "embed", "form", "base", "use", "image"}
        assert not [name for _, attributes in page.tags for name, _ in attributes if name.startswith("on")]
        assert not [name for _, attributes in page.tags for name, _ in attributes if name in ("src", "xlink:href")]
        policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
        assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'")
        assert not re.search(r"url\(|@import|https?://", page.html)
        ids = [dict(attributes)["id"] for _, attributes in page.tags if "id" in dict(attributes)]
        assert len(ids) == len(set(ids))
        assert "published" in page.text


@pytest.mark.parametrize("out", ["reports/page.html", "../a b#c.html", "x: y/page.html"])
def test_every_link_leads_to_something_that_is_there(two_labs, out):
    for student in ("ada", "b.o@b-", "eve"):
        verdict(student, flags=(Flag("crash", "x"),)).save(two_labs)
    for lab in (LAB, OTHER):
        verdict("ada", lab=lab).save(two_labs)
    path = write_report([LAB, OTHER], two_labs, two_labs / out)
    pages = [Page(path), *map(Page, path.parent.glob("*/*.html"))]
    assert len(pages) == 1 + 3 + 1
    for page in pages:
        for link in page.all("a"):
            address = urlsplit(link["href"])
            assert not address.scheme and not address.netloc
            target = (page.path.parent / unquote(address.path)).resolve() if address.path else page.path
            assert target.is_file()
            if address.fragment:
                assert any(dict(attributes).get("id") == address.fragment for _, attributes in Page(target).tags)
    for words in ("Similar submissions", "Lab 01 On one GPU", "Lab 02 On many"):
        assert words in pages[0].text
    assert pages[0].html.count("_similarity.html") == 2  # a page for each lab


def test_the_figures_are_those_of_the_class(two_labs):
    page = page_of(
        two_labs,
        verdict("ada"),
        verdict("bob", [FINAL]),
        verdict("eve", [FINAL, UPDATE, RETURNS, RECORD], run=RunSummary()),
        verdict("ian", [UPDATE, FINAL]),
    )
    # 10, 6, 0 and 3 of 10 points: the median is 4.5.
    for figure in ("Submissions 4", "Median score 4.5 of 10", "Full marks 1", "No points 1", "Students with flags 0"):
        assert figure in page.text
    # The middle two are 4 and 1 of the exercise's 4 points, and 2 and 2 of the evidence's 6.
    assert "check-train-step 4 points · median 2.5 · full marks 2 of 4" in page.text
    assert "What update is about 3 p. 2 of 4" in page.text
    assert "What returns is about 1 p. 3 of 4" in page.text
    assert "run-evidence 6 points · median 2 · full marks 1 of 4" in page.text
    assert "The run is told 2 p. 3 of 4" in page.text
    assert "Final accuracy reaches 0.85 4 p. 1 of 4" in page.text
    widths = [span["style"] for span in page.all("span") if span.get("style", "").startswith("width")]
    assert widths == [f"width:{share}%" for share in ("50.0", "75.0", "75.0", "25.0")]
    assert "fashion-mnist, official, source Debian package (3 runs)" in page.text
    row = re.search(r"<tr>\s*<th scope=\"row\"><a[^>]*>ian</a>.*?</tr>", page.html, re.DOTALL)[0]
    assert " ".join(re.sub("<[^>]*>", " ", row).split()) == "ian 3 1 2 0.876 0.862 2 24.0 s 1 –"


def test_students_stand_in_order_of_their_ids(two_labs):
    page = page_of(two_labs, *(verdict(student) for student in ("zoe", "ada.b", "ada", "Bob", "ada-b")))
    assert re.findall(r'scope="row"><a[^>]*>([^<]*)<', page.html) == sorted(["zoe", "ada.b", "ada", "Bob", "ada-b"])


@pytest.mark.parametrize(
    ("by_hand", "others", "told"),
    [
        (12, 0, "Of the lab's 22 points, 12 are for hand grading. Data"),
        (1, 0, "Of the lab's 11 points, 1 is for hand grading. Data"),
        (0, 0, "No points are for hand grading. Data"),
        (12, 3, "Of the lab's 25 points, 12 are for hand grading. 3 more are scored by nbgrader autograde. Data"),
        (0, 1, "No points are for hand grading. 1 more is scored by nbgrader autograde. Data"),
    ],
)
def test_what_is_for_hand_grading_is_told(two_labs, monkeypatch, by_hand, others, told):
    monkeypatch.setattr(report, "_in_gradebook", lambda *_: (LabPoints(6, 4, others, by_hand), {}, []))
    text = page_of(two_labs, verdict("ada")).text
    assert "automatic: 4 points of exercises and 6 of run evidence, 10 together." in text
    assert told in text


@pytest.mark.parametrize(
    ("by_hand", "unread", "again", "told", "own"),
    [
        (5, 0, 0, "No answer waits for a mark.", "No answer waits for a mark."),
        (0, 0, 0, "No points are for hand grading. Data", "Criteria"),
        (5, 1, 0, "1 answer waits for a mark. Data", "1 answer waits for a mark; the final score is without it."),
        (5, 2, 1, "2 answers wait for a mark. 1 mark waits for a second look. Data",
         "2 answers wait for a mark; the final score is without them. 1 mark waits for a second look; the final score "
         "counts it as it is."),
        (0, 0, 2, "2 marks wait for a second look. Data",
         "2 marks wait for a second look; the final score counts them as they are."),
    ],
)  # fmt: skip
def test_what_waits_is_told_in_true_sentences(two_labs, monkeypatch, by_hand, unread, again, told, own):
    score = StudentScore("ada", None, None, None, True, raw=9, unread=unread, again=again)
    # Who has no verdict is on no page, and is not counted.
    scores = {"ada": score, "zoe": replace(score, student="zoe", unread=9)}
    monkeypatch.setattr(report, "_in_gradebook", lambda *_: (LabPoints(6, 4, 0, by_hand), scores, []))
    page = page_of(two_labs, verdict("ada"))
    assert told in page.text and page.text.count("All scores below but the final ones are automatic: 4 points") == 1
    page = Page(two_labs / "reports" / LAB / "ada.html")
    assert own in page.text and f"Final score 9 of {10 + by_hand}" in page.text
    assert page.text.count("wait") == own.count("wait")


def bars(chart):
    drawn = re.findall(r'<rect class="count" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', chart.svg)
    titles = re.findall(r"<title>(.*?): (\d+)</title>", chart.svg)
    return [(told, int(count), *map(float, at)) for (told, count), at in zip(titles, drawn, strict=True)]


def test_a_bar_is_as_high_as_its_students_are_many():
    scores = [0, 3, 3, 10, 10, 10]
    found = bars(score_histogram(scores, 10))
    assert [(told, count) for told, count, *_ in found] == [("0 points", 1), ("3 points", 2), ("10 points", 3)]
    heights = [height for *_, height in found]
    assert heights[1] / heights[0] == pytest.approx(2, rel=0.01)
    assert heights[2] / heights[0] == pytest.approx(3, rel=0.01)
    assert all(y + height == pytest.approx(400, abs=0.2) for _, _, _, y, _, height in found)


@pytest.mark.parametrize("most", [10, 40, 58, 100, 1500, 7.5])
def test_every_score_is_in_a_bar_and_the_median_among_them(most):
    scores = [most * share for share in (0, 0.1, 0.25, 0.5, 0.5, 0.9, 1, 1)]
    chart = score_histogram(scores, most)
    found = bars(chart)
    assert sum(count for _, count, *_ in found) == len(scores)
    assert all(x >= 0 and x + width <= 1000.1 for _, _, x, _, width, _ in found)
    middle = float(re.search(r'class="middle" x1="([\d.]+)"', chart.svg)[1])
    left = [x for _, _, x, *_ in found]
    assert left[0] < middle < left[-1]
    assert all(0 <= at <= 100 for at, _ in [*chart.x_labels, *chart.y_labels])
    assert len({text for _, text in chart.x_labels}) == len(chart.x_labels)


def test_the_median_stands_in_the_middle_of_its_bar():
    chart = score_histogram([4, 5, 10], 10)
    _, _, x, _, width, _ = bars(chart)[1]
    assert float(re.search(r'class="middle" x1="([\d.]+)"', chart.svg)[1]) == pytest.approx(x + width / 2, abs=0.2)


def test_flags_are_counted_on_top_and_told_with_their_details(two_labs):
    several = (Flag("copy", "same curve as ada"), Flag("tampered", "check-evaluate"), Flag("tampered", "run-evidence"))
    page = page_of(
        two_labs,
        verdict("ada", flags=(Flag("tampered", "check-memory"),)),
        verdict("bob", flags=several),
        verdict("eve"),
        verdict("ian", flags=(Flag("new-kind", "of another version"),)),
    )
    counts = page.html.partition('class="counts"')[2].partition("</ul>")[0]
    told = " ".join(re.sub("<[^>]*>", " ", counts.partition(">")[2]).split())
    assert told == f"2 tampered {FLAGS['tampered']} 1 copy {FLAGS['copy']} 1 new-kind"
    assert "Students with flags 3" in page.text
    table = page.html.partition('class="flags"')[2].partition("</table>")[0]
    shown = re.sub("<[^>]*>", " ", table.partition("<tbody>")[2]).split()
    assert " ".join(shown) == (
        "ada tampered check-memory bob tampered check-evaluate tampered run-evidence copy same curve as ada "
        "ian new-kind of another version"
    )


def test_a_loud_banner_where_anybody_was_graded_without_the_sandbox(two_labs):
    bare = {"sandbox": "none", "flags": (Flag("unsandboxed", "no bubblewrap"),)}
    assert not page_of(two_labs, verdict("ada"), verdict("eve", sandbox="")).all("div", role="alert")
    page = page_of(two_labs, verdict("bob", **bare))
    assert len(page.all("div", role="alert")) == 1
    assert "Graded without the sandbox: 1 of 3 submissions of lab 01." in page.text
    assert "bob" in page.html.partition('class="flags"')[2].partition("</table>")[0]
    # What everybody has is no row for each.
    page = page_of(two_labs, verdict("ada", **bare), verdict("eve", **bare))
    assert "Graded without the sandbox: 3 of 3 submissions of lab 01." in page.text
    assert "Students with flags 0" in page.text and 'class="flags"' not in page.html


def test_two_hundred_students_leave_the_page_light(two_labs):
    page = page_of(two_labs, *(verdict(f"student{number:03d}", [FINAL]) for number in range(200)))
    assert len(page.html) < 250_000
    assert "as student007 did it" not in page.text and "look at final" not in page.text
    assert page.html.count('<polyline class="each"') == 200
    assert len(list((two_labs / "reports" / LAB).iterdir())) == 200


def test_an_accuracy_on_a_copy_or_on_synthetic_data_is_never_bare(two_labs):
    kinds = {"ada": "official", "bob": "copy", "eve": "synthetic", "ian": None}
    verdicts = [verdict(student, run=replace(RUN, data_provenance=kind)) for student, kind in kinds.items()]
    page = page_of(two_labs, *verdicts)
    for student, kind in kinds.items():
        row = re.search(rf"<tr>\s*<th[^>]*><a[^>]*>{student}</a>.*?</tr>", page.html, re.DOTALL)[0]
        cells = re.findall(r'<td class="n acc">(.*?)</td>', row, re.DOTALL)
        own = Page(two_labs / "reports" / LAB / f"{student}.html").html
        cells += re.findall(r"<dt>(?:Claimed final|Held-out|Best) accuracy</dt><dd>(.*?)</dd>", own, re.DOTALL)
        assert len(cells) == 5
        for cell in cells:
            assert re.search(r"0\.8\d\d", cell)
            assert ("tag" in cell) == (kind != "official")
            assert kind == "official" or (kind or "origin unknown") in cell


def test_the_median_counts_a_run_that_ended_earlier_by_its_last_accuracy():
    def run(accuracies, provenance="official"):
        curve = [[0, 0.0, 0.0], *([i, float(i), a] for i, a in enumerate(accuracies, start=1))]
        return RunSummary(curve=curve, data_provenance=provenance)

    runs = [run([0.2, 0.9]), run([0.4, 0.5, 0.6]), run([0.6, 0.7, 0.8])]
    runs.append(run([1.0, 1.0, 1.0], "synthetic"))
    assert class_median(runs) == [(1, 0.4), (2, 0.7), (3, 0.8)]  # the row of zeros is no measurement


def test_a_verdict_by_another_rubric_is_said_to_be_so(two_labs):
    today = report.find_rubric(LAB).digest
    page = page_of(two_labs, verdict("ada", digests={"rubric": today}), verdict("bob"))
    assert "another version of the rubric" not in page.text
    page = page_of(two_labs, verdict("eve", digests={"rubric": "0" * 64}))
    assert "1 of 3 verdicts are by another version of the rubric" in page.text


def test_scores_by_another_rubric_are_not_shown_beside_this_one_s_points(two_labs, monkeypatch):
    def other(student, times):
        results = tuple(
            replace(each, points=times * each.points, max_points=times * each.max_points)
            for each in verdict("x").results
        )
        return replace(verdict(student, digests={"rubric": "0" * 64}), results=results)

    # The gradebook has the other rubric's points: 20 and 5 by hand.
    monkeypatch.setattr(report, "_in_gradebook", lambda *_: (LabPoints(12, 8, 0, 5), {}, []))
    page = page_of(two_labs, other("ada", 2))
    assert "1 of 1 verdict is by another version of the rubric than this page." in page.text
    assert "If you graded with lab grade 01 --rubrics FOLDER, give" in page.text
    assert "give lab report the same option; otherwise grade the lab again with lab grade 01." in page.text
    assert "Score /20" in page.text and "Median score 20 of 20" in page.text and "autograde" not in page.text
    assert "Of the lab's 25 points, 5 are for hand grading. Data" in page.text
    own = Page(two_labs / "reports" / LAB / "ada.html").text
    assert "--rubrics FOLDER, give lab report the same option" in own and "5 more points of the lab are for hand" in own
    page = page_of(two_labs, other("bob", 3))
    assert "Score train-step" in page.text and "Median score 25 Full" in page.text


def test_spoilt_and_misplaced_verdicts_are_named_and_left_out(two_labs):
    for student in ("bob", "eve"):
        verdict(student).save(two_labs)
    verdict_path(two_labs, "bob", LAB).write_text('{"student": "bob"}')
    path = verdict_path(two_labs, "eve", LAB)
    path.write_text(path.read_text().replace('"student": "eve"', '"student": "../../../evil"'))
    page = page_of(two_labs, verdict("ada"))
    assert "is no verdict (ValidationError)" in page.text and "is of another student or lab" in page.text
    assert "Submissions 1" in page.text
    assert not list(two_labs.parent.rglob("evil*"))


def test_without_verdicts_there_is_no_page(two_labs):
    with pytest.raises(ReportError, match="run `lab grade 01_single_gpu` first"):
        write_report([LAB], two_labs, two_labs / "page.html")
    assert not two_labs.exists()


def long_run(epochs):
    curve = [[epoch, float(epoch), min(0.99, epoch / epochs)] for epoch in range(epochs + 1)]
    return replace(RUN, curve=curve, epochs=epochs)


def axis(page):
    return [int(text) for text in re.findall(r">(\d+)</span>", page.html.split('class="xs"')[2].partition("</div>")[0])]


def test_a_curve_without_points_is_in_no_figure_of_the_class(two_labs):
    honest = [verdict(student) for student in ("ada", "bob", "eve")]
    alone = page_of(two_labs, *honest)
    lost = replace(long_run(9_999), data_source="an attacker's own words")
    page = page_of(two_labs, verdict("mallory", [RECORD, FINAL], run=lost))
    for figure in (
        r"<figure>(?:(?!</figure>).)*?Validation accuracy.*?</figure>",
        r'<p class="provenance">Data:.*?</p>',
    ):
        assert re.search(figure, page.html, re.DOTALL)[0] == re.search(figure, alone.html, re.DOTALL)[0]
    assert max(axis(page)) == 2
    own = Page(two_labs / "reports" / LAB / "mallory.html")
    assert '<polyline class="own"' in own.html and "9999 epochs" in own.text


def test_one_run_of_thousands_of_epochs_leaves_the_others_to_be_seen(two_labs):
    usual = [verdict(f"s{number}", run=long_run(12 + number)) for number in range(5)]
    page = page_of(two_labs, *usual, verdict("patient", run=long_run(9_999)))
    assert 30 <= max(axis(page)) <= 45
    ends = [
        float(points.split()[-1].split(",")[0]) for points in re.findall(r'class="each" points="([^"]*)"', page.html)
    ]
    assert len(ends) == 6 and min(ends) > 250 and max(ends) <= 1000


def test_students_are_sorted_by_failure_with_final_scores_and_marks_that_are_missing(two_labs, monkeypatch):
    def score(student, raw, penalty=0.0, unread=0):
        return StudentScore(
            student, None, None, None, True, raw=raw, penalty=penalty, unread=unread, unread_points=5.0 * unread
        )

    # Of 15 points, 5 by hand. bob has a penalty; eve's answer waits, so she has 10 of 10; cyd is not in the gradebook.
    scores = {"ada": score("ada", 13), "bob": score("bob", 14, penalty=7), "eve": score("eve", 10, unread=1)}
    monkeypatch.setattr(report, "_in_gradebook", lambda course, rubric: (LabPoints(6, 4, 0, 5), scores, []))
    page = page_of(two_labs, *(verdict(name) for name in ("ada", "bob", "eve")), verdict("cyd", [FINAL]))
    rows = [text.split("</tr>")[0] for text in page.html.split("<h3>Students</h3>")[1].split("<tr>")[2:]]
    cells = [re.findall(r">([^<>]*)</(?:a|td)>", row)[:4] for row in rows]
    assert cells == [
        ["bob", "10", "7", "–"],
        ["cyd", "6", "–", "–"],
        ["ada", "10", "13", "–"],
        ["eve", "10", "10", "1"],
    ]
