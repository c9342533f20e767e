"""The run check that students see names the rubric's criteria and points, and decides as the grader does."""

import re

import pytest

from autograde.grading.run_judging import judge_run
from autograde.rubric.schema import find_rubric, rubric_names
from course_lib.checks import CheckFailed, check
from course_lib.runs.run_evidence.criteria import NEEDS_MODEL
from course_lib.runs.run_evidence.evidence import parse_evidence

RUNS = [(lab, run.id) for lab in rubric_names() for run in find_rubric(lab).runs]
LINE = re.compile(r" *(\S+) of +(\S+)  (.*?): ")


def rules_of(run, rubric):
    return next(rules for rules in rubric.runs if rules.id == run)


def visible(lab, run, folder, capsys):
    """What the check returned, and (points, worth, description) of each line."""
    capsys.readouterr()
    returned = check(f"lab{lab[:2]}.{run.replace('_', '-') or 'run'}", folder)
    return returned, [match.groups() for line in capsys.readouterr().out.splitlines() if (match := LINE.match(line))]


def write(make_run, folder, lab, run, spoil=None):
    honest = make_run([0.97, 0.98, 0.99], lab=lab, world_size=4, **({"program": run} if run else {}))
    honest.record["parameters"] |= {"target_accuracy": 0.98, "patience": 2}
    honest.record["data"]["name"] = rules_of(run, find_rubric(lab)).model.datasets[0]
    if spoil:
        spoil(honest)
    path = honest.write(folder)
    (path / "model.safetensors").write_bytes(b"weights")
    return path


SPOILS = {
    "honest": None,
    "below": lambda run: [row.__setitem__(6, "0.01") for row in run.rows[1:]],
    "synthetic": lambda run: run.record["data"].update(provenance="synthetic"),
    "other data": lambda run: run.record["data"].update(name="toy"),
    "one rank": lambda run: run.record.update(world_size=1),
    "stopped late": lambda run: run.record["parameters"].update(target_accuracy=0.5),
    "no transcript": lambda run: run.lines.clear(),
    "not finished": lambda run: run.record.update(ended=None),
    "another lab's": lambda run: run.record.update(lab="00_none"),
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("lab, run", RUNS)
def test_it_prints_the_rubrics_criteria_and_decides_as_the_grader(
    make_run, folder_rubric, tmp_path, capsys, lab, run, spoil
):
    folder = write(make_run, tmp_path, lab, run, SPOILS[spoil])
    whole, folder_only = (rules_of(run, rubric) for rubric in (find_rubric(lab), folder_rubric(lab)))
    files = {name: (folder / name).read_bytes() for name in ("run.json", "learning_curve.csv", "assessment.out")}
    graded = {one.id: one.points for one in judge_run(folder_only, parse_evidence(lab, files), [])}
    returned, lines = visible(lab, run, folder, capsys)
    expected = [
        ("?" if c.kind in NEEDS_MODEL else f"{graded[c.id]:g}", f"{c.points:g}", c.description) for c in whole.criteria
    ]
    assert lines == expected
    full = sum(graded.values()) == folder_only.max_points
    # A criterion that a lab does not have costs nothing there.
    assert full if spoil == "honest" else not full or spoil in ("one rank", "stopped late", "no transcript"), graded
    assert returned == (whole.max_points if full else sum(graded.values()))


def test_without_the_weights_nothing_counts_as_the_grader_says(make_run, tmp_path, capsys):
    folder = write(make_run, tmp_path, "05_resnet_hw", "")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckFailed, match=r"no finished run in .*: there is no model.safetensors"):
        check("lab05.run", folder)
    assert check("lab05.resnet-cifar100", tmp_path / "nowhere") == 0
    assert "0 of 12 points: no finished run of resnet_cifar100.py" in capsys.readouterr().out


def test_another_programs_run_counts_for_nothing(make_run, tmp_path, capsys):
    folder = write(make_run, tmp_path, "05_resnet_hw", "resnet_cifar100")
    returned, lines = visible("05_resnet_hw", "resnet_tinyimagenet", folder, capsys)
    assert returned == 0 and {points for points, *_ in lines} == {"0", "?"}


def test_a_rubric_may_list_criteria_of_its_own(tmp_path):
    text = (find_rubric.__globals__["RUBRICS"] / "01_single_gpu.toml").read_text()
    own = '\n[[criterion]]\nid = "all"\nkind = "monotone"\npoints = 10\ndescription = "Time grows"\n'
    (tmp_path / "01_single_gpu.toml").write_text(text + own)
    before, after = find_rubric("1"), find_rubric("1", tmp_path)
    assert [c.id for c in after.runs[0].criteria] == ["all"] and len(before.runs[0].criteria) == 8
    assert before.digest != after.digest


@pytest.mark.parametrize("lab, run", RUNS)
def test_an_accuracy_counts_on_the_data_on_which_the_weights_are_tried(make_run, tmp_path, capsys, lab, run):
    rules = rules_of(run, find_rubric(lab))
    asked = [tuple(one.settings["datasets"]) for one in rules.criteria if "datasets" in one.settings]
    assert asked and set(asked) == {tuple(rules.model.datasets)}
    check(f"lab{lab[:2]}.{run.replace('_', '-') or 'run'}", write(make_run, tmp_path, lab, run, SPOILS["other data"]))
    lines = [line for line in capsys.readouterr().out.splitlines() if "data set 'toy' is not" in line]
    assert len(lines) == len(asked) and all(line.startswith(" 0 of") for line in lines)
