"""Install what a hub needs: its own environment, the proxy, the students' environment, nbgrader's settings.

    python3 deploy/jupyterhub/hub_install.py --to /opt/course-hub
    python3 deploy/jupyterhub/hub_install.py --to /opt/course-hub --grader /home/course/grader --owner course

A second call installs only what has changed. Nothing of the grader, no rubric and no source notebook goes into what
students can read; with ``--grader`` it goes into a folder of its own, for the course's account alone.
"""

import argparse
import fcntl
import hashlib
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONFIGURATION = (
    "jupyterhub_config.py", "hub_settings.py", "local_spawner.py", "roster_sign_in.py", "server_ports.py", "slurm_form.py",
    "slurm_spawner.py",
)  # fmt: skip
# The labs and the job scripts: their release copies go into the wheel (setup.py), so that `lab start` has them.
PACKAGES = (
    "course_lib", "data_prep", "assessment_print.py", "pyproject.toml", "setup.py", "README.md", "LICENSE", "labs", "deploy",
)  # fmt: skip

SYSTEM_PYTHONS = [
    f"{folder}/{name}"
    for folder in ("/usr/local/bin", "/usr/bin")
    for name in ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
]


class InstallError(RuntimeError):
    """Something is missing or failed; one line with the remedy."""


@dataclass
class Stamp:
    """A file in `folder` with a digest of what was installed there: a second call installs only what has changed.

    Parameters
    ----------
    folder : Path
    version : str
        What else than `files` decides: the Python, the owner.
    files : iterable of Path
        Requirements, or the installed files themselves.
    """

    folder: Path
    version: str
    files: Iterable[Path] = ()
    name: str = "installed"

    def is_current(self) -> bool:
        """Whether just this is installed."""
        try:
            return json.loads((self.folder / f"{self.name}.json").read_text()) == self._digest()
        except (OSError, ValueError):
            return False

    def write(self) -> None:
        """Note that it is installed now."""
        (self.folder / f"{self.name}.json").write_text(json.dumps(self._digest()))

    def _digest(self) -> str:
        parts = [self.version, *(f"{file}:{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in self.files)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def install(to: Path, say=print, gpu: bool | None = None) -> None:
    """Make or update ``hub``, ``proxy``, ``students``, ``config`` and ``deploy`` below `to`, readable by everybody.

    `gpu`: whether JupyterLab gets charts of GPUs; None: where this machine has NVIDIA's driver.

    Raises
    ------
    InstallError
        Students could not enter `to`, or run any Python of this machine; no npm; or a step failed.
    """
    os.umask(0o022)
    to.mkdir(parents=True, exist_ok=True)
    if not readable_by_others(to):
        raise InstallError(f"{to} is in a folder that students cannot enter; choose another place, such as /opt")
    with (to / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another `make hub` that installs is waited for
        _install(to, say, gpu)


def _install(to: Path, say, gpu: bool | None) -> None:
    python = find_python(say)
    hub, proxy, students = to / "hub", to / "proxy", to / "students"
    stamp = Stamp(hub, python, [HERE / "requirements-hub.txt"])
    if not stamp.is_current():
        say(f"hub: {hub}")
        _environment(python, hub)
        _pip(hub, "-r", HERE / "requirements-hub.txt")
        stamp.write()
    stamp = Stamp(proxy, "npm", [HERE / "package.json"])
    if not stamp.is_current():
        say(f"proxy: {proxy}")
        if shutil.which("npm") is None:
            packages = "apt-get install --no-install-recommends nodejs npm"
            raise InstallError(f"the hub's proxy needs Node.js and npm; Debian: {packages}")
        proxy.mkdir(exist_ok=True)
        shutil.copy(HERE / "package.json", proxy)
        _run("npm", "install", "--prefix", proxy, "--no-audit", "--no-fund", "--loglevel=error")
        stamp.write()
    needs = [HERE / "requirements-students.txt", ROOT / "constraints.txt", ROOT / "pyproject.toml"]
    stamp = Stamp(students, python, needs)
    packages = [ROOT / name for name in sources() if name.split("/")[0] in PACKAGES]
    labs = Stamp(students, "labs", packages, "labs-installed")
    new = not stamp.is_current()
    if new or not labs.is_current():
        with tempfile.TemporaryDirectory(prefix="course-hub-") as scratch:
            copy_sources(Path(scratch), PACKAGES)
            if new:
                say(f"students' environment: {students} (minutes; PyTorch is large)")
                _environment(python, students)
                _pip(students, "-c", ROOT / "constraints.txt", "-c", needs[0], "setuptools", f"{scratch}[hub]")
                stamp.write()
            else:
                say("students' environment: the labs' packages anew")
                _pip(students, "--no-deps", "--force-reinstall", "--no-build-isolation", scratch)
            labs.write()
    install_gpu_charts(students, gpu, say)
    if next(students.glob("lib/python*/site-packages/autograde"), None):
        raise InstallError(f"{students} holds autograde, which students must not have; remove it and try again")
    # Root runs the hub's configuration, so instructors must not be able to change it.
    (to / "deploy").mkdir(exist_ok=True)
    for name in CONFIGURATION:
        shutil.copy(HERE / name, to / "deploy")
    shutil.copytree(HERE / "config", to / "config", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (to / "config", *(to / "config").rglob("*")):  # copied with the modes of the checkout, which may be root's alone
        path.chmod(0o755 if path.is_dir() else 0o644)


def install_gpu_charts(students: Path, gpu: bool | None, say=print) -> bool:
    """JupyterLab's GPU charts for the students' environment, if `gpu`, or the driver beside us, says so.

    A front end of a cluster may have no GPU where its nodes do, so it can be said. Returns whether it installed.
    """
    needs = HERE / "requirements-gpu.txt"
    wanted = shutil.which("nvidia-smi") is not None if gpu is None else gpu
    stamp = Stamp(students, "gpu", [needs], "gpu-installed")
    if not wanted or stamp.is_current():
        return False
    say("students' environment: JupyterLab's GPU charts")
    _pip(students, "-c", ROOT / "constraints.txt", "-r", needs)
    stamp.write()
    return True


def install_grader(students: Path, folder: Path, owner: str) -> None:
    """Install ``autograde`` into `folder`, which only `owner` can read; it goes on that account's PYTHONPATH.

    `course_lib` is there whole: the students' has no answers, and hidden checks need them.
    """
    files = [ROOT / name for name in sources() if name.startswith(("autograde/", "course_lib/"))]
    needs = [*files, ROOT / "constraints.txt"]
    # Compiled packages fit one Python, and what is missing depends on the students' packages.
    stamp = f"{owner} {students} {next((students / 'lib').glob('python3*')).name}"
    if Stamp(folder, stamp, needs).is_current():
        return
    with tempfile.TemporaryDirectory(prefix="course-hub-") as scratch:
        source, built = Path(scratch) / "source", Path(scratch) / "built"
        copy_sources(source, ("autograde",))
        target = ["--target", built, "--no-deps", "--no-build-isolation", "-c", ROOT / "constraints.txt"]
        _pip(students, *target, source / "autograde", *missing_for_grader(students))
        copy_sources(built, ("course_lib",))
        Stamp(built, stamp, needs).write()
        unpack_as(owner, built, [one.name for one in built.iterdir()], folder, fresh=True)


def missing_for_grader(students: Path) -> list[str]:
    """What autograde requires and the students' environment does not have."""
    project = tomllib.loads((ROOT / "autograde/pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["lti"]]
    code = "from importlib.metadata import distributions; print(*(one.metadata['Name'] for one in distributions()))"
    done = subprocess.run([students / "bin/python", "-I", "-c", code], capture_output=True, text=True, check=True)

    def name(text: str) -> str:
        return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower()

    there = {name(text) for text in done.stdout.split()}
    return [need for need in wanted if name(need) not in there]


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
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", ROOT]
    listed = subprocess.run([*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True)
    if listed.returncode == 0:
        names = os.fsdecode(listed.stdout).split("\0")
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    skipped = ("__pycache__", ".venv", ".git", "runs", "data", "course", "my_labs")
    return sorted(name for name in names if name and name.split("/")[0] not in skipped and (ROOT / name).is_file())


def copy_sources(folder: Path, only: tuple[str, ...]) -> None:
    """Copy the repository's files below the names in `only`."""
    for name in sources():
        if name.split("/")[0] in only:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def readable_by_others(path: Path) -> bool:
    """Whether any account may enter `path`: it and every folder above let others pass."""
    path = path.resolve()
    return all(one.stat().st_mode & stat.S_IXOTH for one in (path, *path.parents))


def find_python(say=print, system: Iterable[str] = SYSTEM_PYTHONS) -> str:
    """A Python that students can run: the one that runs this, else one of the system's (pyenv's is often in root's home).

    Raises
    ------
    InstallError
        There is none of 3.11 or newer with `venv` and `ensurepip`.
    """
    program = os.path.realpath(sys.executable)
    if _suits_students(program):
        return program
    for other in map(os.path.realpath, system):
        if _suits_students(other):
            say(f"Python: {other}, because students cannot run {program}")
            return other
    raise InstallError(
        f"students cannot run {program}, and the system has no Python 3.11 or newer with venv; Debian: apt-get install "
        "python3-venv; else with uv: UV_PYTHON_INSTALL_DIR=/opt/python uv python install 3.12, and make hub PYTHON=…"
    )


def _suits_students(program: str) -> bool:
    """Whether any account can run a Python and its library, and environments can be made with it."""
    if not (os.path.isfile(program) and readable_by_others(Path(program))):
        return False
    code = "import ensurepip, sys, venv; print(sys.base_prefix if sys.version_info >= (3, 11) else '')"
    done = subprocess.run([program, "-I", "-c", code], capture_output=True, text=True)
    prefix = done.stdout.strip()
    return done.returncode == 0 and prefix != "" and readable_by_others(Path(prefix) / "lib")


def _environment(python: str, folder: Path) -> None:
    stamp = Stamp(folder, python, name="python")
    if not stamp.is_current():
        _run(python, "-m", "venv", "--clear", folder)
        _pip(folder, "--upgrade", "pip>=25")  # ensurepip's may be years old, and resolves extras wrongly
        stamp.write()


def _pip(environment: Path, *arguments: object) -> None:
    _run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        output = [line for line in done.stdout.strip().splitlines() if not line.startswith("WARNING")][-3:]
        raise InstallError(f"`{' '.join(words[:6])} …` failed: {' | '.join(output) or done.returncode}")


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("/opt/course-hub"), help="where (default: %(default)s)")
    parser.add_argument("--grader", type=Path, help="install autograde too, into this folder")
    parser.add_argument("--owner", default="course", help="the account that has the grader (default: %(default)s)")
    charts = "JupyterLab's GPU charts for students (default: where nvidia-smi is)"
    parser.add_argument("--gpu", action=argparse.BooleanOptionalAction, help=charts)
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
