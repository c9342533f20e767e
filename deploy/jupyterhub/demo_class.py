"""What the demo's hub is about: accounts, a checkout for the course's own, exchange, data, and lab 01 released."""

import json
import os
import pwd
import random
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import demo_accounts as accounts
import hub_install as install

ROOT = install.ROOT
LAB = "01_single_gpu"
STUDENTS, INSTRUCTOR, COURSE = ("ada", "ben"), "grace", "course"
PORTS = ("port", "hub_port", "proxy_port", "course_port")  # of the proxy, the hub, the proxy's interface, formgrader
SERVER_PORTS = range(20000, 29000, 250)  # two demos at a time seldom begin at the same


class DemoError(RuntimeError):
    """The demo cannot continue; one line with the remedy."""


@dataclass(frozen=True)
class Demo:
    """Where a demo keeps its things. `prefix` begins its accounts' names, so that two demos can run side by side."""

    hub: Path = Path("/opt/course-hub")
    state: Path = Path("/opt/course-hub/demo")
    prefix: str = "lab-"
    students: int = len(STUDENTS)
    settings: dict[str, dict[str, object]] = field(default_factory=dict)  # instead of the demo's own

    @property
    def names(self) -> list[str]:
        more = [f"student{number:03d}" for number in range(len(STUDENTS) + 1, self.students + 1)]
        return [f"{self.prefix}{who}" for who in (COURSE, INSTRUCTOR, *STUDENTS[: self.students], *more)]

    @property
    def course(self) -> Path:
        """The course's checkout, in a home that only its account can enter."""
        return self.state / "homes" / self.names[0] / "distributed-training"

    @property
    def private(self) -> Path:
        """What only root reads: the hub's database and secrets, the passwords, the log."""
        return self.state / "private"

    def site(self, ports: list[int]) -> dict[str, dict[str, object]]:
        """The settings that jupyterhub_config.py reads."""
        site = {
            "course": {
                "account": self.names[0],
                "folder": str(self.course),
                "grader": str(self.course.parent / "grader"),
            },
            "people": {"instructors": [self.names[1]], "students": self.names[2:]},
            "paths": {
                "environment": str(self.hub / "students"),
                "hub": str(self.hub / "hub"),
                "proxy": str(self.hub / "proxy/node_modules/.bin/configurable-http-proxy"),
                "config": str(self.hub / "config"),
                "data": str(self.state / "data"),
                "exchange": str(self.state / "exchange"),
                "state": str(self.private / "hub"),
                "hidden": [str(ROOT)] if readable(ROOT / "labs") else [],
            },
            "network": {**dict(zip(PORTS, ports, strict=True)), "server_ports": random.choice(SERVER_PORTS)},
            "servers": {"memory_gib": 6.0, "cores": max(1, min(2, os.cpu_count() or 1))},
        }
        for table, values in self.settings.items():
            site[table] = {**site.get(table, {}), **values}
        return site

    def ports(self) -> list[int]:
        """Those of the last start; zeros if there was none."""
        network = self._last().get("network", {})
        return [network.get(name, 0) for name in PORTS]

    def has_jobs(self) -> bool:
        """Whether servers are, or were at the last start, jobs of Slurm."""
        return "slurm" in (site.get("servers", {}).get("spawner") for site in (self.settings, self._last()))

    def _last(self) -> dict[str, dict[str, object]]:
        file = self.private / "site.toml"
        return read_toml(file) if file.exists() else {}


def readable(path: Path) -> bool:
    """Whether any account of this machine may read a folder."""
    return bool(path.stat().st_mode & stat.S_IROTH) and install.readable_by_others(path)


def prepare(demo: Demo, say=print) -> dict[str, str]:
    """Everything but starting: returns each account's password."""
    install.install(demo.hub, say)
    for folder, mode in ((demo.state, 0o755), (demo.private, 0o700), (demo.state / "homes", 0o755)):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
    people = [accounts.make(name, demo.state / "homes") for name in demo.names]
    owner = people[0]
    install.unpack_as(owner.pw_name, ROOT, install.sources(), demo.course)
    install.install_grader(demo.hub / "students", demo.course.parent / "grader", owner.pw_name)
    make_exchange(demo.state / "exchange", owner)
    stage_data(demo, say)
    if not (demo.state / "exchange/distributed-training/outbound" / LAB).is_dir():
        say(f"release lab {LAB}")
        for step in ("generate_assignment", "release_assignment"):
            as_course(demo, "nbgrader", step, LAB, "--force")
    return {name: accounts.set_password(name) for name in demo.names[1:]}


def make_exchange(folder: Path, owner: pwd.struct_passwd) -> None:
    """nbgrader's exchange with nbgrader's permissions, and the sticky bit: nobody removes what is somebody else's.

    ``inbound`` is writable and cannot be listed; in ``feedback`` a file is read by its name, which only its owner knows.
    """
    course = folder / "distributed-training"
    modes = {folder: 0o1777, course: 0o755, course / "outbound": 0o755, course / "inbound": 0o3733}
    modes[course / "feedback"] = 0o711
    for path, mode in modes.items():
        path.mkdir(exist_ok=True)
        path.chmod(mode)
        if path != folder:
            os.chown(path, owner.pw_uid, owner.pw_gid)
            path.chmod(mode)  # chown takes the set-group-id bit away


def stage_data(demo: Demo, say=print) -> None:
    """FashionMNIST, for everybody to read: a copy of what is staged here, or fetched; else the labs' own small set."""
    data = demo.state / "data"
    data.mkdir(exist_ok=True)
    staged = Path(os.environ.get("LAB_DATA") or ROOT / "data") / "fashion-mnist"
    if (data / "fashion-mnist").is_dir():
        return
    if staged.is_dir():
        shutil.copytree(staged, data / "fashion-mnist", copy_function=shutil.copyfile)
        return
    command = [demo.hub / "students/bin/lab", "data", "fetch", "fashion-mnist", "--root", data]
    if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        say('FashionMNIST could not be fetched; in the notebooks, write dataset = "fashion-mnist-small"')


def as_course(demo: Demo, *command: str) -> None:
    """Run a command of the course's account, in its checkout."""
    account = pwd.getpwnam(demo.names[0])
    bin_ = demo.hub / "students/bin"
    environment = {
        "PATH": f"{bin_}:/usr/bin:/bin",
        "HOME": account.pw_dir,
        "JUPYTER_CONFIG_PATH": f"{demo.hub}/config/course:{demo.hub}/config/everyone",
        "COURSE_HUB_EXCHANGE": str(demo.state / "exchange"),
        "COURSE_HUB_COURSE": "distributed-training",
        "PYTHONPATH": str(demo.course.parent / "grader"),
        "LANG": "C.UTF-8",
    }
    who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    words = [str(bin_ / command[0]), *command[1:]]
    done = subprocess.run(words, env=environment, cwd=demo.course, capture_output=True, text=True, **who)
    if done.returncode:
        raise DemoError(f"`{' '.join(command)}` failed: {last_line(done.stderr or done.stdout)}")


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def reason_in_log(text: str) -> str:
    """JupyterHub's last error in its log; the proxy and the services write there too."""
    errors = [line for line in text.splitlines() if line.startswith(("[C ", "[E ")) and " JupyterHub " in line]
    return last_line("\n".join(errors) or text)


def to_toml(site: Mapping[str, Mapping[str, object]], within: str = "") -> str:
    """Tables, in tables, of strings, numbers and lists of strings: JSON's spelling of these is TOML's too."""
    lines = []
    for table, values in site.items():
        name = f"{within}{table if table.isidentifier() and table.isascii() else json.dumps(table)}"
        plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in plain.items()), ""]
        if inner := {key: value for key, value in values.items() if isinstance(value, Mapping)}:
            lines.append(to_toml(inner, f"{name}."))
    return "\n".join(lines)


def read_toml(file: Path) -> dict[str, dict[str, object]]:
    """A file's tables.

    Raises
    ------
    DemoError
        No such file, or no TOML.
    """
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DemoError(f"{file}: {error}") from None
