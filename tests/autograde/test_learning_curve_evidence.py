"""learning_curve.csv as a student may hand it in."""

import csv
import io

import pytest

from autograde.submission.run_folder import EvidenceError
from course_lib.runs.run_evidence.learning_curve import COLUMNS, parse_learning_curve

HEADER = ",".join(COLUMNS)
ZEROS = "0,0.0,,,,,0.0,"
ROW = "1,12.3,4860.1,0.9,0.75,0.8,0.74,0.01"


def test_a_lab_s_own_file_is_read_without_a_problem(make_run):
    curve = parse_learning_curve(make_run([0.7, 0.8]).csv())
    assert curve.problems == ()
    assert curve.accuracies == (0.7, 0.8)
    assert [row.epoch for row in curve.rows] == [0, 1, 2]


def test_the_tutorial_s_two_columns_are_read():
    # as its on_train_begin and on_epoch_end write them, csv's own line ends included
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["time", "val_accuracy"])
    writer.writerow([0.0, 0.0])
    for seconds, accuracy in [(12.345, 0.71234), (24.7, 0.85004)]:
        writer.writerow([round(seconds, 1), round(accuracy, 4)])
    curve = parse_learning_curve(text.getvalue())
    assert curve.problems == ()
    assert [row.epoch for row in curve.rows] == [0, 1, 2]
    assert curve.accuracies == (0.7123, 0.85)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1"),
        (HEADER, "no rows"),
        (f"{HEADER}\n{ZEROS}\n", "no epoch"),
        (f"epoch,val_accuracy\n{ZEROS}", "column time is missing"),
        (f"{HEADER},time\n{ZEROS},\n", "there twice"),
        (f"{HEADER}\n{ZEROS}\n{ROW}\n2,24.6,48", "line 4: 3 fields, the header has 8"),
        (f"{HEADER}\n{ZEROS}\n1,12.3,,,,,nan,\n", "line 3: val_accuracy is 'nan', a finite number"),
        (f"{HEADER}\n{ZEROS}\n1,inf,,,,,0.5,\n", "line 3: time is 'inf', a finite number"),
        (f"{HEADER}\n{ZEROS}\n1,1e999,,,,,0.5,\n", "line 3: time is '1e999', a finite number"),
        (f"{HEADER}\n{ZEROS}\n1,1_0,,,,,0.5,\n", "line 3: time is '1_0'"),
        (f"{HEADER}\n{ZEROS}\n1,12.3,,,,,85,\n", "line 3: val_accuracy is 85, a fraction"),
        (f"{HEADER}\n{ZEROS}\n1,12.3,,,,,-0.1,\n", "line 3: val_accuracy is -0.1"),
        (f"{HEADER}\n{ZEROS}\n1,-3,,,,,0.5,\n", "line 3: time is -3"),
        (f"{HEADER}\n{ZEROS}\n1.5,12.3,,,,,0.5,\n", "line 3: epoch is 1.5"),
        (f"{HEADER}\n{ZEROS}\n1,12.3,,,,,,\n", "line 3: val_accuracy is ''"),
        (f'{HEADER}\n{ZEROS}\n1,"12.3\n', "line"),
        (f"{HEADER}\n{ZEROS}\n1,\x00,,,,,0.5,\n", "line"),
        ("time,val_accuracy\n0.0,0.0\n<script>alert(1)</script>,0.5\n", "line 3: time is '<script>"),
        (HEADER + "\n" + "1,1,1,1,1,1,1,1\n" * 20_000, "more than 10,000 rows"),
    ],
)
def test_an_unusable_file_is_refused_in_one_line_that_says_where(text, expected):
    with pytest.raises(EvidenceError) as caught:
        parse_learning_curve(text)
    message = str(caught.value)
    assert expected in message
    assert message.startswith("learning_curve.csv")
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([ZEROS, ROW.replace("0.8,", "nan,")], "line 3: val_loss is 'nan'"),
        ([ZEROS, ROW.replace("4860.1", "")], "line 3: images_per_sec is ''"),
        ([ZEROS, ROW.replace(",0.75,", ",7.5,")], "line 3: train_accuracy is 7.5"),
        ([ROW, ROW.replace("1,12.3", "2,24.6")], "the first row is epoch 1, time 12.3"),
        (["0,0.0,,,,,0.1,", ROW], "the first row is epoch 0, time 0, val_accuracy 0.1"),
        (["0,5.0,,,,,0.0,", ROW], "the first row is epoch 0, time 5"),
    ],
)
def test_a_broken_schema_is_named_and_the_accuracies_stay_usable(rows, expected):
    curve = parse_learning_curve("\n".join([HEADER, *rows]) + "\n")
    assert expected in curve.problems[0]
    assert 0.74 in curve.accuracies
