"""A Slurm cluster of one node on the loopback interface: munged, slurmctld and slurmd, all in a temporary folder.

Nothing of the system's own configuration is used or changed: keys, sockets, ports, state and logs are its own. It needs
root (slurmd starts jobs as their users) and Debian's packages, which are installed where that is possible.
`start_lab`, `finish` and `wait_for` are for tests of `lab` commands that submit to it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

__all__ = ["OneMachineSlurm", "SlurmNotHere", "finish", "install_slurm", "one_machine_slurm", "start_lab", "wait_for"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus}
PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""


class SlurmNotHere(RuntimeError):
    """No cluster can be started on this machine; one line."""


def install_slurm() -> None:
    """Install Slurm's programs by apt-get where they are missing.

    Raises
    ------
    SlurmNotHere
        They cannot be installed.
    """
    if os.geteuid() != 0:
        raise SlurmNotHere("a one-machine Slurm needs root: slurmd starts jobs as their users")
    if all(shutil.which(program, path=_PATH) for program in _PROGRAMS):
        return
    if shutil.which("apt-get") is None:
        raise SlurmNotHere("no Slurm, and no apt-get to install slurm-wlm and munge with")
    options = ["-y", "-qq", "--no-install-recommends"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", *options, "slurm-wlm", "munge"]):
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            raise SlurmNotHere(f"`{' '.join(command)}` takes more than 5 minutes") from None
        if done.returncode:
            output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
            raise SlurmNotHere(f"`{' '.join(command)}` fails: {output[-1]}")
    if missing := [program for program in _PROGRAMS if not shutil.which(program, path=_PATH)]:
        raise SlurmNotHere(f"slurm-wlm and munge are installed, but there is no {', '.join(missing)}")


class OneMachineSlurm:
    """The cluster, up; a context manager that takes it down.

    Parameters
    ----------
    folder : Path
        Empty, and writable by root alone, as all folders above it (munged insists).
    cpus : int
        That the node claims to have.
    gpus : int
        The same: generic resources whose devices are empty files. Slurm grants them, and no program can use them.

    Attributes
    ----------
    environment : dict
        What a process needs to find it: ``SLURM_CONF`` and ``PATH``.

    Raises
    ------
    SlurmNotHere
        It does not come up; one line.
    """

    def __init__(self, folder: Path, cpus: int = 4, gpus: int = 2) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        controller_port, node_port = _free_ports(2)
        text = _CONFIGURATION.format(
            folder=folder, host=socket.gethostname().split(".")[0], node="one", cpus=cpus, gpus=gpus,
            memory=64_000,  # MiB; requested, and not limited
            controller_port=controller_port, node_port=node_port,
        )  # fmt: skip
        (folder / "slurm.conf").write_text(text)
        devices = [folder / f"gpu{index}" for index in range(gpus)]  # slurmd counts files that exist
        for device in devices:
            device.touch()
        (folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))
        self._daemons: dict[str, subprocess.Popen] = {}
        try:
            files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid",
                     "seed-file": "munged.seed", "log-file": "munged.log"}  # fmt: skip
            own = [f"--{option}={folder / name}" for option, name in files.items()]
            self._start("munged", "--foreground", "--force", *own)
            self._wait(lambda: (folder / "munge.socket").exists(), "munged makes no socket")
            self._start("slurmctld", "-D", "-f", str(folder / "slurm.conf"))
            self._start("slurmd", "-D", "-f", str(folder / "slurm.conf"), "-N", "one")
            self._wait(lambda: self.run("sinfo", "-h", "-o", "%T", check=False) == "idle", "the node does not get idle")
        except BaseException:
            self.close()
            raise

    def run(self, *command: str, check: bool = True) -> str:
        """What one of Slurm's commands prints, stripped."""
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, check=check, timeout=30
        )
        return done.stdout.strip()

    def live_tasks(self) -> list[str]:
        """Tasks that run or wait, as ``ARRAY_INDEX STATE``."""
        return self.run("squeue", "-h", "-r", "-o", "%i %T").splitlines()

    def close(self) -> None:
        """End all jobs and daemons, and wait until they are gone."""
        if "slurmd" in self._daemons:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                if jobs := self.run("squeue", "-h", "-o", "%A", check=False).split():
                    self.run("scancel", *jobs, check=False)  # all users' jobs
                deadline = time.monotonic() + 20
                while self.live_tasks() and time.monotonic() < deadline:
                    time.sleep(0.5)
        for name in ("slurmctld", "slurmd", "munged"):
            if name in self._daemons:
                self._daemons[name].terminate()
                try:
                    self._daemons[name].wait(15)
                except subprocess.TimeoutExpired:
                    self._daemons[name].kill()
                    self._daemons[name].wait()

    def __enter__(self) -> OneMachineSlurm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, name: str, *arguments: str) -> None:
        with open(self.folder / f"{name}.out", "wb") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            command, environment = [shutil.which(name, path=_PATH), *arguments], os.environ | self.environment
            self._daemons[name] = subprocess.Popen(command, env=environment, cwd=self.folder, **streams)

    def _wait(self, ready, otherwise: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    output = (self.folder / f"{name}.out").read_text(errors="replace").strip().splitlines() or [""]
                    raise SlurmNotHere(f"{name} ended with {daemon.returncode}: {output[-1]}")
            if time.monotonic() > deadline:
                raise SlurmNotHere(f"{otherwise} within {seconds:.0f} s")
            time.sleep(0.2)


@contextlib.contextmanager
def one_machine_slurm() -> Iterator[OneMachineSlurm]:
    """A cluster with 4 cores and 2 GPUs (in name), found by whatever is started meanwhile, and gone afterwards."""
    # Not pytest's folder: munged wants one above which nobody but root can write (or a sticky one, as /tmp is).
    folder = Path(tempfile.mkdtemp(prefix="one-machine-slurm-"))
    folder.chmod(0o755)
    try:
        install_slurm()
        with OneMachineSlurm(folder) as cluster, mock.patch.dict(os.environ, cluster.environment):
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start_lab(folder: Path, *words: object, **environment: str) -> subprocess.Popen:
    """Start `lab WORDS…` in a folder, with further environment variables."""
    return subprocess.Popen(
        [Path(sys.executable).with_name("lab"), *map(str, words)],
        cwd=folder, env=os.environ | environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(process: subprocess.Popen, code: int = 0) -> str:
    """What a process has printed when it ends, which must be with this exit code."""
    try:
        output = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    assert process.returncode == code, output
    return output


def wait_for(condition, what: str, seconds: float = 600.0):
    """The first true value of a condition."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds:.0f} s"
        time.sleep(0.2)
    return value


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
