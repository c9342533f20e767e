"""Axes, grids and the names of trials."""

import pytest
from toy_sweep import make_toy_course

from course_lib.runs.labs import Lab, find_lab
from course_lib.runs.parameters import ParameterError
from course_lib.runs.sweep import grid, parse_axis
from course_lib.runs.sweep.grid import side_by_side
from course_lib.runs.sweep.trials import plan
from course_lib.runs.sweep.trials_file import read_trials


def test_a_grid_is_every_combination_the_last_axis_fastest():
    assert grid(a=[1, 2], b=["x", "y"]) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert grid() == [{}]


@pytest.mark.parametrize(
    "text, values",
    [
        ("batch_size=64,128,256", [64, 128, 256]),
        ("batch_size = 64 , 128", [64, 128]),
        ("base_lr=0.1,1e-3,.5", [0.1, 0.001, 0.5]),
        ("rule=linear,sqrt", ["linear", "sqrt"]),
        ("sync=true,false", [True, False]),
        ("num_gpus=1:4", [1, 2, 3, 4]),
        ("num_gpus=1:8:3", [1, 4, 7]),
        ("batch_size=32:256:*2", [32, 64, 128, 256]),
        ("batch_size=32:100:*2,1000", [32, 64, 1000]),
        ("base_lr=0.1:0.4:0.1", [0.1, 0.2, 0.3, 0.4]),
        ("base_lr=0.001:1:*10", [0.001, 0.01, 0.1, 1.0]),
        ("num_gpus=2,1,2", [2, 1]),
    ],
)
def test_axes(text, values):
    name, found = parse_axis(text)
    assert name == text.split("=")[0].strip()
    assert found == values and [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    "text, told",
    [
        ("batch_size", "KEY=V1"), ("=1", "KEY=V1"), ("a b=1", "KEY=V1"), ("batch_size=", "no values"), ("batch_size= ", "no values"),
        ("batch_size=1,,2", "missing"), ("batch_size=4:1", "never comes"), ("batch_size=1:4:0", "never comes"),
        ("batch_size=1:4:-1", "never comes"), ("batch_size=0:4:*2", "never comes"), ("batch_size=1:4:*1", "never comes"),
        ("batch_size=1:x", "no range"), ("batch_size=1:2:3:4", "no range"), ("lr=nan:1", "no range"), ("lr=0:inf", "no range"),
        ("n=1:1000000", "1,000,000 values"), ("lr=-1e308:1e308", "at most"), ("lr=1e-300:1e300:*2", "at most"),
        ("x=[1", "cannot be read"), ("x={a: 1}", "no range"),
    ],
)  # fmt: skip
def test_bad_axes_are_refused_in_one_line(text, told):
    with pytest.raises(ParameterError, match=told) as raised:
        parse_axis(text)
    assert "\n" not in str(raised.value) and repr(text) in str(raised.value)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.chdir(make_toy_course(tmp_path))
    return find_lab("1")


def test_trials_are_named_as_the_tutorial_names_its_curves(toy):
    trials = plan(toy, "laptop", {"num_gpus": [2], "batch_size": [128]}, {}, repeats=2)
    assert [trial.folder for trial in trials] == [
        "2ranks-128bs-0.1lr-0.9m-5w/seed-0",
        "2ranks-128bs-0.1lr-0.9m-5w/seed-1",
    ]
    assert [trial.seed for trial in trials] == [0, 1] and trials[0].ranks == 2
    assert trials[0].parameters["epochs"] == 2 and "output_dir" not in trials[0].parameters


def test_what_the_name_does_not_hold_is_added_to_it(toy):
    trials = plan(toy, "smoke", {"epochs": [1, 2], "rule": ["linear", "a/../b"]}, {"seed": 7}, repeats=1)
    assert trials[0].folder == "1ranks-32bs-0.1lr-0.9m-5w-epochs_1-rule_linear/seed-7"
    assert trials[3].folder == "1ranks-32bs-0.1lr-0.9m-5w-epochs_2-rule_a_.._b/seed-7"


def test_small_rates_have_names_of_their_own(toy):
    rates = [1e-5, 1.00000001e-5, 0.1, 1.0, 10.0]
    trials = plan(toy, "laptop", {"base_lr": rates}, {}, repeats=1)
    assert len({trial.folder for trial in trials}) == 5
    assert trials[3].folder.startswith("1ranks-32bs-1lr-")


def test_a_long_grid_reads_the_notebook_as_often_as_a_short_one(toy, monkeypatch):
    calls, real = [], Lab.defaults
    monkeypatch.setattr(Lab, "defaults", lambda lab: calls.append(lab) or real(lab))
    plan(toy, "laptop", {"batch_size": [1]}, {}, repeats=1)
    short = len(calls)
    plan(toy, "laptop", {"batch_size": range(1, 1000)}, {}, repeats=1)
    assert len(calls) == 2 * short


def test_seeds_can_be_an_axis(toy):
    trials = plan(toy, "laptop", {"seed": [3, 5], "num_gpus": [1, 2]}, {}, repeats=1)
    assert [trial.folder for trial in trials] == [
        f"{ranks}ranks-32bs-0.1lr-0.9m-5w/seed-{seed}" for seed in (3, 5) for ranks in (1, 2)
    ]


@pytest.mark.parametrize(
    "axes, fixed, repeats, told",
    [
        ({}, {}, 1, "nothing to vary"),
        ({"batchsize": [1]}, {}, 1, "no parameter 'batchsize'; did you mean batch_size"),
        ({"batch_size": [1]}, {"num_gpu": 1}, 1, "did you mean num_gpus"),
        ({"output_dir": ["x"]}, {}, 1, "output_dir is chosen by the sweep"),
        ({"batch_size": [1]}, {"batch_size": 2}, 1, "both varied"),
        ({"batch_size": [1]}, {}, 0, "--repeat 0"),
        ({"seed": [1, 2]}, {}, 2, "seed is varied"),
        ({"batch_size": ["many"]}, {}, 1, "batch_size"),
        ({"batch_size": [0]}, {}, 1, "batch_size = 0"),
        ({"num_gpus": [0]}, {}, 1, "num_gpus = 0"),
        ({"optimizer": ["sgd", "novgrad"]}, {}, 1, "optimizer = 'novgrad': must be one of sgd, novograd; did you mean novograd"),
        ({"batch_size": [1]}, {"optimizer": "nope"}, 1, "optimizer = 'nope'"),
        ({"base_lr": [0.1, 10**7]}, {}, 1, "base_lr"),
        ({"rule": ["a b", "a_b"]}, {}, 1, "names two trials"),
        ({"batch_size": range(1, 2000), "epochs": range(1, 2000)}, {}, 1, "3,996,001 trials"),
    ],
)  # fmt: skip
def test_bad_grids_are_refused_in_one_line(toy, axes, fixed, repeats, told):
    with pytest.raises(ParameterError, match=told) as raised:
        plan(toy, "laptop", axes, fixed, repeats)
    assert "\n" not in str(raised.value)


def test_a_lab_without_a_seed_cannot_be_swept(toy):
    toy.notebook.write_text(toy.notebook.read_text().replace("seed = 0", "speed = 0"))
    with pytest.raises(ParameterError, match="needs num_gpus and seed"):
        plan(toy, "laptop", {"batch_size": [1]}, {}, 1)


def test_axes_side_by_side():
    assert side_by_side(a=[1, 2, 1], b=["x", "y", "z"]) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 1, "b": "z"}]
    assert parse_axis("a=1,1,2", once=False) == ("a", [1, 1, 2])
    with pytest.raises(ParameterError, match="as many values as the others; a has 2, b has 3"):
        side_by_side(a=[1, 2], b=[1, 2, 3])


def test_zipped_trials_are_as_many_as_the_values(toy):
    axes = {"num_gpus": [1, 1, 2], "batch_size": [128, 64, 64]}
    trials = plan(toy, "laptop", axes, {}, repeats=2, zipped=True)
    found = [(trial.ranks, trial.parameters["batch_size"], trial.seed) for trial in trials]
    assert found == [(n, b, s) for n, b in ((1, 128), (1, 64), (2, 64)) for s in (0, 1)]
    with pytest.raises(ParameterError, match="names two trials"):
        plan(toy, "laptop", {"num_gpus": [1, 1], "batch_size": [64, 64]}, {}, repeats=1, zipped=True)


@pytest.mark.parametrize(
    "content, expected",
    [
        ("num_gpus,rule\n1,linear\n2,sqrt\n", {"num_gpus": [1, 2], "rule": ["linear", "sqrt"]}),
        ("\ufeffnum_gpus, base_lr\r\n1, 1e-3\r\n\r\n2,-0.5\r\n", {"num_gpus": [1, 2], "base_lr": [0.001, -0.5]}),
        ('rule\n"linear"\n', {"rule": ["linear"]}),
    ],
)
def test_trials_from_a_file(tmp_path, content, expected):
    (tmp_path / "trials.csv").write_text(content, encoding="utf-8")
    assert read_trials(tmp_path / "trials.csv") == expected


@pytest.mark.parametrize(
    "content, told",
    [
        (b"", "is empty; its first line needs names"),
        (b"\n \n,\n", "is empty"),
        (b"1\n2\n", "has '1', which is no parameter's name"),
        (b"num_gpus\n", "has names of parameters and no trials"),
        (b"num_gpus,rule\n1\n", "line 2 has 1 values for 2 parameters"),
        (b"num_gpus,rule\n1,linear\n\n2,linear,3\n", "line 4 has 3 values for 2 parameters"),
        (b"num_gpus;rule\n1;linear\n", "separate the columns by commas"),
        (b"num_gpus,num_gpus\n1,1\n", "has num_gpus twice"),
        (b"num_gpus,rule\n1,\n", "line 2, rule: the value is missing"),
        (b"num_gpus\n=1+1\n", "line 2, num_gpus: '=1+1' is a formula; save the file with values"),
        (b"rule\n@SUM(A1)\n", "is a formula"),
        (b"rule\n-cmd\n", "is a formula"),
        (b"rule\n[1\n", "'[1' cannot be read"),
        (b"rule\n\xff\n", "it is not UTF-8"),
        (b'rule\n"linear\n', "cannot be read"),
        (b"rule\n" + b"linear\n" * 10_001, "more than 10,000 trials"),
        (None, "No such file"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_it(tmp_path, content, told):
    path = tmp_path / "trials.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ParameterError) as raised:
        read_trials(path)
    assert told in str(raised.value) and "\n" not in str(raised.value) and f"-g @{path}" in str(raised.value)
