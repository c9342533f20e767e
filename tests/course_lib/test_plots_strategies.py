"""The figures of the strategies say what the table says."""

import math
from dataclasses import replace

import matplotlib

matplotlib.use("agg")

import pytest

from course_lib.training.strategies import CurvePoint, StrategyResult, results_table
from course_lib.training.strategies.figures import strategy_comparison


def run(name, seed, seconds, accuracy, sent, processes=2):
    curve = (CurvePoint(seconds / 2, 100, accuracy / 2), CurvePoint(seconds, 200, accuracy))
    return StrategyResult(
        name, seed, 2, processes, 2, 200, 20, seconds, 3.0, 1.6, sent, 1, math.nan, True, 1.0, False, curve
    )


NAMES = ["single", "synchronous", "parameter server", "parallel SGD"]
NUMBERS = zip(NAMES, (8, 5, 9, 4), (0.82, 0.81, 0.8, 0.6), (0, 4_000_000, 8_000_000, 90_000), (1, 2, 3, 2), strict=True)
RUNS = [
    run(name, seed, seconds + seed, accuracy + 0.01 * seed, sent, processes)
    for name, seconds, accuracy, sent, processes in NUMBERS
    for seed in (0, 1)
]


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_three_panels_with_means_spread_and_what_is_missing():
    figure = strategy_comparison(results_table(RUNS, 0.8), "the finding", 0.8)
    figure.canvas.draw()
    timed, accuracy, sent = figure.axes
    assert words(timed) == ["8.5 s", "5.5 s", "9.5 s", "not reached"]
    assert words(accuracy) == ["82.5%", "81.5%", "80.5%", "60.5%"]
    assert words(sent) == ["no message", "4 MB", "8 MB", "90 kB"]
    assert [label.get_text() for label in timed.get_yticklabels()] == NAMES
    assert timed.yaxis_inverted() and "3 processes share 2 core(s)" in figure.get_supxlabel()
    marks = [bar.lines[0] for bar in accuracy.containers]
    assert [mark.get_markerfacecolor() == "white" for mark in marks] == [False, False, True, False]
    low, high = accuracy.containers[0].lines[2][0].get_segments()[0][:, 0]
    assert (high - low) / 2 == pytest.approx(0.01 / math.sqrt(2))  # one standard deviation of two seeds
    assert len([line for line in accuracy.lines if line.get_alpha() == 0.3]) == 4


def test_a_target_that_some_seeds_or_none_reach():
    figure = strategy_comparison(results_table(RUNS, 0.815), "t", 0.815)
    assert "not reached by 1 of 2" in words(figure.axes[0])
    figure = strategy_comparison(results_table(RUNS[:2], 0.99), "t", 0.99)
    figure.canvas.draw()
    assert words(figure.axes[0]) == ["not reached"] and words(figure.axes[2]) == ["no message"]
    assert not figure.get_supxlabel()


def test_the_note_names_every_number_of_processes():
    runs = [run("parameter server", 0, 9, 0.8, 1, 3), run("parameter server", 1, 9, 0.8, 1, 5), RUNS[0]]
    note = strategy_comparison(results_table(runs, 0.8), "t", 0.8).get_supxlabel()
    assert "3 processes share 2 core(s), or 5 processes share 2 core(s)" in note


def test_averages_that_were_not_made_reach_no_target():
    made = run("parallel SGD", 0, 8, 0.8, 1)
    curve = (replace(made.curve[0], hypothetical=True), made.curve[1])
    timed = strategy_comparison(results_table([replace(made, curve=curve)], 0.3), "t", 0.3).axes[0]
    assert words(timed) == ["8.0 s"]
