"""`lab start`, and which notebook `lab run` then means."""

import json
import re
import shutil
from pathlib import Path

import click
import pytest

from course_lib.runs.labs import UnknownLabError, find_lab
from course_lib.runs.release_copy import ReleaseError, release_notebook
from course_lib.runs.start_lab import start_labs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A student's folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*names, **options):
    """The lines that `lab start` prints."""
    lines = []
    start_labs(names, **options, log=lines.append)
    return lines


def refused(*names, **options):
    with pytest.raises(click.UsageError) as raised:
        start_labs(names, **options)
    assert "\n" not in raised.value.message
    return raised.value.message


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_lab_to_fill_in_with_its_profiles_and_the_cluster_s_scripts(folder, repository):
    assert start("1") == ["01_single_gpu/01_single_gpu.ipynb", "deploy: job scripts for Slurm and PBS"]
    lab = folder / "01_single_gpu"
    text = (lab / "01_single_gpu.ipynb").read_text()
    assert "YOUR CODE HERE" in text and "SOLUTION" not in text
    assert "Explain; do not solve." in (lab / "AGENTS.md").read_text()
    assert (lab / "profiles.yaml").read_bytes() == (repository / "labs/01_single_gpu/profiles.yaml").read_bytes()
    scripts = {path.name for path in (folder / "deploy").rglob("*") if path.is_file()}
    assert {"lab.sbatch", "train.sbatch", "stage_data.sbatch", "lab.pbs"} <= scripts
    assert not [name for name in scripts if name.startswith("grade")]
    assert {path.name for path in folder.iterdir()} == {
        "01_single_gpu", "deploy", "nbgrader_config.py", "sources.md"
    }  # fmt: skip


def test_links_of_the_notebooks_lead_somewhere_in_a_student_s_folder(all_labs):
    for notebook in all_labs.glob("*/*.ipynb"):
        for link in re.findall(r"\]\((\.[^)#\s]+)", notebook.read_text()):
            assert (notebook.parent / link).exists(), f"{notebook.name} links {link}"


def test_a_student_s_work_is_never_written_over(folder):
    start("01", "02")
    (folder / "01_single_gpu" / "01_single_gpu.ipynb").write_text("my work")
    (folder / "deploy" / "slurm" / "lab.sbatch").write_text("my partition")
    before = everything(folder)
    message = refused("01")
    assert "01_single_gpu is there already" in message and "-o DIR" in message
    refused("03", "01")  # nothing of lab 03 either
    assert everything(folder) == before
    assert [line for line in start("03") if "lab.sbatch" in line and "left as it is" in line]
    assert before.items() <= everything(folder).items()
    start("01", output="anew")
    assert "YOUR CODE HERE" in (folder / "anew/01_single_gpu/01_single_gpu.ipynb").read_text()


def test_a_folder_of_that_name_and_a_fetched_notebook_are_a_student_s_work_too(folder, monkeypatch):
    (folder / "01_single_gpu").mkdir()
    refused("01")
    (folder / "02_ddp").symlink_to("nowhere")
    refused("02")
    (folder / "03_batch_size_scaling.ipynb").touch()
    refused("03")


def test_all_labs_that_are_not_there_yet(folder):
    start("02")
    (folder / "02_ddp" / "02_ddp.ipynb").write_text("my work")
    assert len(start(every=True)) == len(LABS) - 1
    assert (folder / "02_ddp" / "02_ddp.ipynb").read_text() == "my work"
    assert start(every=True) == []


def test_the_scripts_alone_beside_a_lab_that_was_fetched(folder):
    (folder / "01_single_gpu").mkdir()
    assert start(scripts_only=True) == ["deploy: job scripts for Slurm and PBS"]
    assert (folder / "deploy/slurm/lab.sbatch").is_file()
    assert start(scripts_only=True) == ["deploy: all job scripts are there already"]


def test_bad_arguments_are_one_line(folder):
    assert "lab start 01" in refused() and "01_single_gpu" in refused()
    assert "'99'" in refused("99")
    (folder / "file").touch()
    assert "choose another folder by -o DIR" in refused("01", output="file")
    assert list(folder.iterdir()) == [folder / "file"]


def test_a_number_means_the_student_s_own_notebook(folder, monkeypatch):
    start("01")
    mine = folder / "01_single_gpu" / "01_single_gpu.ipynb"
    assert find_lab("01").notebook == find_lab("01_single_gpu").notebook == mine
    (folder / "01_single_gpu" / "run").mkdir()
    for below in ("01_single_gpu", "01_single_gpu/run"):
        monkeypatch.chdir(folder / below)
        assert find_lab("1").notebook == mine


def test_a_path_is_that_notebook_anywhere(folder):
    start("01")
    mine = folder / "01_single_gpu" / "01_single_gpu.ipynb"
    other = shutil.copy(mine, folder / "01_single_gpu" / "second try.ipynb")
    (folder / "alone").mkdir()
    alone = shutil.copy(mine, folder / "alone" / "mine.ipynb")
    for name in ("01_single_gpu/01_single_gpu.ipynb", "01_single_gpu/", str(mine)):
        lab = find_lab(name)
        assert lab.notebook == mine and lab.name == "01_single_gpu" and "smoke" in lab.profiles()
    assert find_lab(str(other)).name == "second try" and "smoke" in find_lab(str(other)).profiles()
    assert find_lab(str(alone)).profiles() == {"laptop": {}}
    with pytest.raises(UnknownLabError, match=re.escape(f"no notebook nope.ipynb in {folder}")):
        find_lab("nope.ipynb")


def test_a_number_never_means_a_submission(folder, repository, monkeypatch):
    theirs = folder / "course" / "submitted" / "ada"
    theirs.mkdir(parents=True)
    start("01", output=theirs)
    monkeypatch.chdir(theirs)
    for name in ("01", "01_single_gpu"):
        assert find_lab(name).notebook == repository / "labs/01_single_gpu/01_single_gpu.ipynb"
    assert find_lab("01_single_gpu/01_single_gpu.ipynb").notebook.is_relative_to(theirs)


def test_a_number_never_means_what_anybody_may_have_put_there(folder, repository, monkeypatch):
    (shared := folder / "shared").mkdir()
    start("01", output=shared)
    (mine := shared / "mine").mkdir()
    monkeypatch.chdir(mine)
    assert find_lab("01").notebook.is_relative_to(shared)
    shared.chmod(0o1777)
    assert not find_lab("01").notebook.is_relative_to(shared)
    monkeypatch.chdir(shared)
    assert find_lab("01").notebook.is_relative_to(shared)


def cell(source, kind="code", **nbgrader):
    marks = {"grade": False, "solution": False, "locked": False, "grade_id": "a", **nbgrader}
    return {"cell_type": kind, "id": "c", "source": source, "metadata": {"nbgrader": marks} if nbgrader else {}}


@pytest.mark.parametrize(
    ("source", "marks", "left"),
    [
        ("def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n", {"solution": True},
         "def f():\n    # YOUR CODE HERE\n    raise NotImplementedError()\n"),
        ("return 1", {"solution": True}, "# YOUR CODE HERE\nraise NotImplementedError()"),
        ("check(f)\n### BEGIN HIDDEN TESTS\nassert f() == 1\n### END HIDDEN TESTS", {"grade": True, "points": 1}, "check(f)"),
        ("Do it.\n=== BEGIN MARK SCHEME ===\n2 points\n=== END MARK SCHEME ===", {"task": True}, "Do it."),
        ("plain = 1", {}, "plain = 1"),
    ],
)  # fmt: skip
def test_what_is_cleared_is_what_nbgrader_clears(source, marks, left):
    """Regions that our labs do not have yet are cleared, too; nbgrader's own preprocessors are the oracle."""
    import nbformat
    from nbgrader import preprocessors as stock

    notebook = {"cells": [cell(source, **marks)], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (mine,) = release_notebook(notebook)["cells"]
    assert "".join(mine["source"]) == left
    theirs = nbformat.from_dict(notebook)
    steps = stock.LockCells, stock.ClearSolutions, stock.ClearHiddenTests, stock.ClearMarkScheme, stock.ComputeChecksums
    for step in steps:
        theirs, _ = step().preprocess(theirs, {})
    assert "".join(mine["source"]) == theirs.cells[0].source
    assert mine["metadata"] == theirs.cells[0].metadata


@pytest.mark.parametrize(
    "source, why",
    [("BEGIN SOLUTION\n", "BEGIN SOLUTION without END"), ("BEGIN HIDDEN TESTS", "BEGIN HIDDEN TESTS without END"),
     ("BEGIN SOLUTION\nBEGIN SOLUTION\nEND SOLUTION", "BEGIN SOLUTION within"),
     ("### BEGIN SOLUTION\nx\n### END SOLUTION", "not marked")],
)  # fmt: skip
def test_a_region_that_is_not_closed_or_not_marked_makes_no_copy(source, why):
    with pytest.raises(ReleaseError, match=why):
        release_notebook({"cells": [cell(source, grade=True, points=1)], "metadata": {}})


LABS = sorted(path.stem for path in Path(__file__).parents[2].glob("labs/[0-9][0-9]_*/*.ipynb"))


@pytest.fixture(scope="module")
def all_labs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("student")
    start_labs([], folder, every=True, log=lambda line: None)
    return folder


@pytest.mark.parametrize("name", LABS)
def test_the_cluster_section_names_files_that_a_student_has(all_labs, name):
    """Scripts, programs and lab numbers of that section are those in the student's folder."""
    notebook = json.loads((all_labs / name / f"{name}.ipynb").read_text())
    (section,) = ["".join(one["source"]) for one in notebook["cells"] if one["id"] == "cluster"]
    section = section.partition("## Where next")[0].replace("$here", f"{name}/run").replace("/…/", "")
    assert "repository" not in section and "labs/" not in section
    assert f"`{name}/` and `deploy/`" in section and f"lab start {name[:2]}" in section
    scripts = set(re.findall(r"deploy/(?:slurm|pbs)/\S+?\.(?:sbatch|pbs)", section))
    assert scripts and not [path for path in scripts if not (all_labs / path).is_file()]
    programs = set(re.findall(r"(?<![\w/-])\d\d_\w+/[\w./-]+\.py", section))  # run/ is what the notebook writes
    assert not [path for path in programs if f"{name}/run/" not in path and not (all_labs / path).is_file()]
    numbers = re.findall(r"(?:lab\.sbatch|lab sweep|lab run|NUMBER=) ?(\d\d)", section)
    assert set(numbers) <= {name[:2]}
