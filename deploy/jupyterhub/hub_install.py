"""Install what a hub needs: its own environment, the proxy, the students' environment, nbgrader's settings.

    python3 deploy/jupyterhub/hub_install.py --to /opt/course-hub
    python3 deploy/jupyterhub/hub_install.py --to /opt/course-hub --grader /home/course/grader --owner course

A second call installs only what has changed. Nothing of the grader, no rubric and no source notebook goes into what
students can read; with ``--grader`` it goes into a folder of its own, for the course's account alone.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "InstallError",
    "copy_sources",
    "install",
    "install_gpu_charts",
    "install_grader",
    "readable_by_others",
    "sources",
    "unpack_as",
]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONFIGURATION = (
    "jupyterhub_config.py", "hub_settings.py", "local_spawner.py", "server_ports.py", "slurm_form.py", "slurm_spawner.py",
)  # fmt: skip
# The labs and the job scripts: their release copies go into the wheel (setup.py), so that `lab start` has them.
PACKAGES = (
    "course_lib", "data_prep", "assessment_print.py", "pyproject.toml", "setup.py", "README.md", "LICENSE", "labs", "deploy",
)  # fmt: skip


class InstallError(RuntimeError):
    """Something is missing or failed; one line with the remedy."""


def install(to: Path, say=print, gpu: bool | None = None) -> None:
    """Make or update ``hub``, ``proxy``, ``students``, ``config`` and ``deploy`` below `to`, readable by everybody.

    `gpu`: whether JupyterLab gets charts of GPUs; None: where this machine has NVIDIA's driver.

    Raises
    ------
    InstallError
        Students could not enter `to`, no npm, or a step failed.
    """
    os.umask(0o022)
    to.mkdir(parents=True, exist_ok=True)
    if not readable_by_others(to):
        raise InstallError(f"{to} lies in a folder that students cannot enter; choose another place, such as /opt")
    with (to / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another `make hub` that installs is waited for
        _install(to, say, gpu)


def _install(to: Path, say, gpu: bool | None) -> None:
    python = _python(to)
    hub, students = to / "hub", to / "students"
    if _changed(hub, python, [HERE / "requirements-hub.txt"]):
        say(f"hub: {hub}")
        _environment(python, hub)
        _pip(hub, "-r", HERE / "requirements-hub.txt")
        _done(hub, python, [HERE / "requirements-hub.txt"])
    proxy = to / "proxy"
    if _changed(proxy, "npm", [HERE / "package.json"]):
        say(f"proxy: {proxy}")
        if shutil.which("npm") is None:
            raise InstallError("the hub's proxy needs Node.js and npm; Debian: apt-get install nodejs npm")
        proxy.mkdir(exist_ok=True)
        shutil.copy(HERE / "package.json", proxy)
        _run("npm", "install", "--prefix", proxy, "--no-audit", "--no-fund", "--loglevel=error")
        _done(proxy, "npm", [HERE / "package.json"])
    needs = [HERE / "requirements-students.txt", ROOT / "constraints.txt", ROOT / "pyproject.toml"]
    labs = [ROOT / name for name in sources() if name.split("/")[0] in PACKAGES]
    with tempfile.TemporaryDirectory(prefix="course-hub-") as scratch:
        if _changed(students, python, needs):
            say(f"students' environment: {students} (minutes; PyTorch is large)")
            _environment(python, students)
            copy_sources(Path(scratch), PACKAGES)
            _pip(students, "-c", ROOT / "constraints.txt", "setuptools", "-r", needs[0], scratch)
            _done(students, python, needs)
            _done(students, "labs", labs, "labs-installed")
        elif _changed(students, "labs", labs, "labs-installed"):
            say("students' environment: the labs' packages anew")
            copy_sources(Path(scratch), PACKAGES)
            _pip(students, "--no-deps", "--force-reinstall", "--no-build-isolation", scratch)
            _done(students, "labs", labs, "labs-installed")
    install_gpu_charts(students, gpu, say)
    if next(students.glob("lib/python*/site-packages/autograde"), None):
        raise InstallError(
            f"{students} holds autograde, which students must not have; remove that folder and try again"
        )
    # Root runs the hub's configuration, so it may not lie where instructors can change it.
    (to / "deploy").mkdir(exist_ok=True)
    for name in CONFIGURATION:
        shutil.copy(HERE / name, to / "deploy")
    shutil.copytree(HERE / "config", to / "config", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def install_gpu_charts(students: Path, gpu: bool | None, say=print) -> bool:
    """JupyterLab's GPU charts for the students' environment, if `gpu`, or the driver beside us, says so.

    A front end of a cluster may have no GPU where its nodes do, so it can be said. Returns whether it installed.
    """
    needs = HERE / "requirements-gpu.txt"
    wanted = shutil.which("nvidia-smi") is not None if gpu is None else gpu
    if not wanted or not _changed(students, "gpu", [needs], "gpu-installed"):
        return False
    say("students' environment: JupyterLab's GPU charts")
    _pip(students, "-c", ROOT / "constraints.txt", "-r", needs)
    _done(students, "gpu", [needs], "gpu-installed")
    return True


def install_grader(students: Path, folder: Path, owner: str) -> None:
    """Install ``autograde`` into `folder`, which only `owner` can read; it goes on that account's PYTHONPATH."""
    files = [ROOT / name for name in sources() if name.startswith("autograde/")]
    needs = [*files, ROOT / "constraints.txt"]
    if not _changed(folder, owner, needs):
        return
    with tempfile.TemporaryDirectory(prefix="course-hub-") as scratch:
        source, built = Path(scratch) / "source", Path(scratch) / "built"
        copy_sources(source, ("autograde",))
        # What else the grader imports is in the students' environment already.
        target = ["--target", built, "--no-deps", "--no-build-isolation", "-c", ROOT / "constraints.txt"]
        _pip(students, *target, source / "autograde", "pebble")
        _done(built, owner, needs)
        unpack_as(owner, built, [one.name for one in built.iterdir()], folder, fresh=True)


def unpack_as(owner: str, source: Path, names: list[str], folder: Path, fresh: bool = False) -> None:
    """Copy files below `source` into a folder of somebody's, with that account's rights.

    Root that writes into a folder of another account may be led elsewhere by a link that is put there.
    """
    account = pwd.getpwnam(owner)
    who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}
    if fresh:
        subprocess.run(["rm", "-rf", folder], check=True, **who)
    subprocess.run(["mkdir", "-p", "-m", "700", folder], check=True, **who)
    listed = "".join(f"{name}\0" for name in names).encode()
    packed = subprocess.run(["tar", "-C", source, "--null", "-T", "-", "-cf", "-"], input=listed, capture_output=True)
    done = subprocess.run(["tar", "-C", folder, "-xf", "-"], input=packed.stdout, capture_output=True, **who)
    if packed.returncode or done.returncode:
        raise InstallError(f"{folder} could not be filled: {(packed.stderr + done.stderr).decode().strip()[-200:]}")


def sources() -> list[str]:
    """The repository's files: what Git knows or would add; in an unpacked archive, every file."""
    listed = subprocess.run(
        [
            "git",
            "-c",
            f"safe.directory={ROOT}",
            "-C",
            ROOT,
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        capture_output=True,
    )
    if listed.returncode == 0:
        names = os.fsdecode(listed.stdout).split("\0")
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    skipped = ("__pycache__", ".venv", ".git", "runs", "data", "course", "my_labs")
    return sorted(name for name in names if name and name.split("/")[0] not in skipped and (ROOT / name).is_file())


def copy_sources(folder: Path, only: tuple[str, ...] | None = None) -> None:
    """Copy the repository's files, or those below the names in `only`."""
    for name in sources():
        if only is None or name.split("/")[0] in only:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def readable_by_others(path: Path) -> bool:
    """Whether any account may enter `path`: it and every folder above let others pass."""
    path = path.resolve()
    return all(one.stat().st_mode & stat.S_IXOTH for one in (path, *path.parents))


def _python(to: Path) -> str:
    """The Python that runs this, or a copy of it: pyenv's and conda's often lie in root's home."""
    program = Path(os.path.realpath(sys.executable))
    if readable_by_others(program):
        return str(program)
    base, copy = Path(sys.base_prefix).resolve(), to / "python"
    if not program.is_relative_to(base):
        raise InstallError(
            f"students cannot run {program}; use a Python of the system's: make hub PYTHON=/usr/bin/python3"
        )
    if _changed(copy, sys.version, [program]):
        skipped = shutil.ignore_patterns("site-packages", "test", "__pycache__", "share")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(base, copy, symlinks=True, ignore=skipped)
        _find_library_beside(copy / program.relative_to(base), base / "lib")
        _done(copy, sys.version, [program])
    if _changed(copy, sys.version, [program], "bytecode"):
        # Students cannot write here: what is not compiled now, each of their processes would compile for itself.
        _run(copy / program.relative_to(base), "-m", "compileall", "-qq", "-x", "lib2to3/tests", copy / "lib")
        _done(copy, sys.version, [program], "bytecode")
    python = str(copy / program.relative_to(base))
    version = [python, "-c", "import sys; print(sys.version)"]
    told = subprocess.run(version, user=65534, group=65534, extra_groups=[], capture_output=True, text=True)
    if told.stdout.strip() != sys.version:
        raise InstallError(f"a copy of {base} does not run elsewhere; use a Python of the system's: make hub PYTHON=…")
    return python


def _find_library_beside(program: Path, library: Path) -> None:
    """Where a program looks for libpython by an absolute path, let it look in ``lib`` beside its own folder."""
    written, wanted = os.fsencode(library), b"$ORIGIN/../lib"
    content = program.read_bytes()
    if written + b"\0" in content and len(wanted) <= len(written):
        mode = program.stat().st_mode
        program.write_bytes(content.replace(written + b"\0", wanted.ljust(len(written) + 1, b"\0")))
        program.chmod(mode)


def _digest(of: str, files: Iterable[Path]) -> str:
    parts = [of, *(f"{file}:{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _changed(folder: Path, of: str, files: Iterable[Path], stamp: str = "installed") -> bool:
    try:
        return json.loads((folder / f"{stamp}.json").read_text()) != _digest(of, files)
    except (OSError, ValueError):
        return True


def _done(folder: Path, of: str, files: Iterable[Path], stamp: str = "installed") -> None:
    (folder / f"{stamp}.json").write_text(json.dumps(_digest(of, files)))


def _environment(python: str, folder: Path) -> None:
    if _changed(folder, python, (), "python"):
        _run(python, "-m", "venv", "--clear", folder)
        _pip(folder, "--upgrade", "pip>=25")  # ensurepip's may be years old, and resolves extras wrongly
        _done(folder, python, (), "python")


def _pip(environment: Path, *arguments: object) -> None:
    _run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        said = [line for line in done.stdout.strip().splitlines() if not line.startswith("WARNING")][-3:]
        raise InstallError(f"`{' '.join(words[:6])} …` failed: {' | '.join(said) or done.returncode}")


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("/opt/course-hub"), help="where (default: %(default)s)")
    parser.add_argument("--grader", type=Path, help="install autograde too, into this folder")
    parser.add_argument("--owner", default="course", help="the account that has the grader (default: %(default)s)")
    parser.add_argument(
        "--gpu",
        action=argparse.BooleanOptionalAction,
        help="JupyterLab's GPU charts for students (default: where nvidia-smi is)",
    )
    options = parser.parse_args()
    try:
        install(options.to, gpu=options.gpu)
        if options.grader:
            install_grader(options.to / "students", options.grader, options.owner)
    except (InstallError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
