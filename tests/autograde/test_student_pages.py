"""The instructor's page on one student: every reason, nothing of a student's in it unescaped, and no stale pages."""

import os
from dataclasses import asdict, fields, replace
from urllib.parse import unquote

import pytest
from fake_class import FINAL, LAB, RUN, UPDATE, Page, verdict

import autograde.reports.report as report
from autograde.gradebook.scores import LabPoints
from autograde.reports.export.scores import StudentScore
from autograde.reports.report import ReportError, write_report
from autograde.rubric.verdict import CriterionResult, Flag, RunSummary, verdict_path


def pages_of(two_labs, *verdicts):
    for one in verdicts:
        one.save(two_labs)
    out = write_report([LAB], two_labs, two_labs / "reports" / "page.html")
    return Page(out), {path.stem: Page(path) for path in (out.parent / LAB).glob("*.html")}


def test_scores_reasons_remedies_and_conditions_are_there(two_labs):
    flags = (Flag("copy", "same curve as eve"), Flag("forged", "0.14 apart"))
    digests = {"submission": "5ab" * 10, "rubric": report.find_rubric(LAB).digest, "grader": "9ad" * 10}
    _, pages = pages_of(
        two_labs,
        verdict("ada", [UPDATE], flags=flags, digests=digests, unanswered=("q-knee",)),
        verdict("bob", [FINAL, UPDATE]),
    )
    page = pages["ada"]
    for told in (
        "Automatic score 7 of 10",
        "Class median 5 ",  # of 7 and 3
        "check-train-step 1 of 4 1",  # and the class's median
        "run-evidence 6 of 6 4",
        "What update is about update as ada did it How to look at it: look at update 0 of 3",
        "What final is about final as ada did it 4 of 4",
        "forged 0.14 apart copy same curve as eve",
        "Claimed final accuracy 0.876 Held-out accuracy 0.862 on 2000 samples",
        "Held out − claimed −0.014",
        "Graded 2026-11-20 10:04 UTC, in 12.2 s",
        "Sandbox bubblewrap",
        "Data fashion-mnist, official, source Debian package",
        "Device cpu (2 threads a rank), 1 rank",
        "Submission " + "5ab" * 10,
        "Grader " + "9ad" * 10,
        "Answers that still hold the starter's text: q-knee.",
        "not to be published",
    ):
        assert told in page.text, told
    assert page.html.count('<polyline class="own"') == page.html.count('<polyline class="behind"') == 1
    assert "bob did it" not in page.text
    assert not page.all("div", role="alert")


def test_students_lead_to_their_neighbours_and_back_to_the_class(two_labs):
    _, pages = pages_of(two_labs, verdict("ada"), verdict("bob"), verdict("eve"))
    assert [link["href"] for link in pages["bob"].all("a")][:3] == [f"../page.html#{LAB}", "ada.html", "eve.html"]
    assert [link["href"] for link in pages["ada"].all("a")][:2] == [f"../page.html#{LAB}", "bob.html"]
    assert not pages["eve"].all("a", rel="next") and not pages["ada"].all("a", rel="prev")


def test_links_lead_to_the_code_and_to_formgrader(two_labs, monkeypatch):
    scores = {"ada": StudentScore("ada", None, None, None, True, page="1f&2")}
    monkeypatch.setattr(report, "_in_gradebook", lambda course, rubric: (LabPoints(6, 4, 0, 5), scores, []))
    files = [two_labs / "autograded" / "ada" / LAB / f"{LAB}.ipynb", two_labs / "feedback" / "ada" / LAB / f"{LAB}.html"]
    for path in files:
        path.parent.mkdir(parents=True)
        path.write_text("")
    for address in (None, "/services/deep/"):
        if address:
            monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", address)
        _, pages = pages_of(two_labs, verdict("ada"), verdict("bob"))
        links = [link["href"] for link in pages["ada"].all("a")][2:5]
        assert [(pages["ada"].path.parent / unquote(link)).resolve() for link in links[:2]] == files
        assert links[2] == (address or "http://localhost:8888/") + "formgrader/submissions/1f%262/"
    assert not pages["bob"].all("nav", **{"aria-label": "Submission"})
    (two_labs.parent / "nbgrader_config.py").write_text("c.ReportLinks.jupyter = 'https://hub.example.org/x'\n")
    _, pages = pages_of(two_labs, verdict("ada"))
    assert pages["ada"].all("a", href="https://hub.example.org/x/formgrader/submissions/1f%262/")


def test_without_a_run_or_a_sandbox_the_page_says_so(two_labs):
    bare = verdict("ada", sandbox="none", run=RunSummary(), digests={})
    _, pages = pages_of(two_labs, bare, verdict("bob", sandbox=""))
    assert len(pages["ada"].all("div", role="alert")) == 1
    assert "No learning curve could be read." in pages["ada"].text
    assert "Claimed final accuracy – Held-out accuracy –" in pages["ada"].text
    assert "Sandbox nothing was executed" in pages["bob"].text


PAYLOADS = [
    "<script>alert(1)</script>",
    "\"><img src=//evil.example/x onerror='alert(1)'>",
    "' onmouseover='alert(1)' x='",
    'x" style="background:url(//evil.example/x)" onclick="alert(1)',
    "javascript:alert(1)",
    "</style><style>*{background:url(//evil.example/x)}</style>",
    "</title></head><body onload=alert(1)>",
    "<svg><a xlink:href='javascript:alert(1)'><text>x</text></a></svg></svg>",
    "<!-- ]]> --> <?php ?> <![CDATA[",
    "{{7*7}}{% raw %}{# #}${7*7}",
    "&lt;script&gt;&#60;b&#62;",
    "</td></tr></table></main></body></html><form action=//evil.example>",
]


def everywhere(student, text):
    """A verdict with a text in every field that can hold one (but the names that say whose it is)."""
    results = tuple(
        replace(result, **{name: text for name in ("kind", "description", "reason", "remedy")})
        for result in verdict(student, [FINAL]).results
    )
    beside = CriterionResult(text, text, text, text, False, 0.0, 1.0, text, text)
    run = replace(RUN, weights=text, device=text, data_name=text, data_source=text, data_provenance=text)
    return replace(
        verdict(student, run=run),
        title=text,
        graded_at=text,
        results=(*results, beside),
        flags=(Flag(text, text), Flag("crash", text)),
        sandbox=text,
        digests={text: text},
        unanswered=(text,),
    )


def test_the_payload_reaches_every_text_field():
    def texts(value):
        if isinstance(value, dict):
            return [text for pair in value.items() for part in pair[1:] for text in texts(part)]
        if isinstance(value, (list, tuple)):
            return [text for part in value for text in texts(part)]
        return [value] if isinstance(value, str) else []

    spoilt = everywhere("ada", "payload")
    ours = {"ada", LAB, "crash", "check-train-step", "run-evidence", *(result.id for result in spoilt.results)}
    assert set(texts(asdict(spoilt))) <= ours | {"payload", ""}  # no name: the notebook's own run
    for kind in (Flag, CriterionResult, RunSummary):  # a new text field comes to mind here
        assert {field.name for field in fields(kind) if field.type.startswith("str")} <= {
            "kind", "detail", "cell", "id", "description", "reason", "remedy",
            "device", "data_name", "data_provenance", "data_source", "weights",
        }  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_a_student_wrote_is_text_and_only_text(two_labs, payload):
    plain_main, plain = pages_of(two_labs, everywhere("ada", "plain"), everywhere("bob", "plain"))
    main, pages = pages_of(two_labs, everywhere("ada", payload), everywhere("bob", payload))
    assert main.tags == plain_main.tags  # elements, and attributes with their values
    assert pages["ada"].tags == plain["ada"].tags
    for page in (main, pages["ada"]):
        assert not [value for _, attributes in page.tags for _, value in attributes if "javascript:" in (value or "")]
        assert page.text.count(" ".join(payload.split())) >= 5


def test_characters_that_do_not_print_and_long_texts_are_shown_harmlessly(two_labs):
    odd = "\ud800\x00\u202etxet\nnext line"
    main, pages = pages_of(two_labs, everywhere("ada", odd), everywhere("bob", "x" * 100_000))
    assert "\ufffd\ufffd\ufffdtxet next line" in pages["ada"].text
    for page in (main, *pages.values()):
        assert not set(page.html) & set("\ud800\x00\u202e")
        assert len(page.html) < 150_000


def test_pages_of_students_who_are_gone_are_removed_and_nothing_else(two_labs):
    pages_of(two_labs, verdict("ada"), verdict("bob"), verdict("eve"))
    folder = two_labs / "reports" / LAB
    theirs = {"notes.html": "<p>mine</p>", "bob.txt": "x", "01_single_gpu.html": "an export"}
    for name, text in theirs.items():
        (folder / name).write_text(text)
    verdict_path(two_labs, "bob", LAB).unlink()
    verdict_path(two_labs, "eve", LAB).write_text("spoilt")
    write_report([LAB], two_labs, two_labs / "reports" / "page.html")
    assert {path.name for path in folder.iterdir()} == {"ada.html", *theirs}
    assert all((folder / name).read_text() == text for name, text in theirs.items())


def test_a_page_that_cannot_be_written_leaves_the_old_ones_whole(two_labs, monkeypatch):
    main, pages = pages_of(two_labs, verdict("ada", [FINAL]), verdict("bob"))
    before = {path: path.read_bytes() for path in main.path.parent.rglob("*.html")}
    real = os.replace

    def full(source, target):
        if str(target).endswith("ada.html"):
            raise OSError(28, "No space left on device")
        real(source, target)

    verdict("ada").save(two_labs)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ReportError, match=r"ada\.html cannot be written \(No space left on device\).*-o FILE"):
        write_report([LAB], two_labs, main.path)
    assert main.path.read_bytes() == before[main.path]
    assert pages["ada"].path.read_bytes() == before[pages["ada"].path]
    assert {path for path in main.path.parent.rglob("*") if path.is_file()} == set(before)
