"""The instructor's page: well-formed, self-contained, and nothing of a student's in it unescaped."""

import json
import re
from html.parser import HTMLParser

import pytest
from fake_runs import LAB

from autograde.batch import grade_lab
from autograde.report import ReportError, write_report
from autograde.report.curves import class_median
from autograde.verdict import RunSummary, Verdict, verdict_path

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags in order, text, and whether every element is closed where it should be."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


HOSTILE = "<script>alert(1)</script><img src=//evil.example/x onerror=alert(2)>\"'&{{7*7}}"


@pytest.fixture
def page(course, submit, make_run, tmp_path):
    submit("ada", make_run())
    submit("bob", make_run([0.5, 0.6, 0.7, 0.6, 0.7, 0.7, 0.7, 0.7], stopped_early=False))
    submit("eve")
    mallory = make_run(device=HOSTILE)
    mallory.record["data"] |= {"name": HOSTILE, "source": HOSTILE, "provenance": "copy"}
    mallory.lines[0] = HOSTILE
    submit("mallory", mallory)
    synthetic = make_run(lab=HOSTILE)
    synthetic.record["data"]["provenance"] = "synthetic"
    synthetic.rows[1][3] = HOSTILE
    synthetic.record["device"] = "\ud800\x00\u202ecpu"  # no file can hold the first, and the last turns the text round
    submit("trudy", synthetic)
    grade_lab("1", course)
    return write_report(["1"], course, tmp_path / "page.html").read_text()


def test_the_page_is_well_formed_and_fetches_nothing(page):
    parsed = Page(page)
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "img", "iframe", "link", "object", "embed", "form", "base", "use", "image"}
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#")
        if tag == "meta" and attributes.get("http-equiv"):
            assert attributes["content"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert not re.search(r"url\(|@import|https?://", page)


def test_links_within_the_page_lead_somewhere_and_ids_are_unique(page):
    tags = Page(page).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"][1:] for tag, attributes in tags if tag == "a"} <= set(ids)


def test_what_a_student_wrote_is_text_and_only_text(page):
    assert "<script>" not in page and "<img" not in page
    assert "49" not in re.findall(r"\{?\{?(49)\}?\}?", "".join(re.findall(r"'&amp;(.{0,12})", page)))
    assert "\ufffd\ufffd\ufffdcpu" in page
    assert HOSTILE in "".join(Page(page).text)  # mallory's device, shown as it is


def test_scores_reasons_and_remedies_are_there(page):
    text = " ".join("".join(Page(page).text).split())
    assert "The run evidence is 20 of the lab's 28 points." in text
    assert "(5 points) are scored by nbgrader autograde, the questions (3 points) by hand" in text
    assert "no run folder in the submission" in text
    assert "final validation accuracy 0.7000 (epoch 8) is below 0.85" in text
    assert "How to look at it: compare the last epoch with the best" in text
    assert "fashion-mnist, official, source Debian dataset-fashion-mnist (2 runs)" in text
    assert page.count('<polyline class="each"') == 4
    assert page.count('<polyline class="own"') == 4


def test_an_accuracy_on_a_copy_or_on_synthetic_data_is_never_bare(page):
    for student, tag in (("mallory", "copy"), ("trudy", "synthetic"), ("ada", None)):
        row = re.search(rf"<tr>\s*<th[^>]*><a[^>]*>{student}</a>.*?</tr>", page, re.DOTALL)[0]
        accuracies = re.findall(r'data-label="(?:Best|Final) acc\."><span>(.*?)</span>\s*</td>', row, re.DOTALL)
        accuracies = accuracies or re.findall(r'data-label="(?:Best|Final) acc\.">(.*?)</td>', row, re.DOTALL)
        assert len(accuracies) == 2
        for cell in accuracies:
            assert ("tag" in cell) == (tag is not None)
            assert tag is None or tag in cell


def summary(student, accuracies, provenance="official"):
    curve = [[0, 0.0, 0.0], *([i, float(i), a] for i, a in enumerate(accuracies, start=1))]
    run = RunSummary(curve=curve, data_provenance=provenance)
    return Verdict(LAB, "t", student, "run-evidence", 0.85, "2026-01-01T00:00:00+00:00", (), run)


def test_the_median_counts_a_run_that_ended_earlier_by_its_last_accuracy():
    runs = [summary("a", [0.2, 0.9]), summary("b", [0.4, 0.5, 0.6]), summary("c", [0.6, 0.7, 0.8])]
    runs.append(summary("d", [1.0, 1.0, 1.0], "synthetic"))
    assert class_median(runs) == [(0, 0), (1, 0.4), (2, 0.7), (3, 0.8)]


def test_several_labs_share_a_page(course, submit, make_run, tmp_path):
    source = course.parent / "labs"
    (source / "02_ddp").mkdir()
    (source / "02_ddp" / "02_ddp.ipynb").write_bytes((source / LAB / f"{LAB}.ipynb").read_bytes())
    submit("ada", make_run())
    submit("ada", make_run(lab="02_ddp", world_size=2), lab="02_ddp")
    grade_lab("1", course)
    grade_lab("2", course)
    text = "".join(Page(write_report(["1", "02_ddp"], course, tmp_path / "deep" / "demo.html").read_text()).text)
    assert "Training on a single GPU" in text and "Distributed data parallel" in text
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["demo.html"]


def test_a_spoilt_verdict_is_named_and_left_out(course, submit, make_run, tmp_path):
    for student in ("ada", "bob"):
        submit(student, make_run())
    grade_lab("1", course)
    path = verdict_path(course, "bob", LAB)
    path.write_text(json.dumps({"student": "bob"}))
    text = "".join(Page(write_report(["1"], course, tmp_path / "page.html").read_text()).text)
    assert "Left out:" in text and "is no verdict (KeyError)" in text


def test_without_verdicts_there_is_no_page(course, tmp_path):
    with pytest.raises(ReportError, match="run `lab grade 01_single_gpu` first"):
        write_report(["1"], course, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
