"""The container files agree with each other and with the lists of packages, and keep out what no image may hold."""

import ast
import json
import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import PurePath

import pytest

from autograde.sandbox import doctor as sandbox_doctor
from course_lib.system.doctor import examine

CONTAINER = "deploy/container/Containerfile"
SET_BY_DOCKER = {"$DEVICE": "{{ DEVICE }}", "$TORCH_CPU": "{{ TORCH_CPU }}"}


@pytest.fixture(scope="module")
def stages(repository):
    """Stage → its instructions, as pairs of a word and its arguments; before the first stage, under the name ""."""
    text = re.sub(r"^\s*#.*\n", "", (repository / CONTAINER).read_text(), flags=re.MULTILINE)
    stages, name = {"": []}, ""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line:
            word, arguments = line.split(maxsplit=1)
            if word == "FROM":
                name = arguments.split()[-1]
                stages[name] = []
            stages[name].append((word, arguments))
    return stages


def runs(instructions):
    return [arguments for word, arguments in instructions if word == "RUN"]


@pytest.fixture(scope="module")
def definition(repository):
    """Stage → section → its lines, of the Apptainer definition; the header is the section ""."""
    stages = {}
    for part in re.split(r"^(?=Bootstrap:)", (repository / "deploy/container/apptainer.def").read_text(), flags=re.M)[
        1:
    ]:
        sections, name = {"": []}, ""
        for line in re.sub(r"\\\n\s*", "", part).splitlines():
            if line.startswith("%"):
                name = line[1:]
                sections[name] = []
            elif line.strip() and not line.startswith("#"):
                sections[name].append(line.strip())
        stages[dict(line.split(": ") for line in sections[""])["Stage"]] = sections
    return stages


def test_targets_are_there_and_end_as_an_account_without_rights(stages):
    assert {"student", "grader"} <= stages.keys()
    for target in ("student", "grader"):
        chain, name = [], target
        while name in stages:
            chain = stages[name] + chain
            name = stages[name][0][1].split()[0]
        assert name == "${BASE}"
        assert [arguments for word, arguments in chain if word == "USER"][-1] == "1000"
        assert chain[-1][0] == "CMD" and ast.literal_eval(chain[-1][1])


def test_no_solution_reaches_the_students_image(stages):
    copied = [
        arguments
        for stage in ("system", "torch", "student")
        for word, arguments in stages[stage]
        if word in ("COPY", "ADD")
    ]
    assert copied == [
        "constraints.txt deploy/jupyterhub/requirements-students.txt /opt/lab-env/",
        "--from=wheel /course/dist /opt/lab-env/dist",
    ]
    [build] = runs(stages["wheel"])
    assert build.startswith("pip wheel --no-deps ")  # tests/test_packaging.py: that wheel holds no answer


def test_apptainer_s_steps_are_those_of_the_containerfile(repository, stages, definition):
    for name, others in (("wheel", ("system", "wheel")), ("student", ("system", "torch", "student"))):
        [base] = [arguments for word, arguments in stages[""] if word == "ARG"]
        assert base in definition[name]["arguments"] and "From: {{ BASE }}" in definition[name][""]
        steps = [
            step for other in others for step in runs(stages[other]) if "useradd" not in step
        ]  # the host's account
        for ours, theirs in SET_BY_DOCKER.items():
            steps = [step.replace(ours, theirs) for step in steps]
        [settings] = [arguments for word, arguments in stages["system"] if word == "ENV"]
        assert definition[name]["post"] == [f"export {settings}", *steps]
    defaults = {arguments for word, arguments in stages["torch"] if word == "ARG"}
    assert defaults < {*definition["student"]["arguments"]}
    sources = {line.split()[0] for line in definition["wheel"]["files"]}
    hub = ast.parse((repository / "deploy/jupyterhub/hub_install.py").read_text())
    [needed] = [node.value for node in hub.body if isinstance(node, ast.Assign) and node.targets[0].id == "PACKAGES"]
    assert sources == {*ast.literal_eval(needed)}
    for sections in definition.values():
        assert all((repository / line.split()[0]).exists() for line in sections["files"])


def test_every_package_that_a_step_names_is_pinned(repository, stages):
    pins = (repository / "constraints.txt").read_text()
    [torch] = runs(stages["torch"])
    assert "-c /opt/lab-env/constraints.txt torch torchvision" in torch
    assert re.search(r"^torch==", pins, re.M) and re.search(r"^torchvision==", pins, re.M)
    [course] = runs(stages["student"])
    assert "-c /opt/lab-env/constraints.txt -c /opt/lab-env/requirements-students.txt" in course and "[hub]" in course
    [base] = [arguments for word, arguments in stages[""] if word == "ARG"]
    assert re.fullmatch(r"BASE=docker\.io/library/debian:\d+\.\d+-slim", base)


def test_what_git_ignores_enters_no_image(repository):
    """A class's submissions and grades, runs, data, environments."""
    lines = (repository / ".dockerignore").read_text().splitlines()
    kept_out = {line for line in lines if line and line[0] != "#"}
    for line in (repository / ".gitignore").read_text().split():
        name = line.rstrip("/")
        rooted = name.startswith("/")  # Git's other patterns hold in every folder
        assert (name[1:] if rooted else f"**/{name}") in kept_out, line
    def ignored(path):  # the last pattern that matches decides; one of a folder holds for what is in it
        found = False
        for line in lines:
            pattern = line.lstrip("!")
            parts = [path, *map(str, PurePath(path).parents)]
            if pattern.startswith("**/"):
                parts = [PurePath(part).name for part in parts]
            if any(fnmatchcase(part, pattern.removeprefix("**/")) for part in parts):
                found = not line.startswith("!")
        return found

    listed = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True).stdout.split("\n")
    assert [path for path in listed if path and ignored(path)] == []
    assert ignored("labs/01_single_gpu/run/run.json") and ignored("course/gradebook.db") and ignored("a/assessment.out")


def test_the_development_container_is_the_students_image(repository, stages):
    container = json.loads((repository / ".devcontainer/devcontainer.json").read_text())
    build = container["build"]
    assert (repository / ".devcontainer" / build["dockerfile"]).resolve() == repository / CONTAINER
    assert (repository / ".devcontainer" / build["context"]).resolve() == repository and build["target"] in stages
    assert "--shm-size=2g" in container["runArgs"]


def test_the_doctor_says_whether_the_sandbox_works(monkeypatch):
    def findings(why):
        monkeypatch.setattr(sandbox_doctor, "missing_sandbox", lambda: why)
        return [finding for finding in examine([sandbox_doctor.sandbox])]

    assert [finding.state for finding in findings(None)] == ["fine"]
    [missing] = findings("no sandbox: (Operation not permitted); install it")
    assert (
        missing.state == "absent"
        and "Operation not permitted" in missing.found
        and "administrator.md" in missing.remedy
    )
