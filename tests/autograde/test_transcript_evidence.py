"""assessment.out against the multi-GPU tutorial's own format string, which is the oracle."""

import random

import pytest
from fake_runs import DOCUMENT_001

from autograde.submission.run_folder import EvidenceError
from course_lib.runs.run_evidence.learning_curve import parse_learning_curve
from course_lib.runs.run_evidence.transcript import disagreement, parse_transcript


def line(epoch=1, speed=4860.123, time=12.3, accuracy=0.7, loss=0.9):
    return DOCUMENT_001.format(epoch, time * epoch, time, speed, accuracy, loss, accuracy)


SPEEDS = [
    1234.5677490234375, "tensor(1234.5677, device='cuda:0')", "tensor(1234.5677)", "tensor(1234., device='cuda:3')",
    "tensor(1.2346e+05, device='cuda:0', dtype=torch.float64)", 1e22, 7,
]  # fmt: skip


@pytest.mark.parametrize("speed", SPEEDS)
def test_images_per_second_may_be_a_number_or_a_tensor(speed):
    (row,) = parse_transcript(line(speed=speed) + "\n").rows
    assert row.images_per_sec == pytest.approx(float(str(speed).removeprefix("tensor(").split(",")[0].rstrip(")")))


def test_whatever_the_format_prints_is_read_back():
    rng = random.Random(0)
    for _ in range(300):
        numbers = [rng.uniform(0, 10 ** rng.randint(-3, 6)) for _ in range(3)]
        accuracies = [rng.random(), rng.uniform(0, 20), rng.random()]
        text = DOCUMENT_001.format(1, *numbers, *accuracies)
        (row,) = parse_transcript(text).rows
        assert row.images_per_sec == numbers[2]
        assert row.time == pytest.approx(numbers[0], abs=0.000501)
        assert row.val_accuracy == pytest.approx(accuracies[2], abs=0.000501)


def test_epochs_beyond_the_format_s_two_places_are_read():
    text = "".join(line(epoch) + "\n" for epoch in range(1, 121)) + "Early stopping after epoch 120\n"
    transcript = parse_transcript(text)
    assert (len(transcript.rows), transcript.stopped_after) == (120, 120)


def test_of_several_runs_the_last_one_counts():
    # assessment_print appends
    text = f"{line(1)}\n{line(2)}\nEarly stopping after epoch 2\n{line(1, accuracy=0.9)}\n"
    transcript = parse_transcript(text)
    assert [row.val_accuracy for row in transcript.rows] == [0.9]
    assert transcript.stopped_after is None


BAD = [
    "", "hello", line() + " ", " " + line(), "<script>alert(1)</script>", "x" * 100_000, "\x1b[31mEpoch", line(epoch=2),
    "Early stopping after epoch 1", "early stopping after epoch 1", line(loss=float("nan")), line(speed=float("inf")),
    line(speed="__import__('os')"), line(speed="tensor(1, grad_fn=<Evil>)"), line().replace("Epoch =  1", "Epoch = 1"),
    line().replace("Epoch =  1", "Epoch = 01"), line().replace("0.700", "0.7"), line().replace("0.700", "0.7000"),
    line().replace("Images/sec", "images/sec"), line().replace(", Validation Loss", "; Validation Loss"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_line_out_of_the_format_is_quoted_with_its_number(bad):
    for text, number in ((bad + "\n", 1), (f"{line()}\n{bad}\n", 2)):
        if number == 2 and bad in (line(epoch=2), "Early stopping after epoch 1"):
            continue  # in place there
        with pytest.raises(EvidenceError) as caught:
            parse_transcript(text)
        message = str(caught.value)
        assert message.startswith(f"assessment.out line {number}: ")
        assert "expected" in message
        assert message.isascii() and message.isprintable() and len(message) < 800


@pytest.mark.parametrize(
    "lines",
    [
        [line(1), "Early stopping after epoch 1", "Early stopping after epoch 1"],
        [line(1), "Early stopping after epoch 2"],
        [line(1), "Early stopping after epoch 01"],
        [line(1), "Early stopping after epoch 1", line(2)],
        [line(1), line(3)],
        [line(1), line(2), line(2)],
    ],
)
def test_lines_out_of_place_are_refused(lines):
    with pytest.raises(EvidenceError, match=f"assessment.out line {len(lines)}"):
        parse_transcript("\n".join(lines) + "\n")


def test_an_empty_transcript_holds_no_epoch():
    with pytest.raises(EvidenceError, match="no epoch"):
        parse_transcript("")


def test_an_honest_run_agrees_with_its_curve(make_run):
    rng = random.Random(1)
    for _ in range(100):
        seconds, speed = 10 ** rng.uniform(-2, 4), 10 ** rng.uniform(1, 6)
        run = make_run([rng.random() for _ in range(rng.randint(1, 12))], seconds=seconds, speed=speed)
        assert disagreement(parse_transcript(run.transcript()), parse_learning_curve(run.csv())) is None


def test_both_ends_of_a_long_epoch_are_rounded():
    ends = (12000.0501, 12345.549)  # 12000.1 and 12345.5 in six digits: their difference is off by 0.1
    rows = ["epoch,time,val_accuracy", "0,0.0,0.0", *(f"{n},{end:.6g},0.5" for n, end in enumerate(ends, start=1))]
    lines = [DOCUMENT_001.format(1, ends[0], ends[0], 100.0, 0.5, 0.5, 0.5)]
    lines.append(DOCUMENT_001.format(2, ends[1], ends[1] - ends[0], 100.0, 0.5, 0.5, 0.5))
    assert disagreement(parse_transcript("\n".join(lines)), parse_learning_curve("\n".join(rows))) is None


def test_the_tutorial_s_rounded_curve_agrees_with_its_transcript():
    rng = random.Random(2)
    rows, lines, total = ["time,val_accuracy", "0.0,0.0"], [], 0.0
    for epoch in range(1, 30):
        seconds, accuracy = rng.uniform(0.5, 30), rng.random()
        total += seconds
        rows.append(f"{round(total, 1)},{round(accuracy, 4)}")
        lines.append(DOCUMENT_001.format(epoch, total, seconds, 100.0, accuracy, 0.5, accuracy))
    transcript, curve = parse_transcript("\n".join(lines)), parse_learning_curve("\n".join(rows))
    assert disagreement(transcript, curve) is None


@pytest.mark.parametrize(
    ("column", "value", "name"),
    [
        (6, "0.842", "validation accuracy"),
        (4, "0.99", "training accuracy"),
        (5, "0.1", "validation loss"),
        (1, "24.7", "cumulative time"),
        (2, "9999", "images/sec"),
    ],
)
def test_a_figure_that_differs_is_named_with_both_lines(make_run, column, value, name):
    run = make_run([0.8, 0.84, 0.86])
    run.rows[2][column] = value
    reason = disagreement(parse_transcript(run.transcript()), parse_learning_curve(run.csv()))
    assert reason.startswith(f"epoch 2: {name} is ")
    assert "(line 2)" in reason and "(line 4)" in reason


def test_another_number_of_epochs_disagrees(make_run):
    reason = disagreement(
        parse_transcript(make_run([0.8, 0.84]).transcript()), parse_learning_curve(make_run([0.8]).csv())
    )
    assert "2 epochs" in reason
