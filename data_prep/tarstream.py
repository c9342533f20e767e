"""Files from an untrusted tar stream: members are read, never extracted."""

import http.client
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from data_prep.errors import Unavailable
from data_prep.rawfile import RawFile, one_line, receive


def receive_from_tar(
    stream: BinaryIO, mode: str, folder: str, files: Sequence[RawFile], into: Path, where: str,
    progress: Callable[[int], object],
) -> None:  # fmt: skip
    """Take `files`, plain or gzipped, out of the tar's folder `folder` and put them, checked, into the folder `into`.

    Parameters
    ----------
    mode : str
        `tarfile`'s, for a stream: ``r|`` or ``r|gz``.
    where : str
        What the stream is, for the errors.
    progress : callable
        Receives the number of bytes as they arrive.

    Raises
    ------
    Unavailable
        The tar cannot be read, or lacks a file.
    Corrupt
        As `data_prep.rawfile.receive` does.
    """
    wanted = {f"{folder}/{file.name}{suffix}": file for file in files for suffix in ("", ".gz")}
    missing = {file.name for file in files}
    try:
        with tarfile.open(fileobj=_Reader(stream), mode=mode) as archive:
            for member in archive:
                file = wanted.get(member.name.removeprefix("./"))
                if file is None or not member.isfile() or file.name not in missing:
                    continue
                gzipped = member.name.endswith(".gz")
                with archive.extractfile(member) as content, (into / file.name).open("wb") as sink:
                    receive(content, file, sink, where, gzipped=gzipped, progress=progress)
                missing.remove(file.name)
                if not missing:
                    return
    except (tarfile.TarError, EOFError) as error:
        raise Unavailable(f"the package cannot be read: {one_line(error)}") from error
    if missing:
        raise Unavailable(f"the package holds no {folder}/{min(missing)}")


class _Reader:
    """A stream whose read errors are reported as the source's, not as a full disk."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream

    def read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"reading the archive broke off: {one_line(error)}") from error
