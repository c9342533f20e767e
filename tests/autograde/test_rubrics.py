"""Rubric files: ours are usable, broken ones are refused with the place and what was expected."""

import pytest

from autograde.rubric import RUBRICS, RubricError, find_rubric, load_rubric

GOOD = """
lab = "07_tiny"
title = "Tiny"
mode = "evidence"
cell = "run-evidence"
max_points = 5

[[criterion]]
id = "final"
kind = "final_accuracy"
points = 5
description = "Final accuracy"
threshold = 0.85
"""


def write(tmp_path, text):
    path = tmp_path / "07_tiny.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(RUBRICS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_rubric_of_ours_is_usable(path):
    rubric = load_rubric(path)
    assert rubric.max_points == sum(criterion.points for criterion in rubric.criteria)
    assert rubric.cell == "run-evidence"


@pytest.mark.parametrize("name", ["1", "01", "01_single_gpu"])
def test_a_lab_is_found_by_number_or_name(name):
    assert find_rubric(name).lab == "01_single_gpu"


@pytest.mark.parametrize("name", ["99", "", "single_gpu", "../01_single_gpu", "1; rm", "01_single_gpu/"])
def test_an_unknown_lab_is_refused_and_the_known_ones_are_named(name):
    with pytest.raises(RubricError, match="01_single_gpu, 02_ddp"):
        find_rubric(name)


def test_labs_one_and_two_ask_for_what_the_course_says():
    for name, ranks in (("1", None), ("2", 2)):
        rubric = find_rubric(name)
        assert rubric.max_points == 20
        thresholds = {c.kind: c.settings["threshold"] for c in rubric.criteria if "threshold" in c.settings}
        assert thresholds == {"best_accuracy": 0.85, "final_accuracy": 0.85}
        minimum = [c.settings["minimum"] for c in rubric.criteria if c.kind == "world_size"]
        assert minimum == ([] if ranks is None else [ranks])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("points = 5\nd", "points = -5\nd", "criterion 'final': points must be"),
        ("points = 5\nd", 'points = "5"\nd', "points must be"),
        ("points = 5\nd", "points = nan\nd", "points must be"),
        ("points = 5\nd", "points = true\nd", "points must be"),
        ("points = 5\nd", "points = 4\nd", "add up to 4 points, max_points is 5"),
        ('id = "final"\n', "", "criterion 1: id is missing"),
        ('kind = "final_accuracy"', 'kind = "telepathy"', "unknown kind 'telepathy'; known are run_record"),
        ("threshold = 0.85\n", "", "threshold must be a number"),
        ("threshold = 0.85", "threshold = 85", "threshold must be a number"),
        ("threshold = 0.85", 'threshold = "0.85"', "threshold must be a number"),
        ("threshold = 0.85", "threshold = 0.85\ntreshold = 1", "no setting 'treshold'"),
        ('mode = "evidence"', 'mode = "trust"', "mode is 'trust'"),
        ('lab = "07_tiny"', 'lab = "08_other"', "expected the file's own name"),
        ("max_points = 5", "max_points = inf", "max_points must be"),
        ("max_points = 5", "max_points = 5\nsandbox = true", "unknown key 'sandbox'"),
        ("[[criterion]]", "[criterion]", "at least one"),
        ('title = "Tiny"', "title = ", "is not TOML"),
        ('cell = "run-evidence"\n', "", "cell must be a string"),
    ],
)
def test_a_broken_rubric_is_refused_by_name(tmp_path, old, new, expected):
    assert load_rubric(write(tmp_path, GOOD)).threshold == 0.85
    assert old in GOOD
    with pytest.raises(RubricError) as caught:
        load_rubric(write(tmp_path, GOOD.replace(old, new)))
    assert expected in str(caught.value)
    assert "07_tiny.toml" in str(caught.value)


def test_an_id_twice_is_refused(tmp_path):
    text = GOOD.replace("max_points = 5", "max_points = 10") + GOOD[GOOD.index("[[criterion]]") :]
    with pytest.raises(RubricError, match="'final' is there twice"):
        load_rubric(write(tmp_path, text))
