"""A publisher's file, and receiving one from an untrusted source."""

import gzip
import hashlib
import http.client
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from data_prep.errors import Corrupt, Unavailable

_CHUNK = 1 << 20


@dataclass(frozen=True)
class RawFile:
    """One uncompressed file of a data set.

    Attributes
    ----------
    name : str
        Its official name, without the compression's suffix.
    sha256 : str or None
        SHA-256 of the uncompressed content: compressed copies differ between sources, contents do not. None where
        the publisher gives only an MD5 and re-encoded copies are taken too: see `data_prep.provenance`.
    size : int
        Bytes of the uncompressed content; without a SHA-256, about.
    md5 : str, optional
        MD5 of the uncompressed content, as published.
    """

    name: str
    sha256: str | None
    size: int
    md5: str | None = None

    @property
    def limit(self) -> int:
        """The most bytes that are kept: a re-encoded copy may be somewhat longer than the original."""
        return self.size if self.sha256 else 2 * self.size + _CHUNK


def receive(
    stream: BinaryIO, file: RawFile, sink: BinaryIO, where: str, *, gzipped: bool = False,
    progress: Callable[[int], object] | None = None,
) -> None:  # fmt: skip
    """Copy `stream` into `sink` and check that it is `file`.

    Never more than ``file.limit`` bytes are written, whatever the stream holds.

    Raises
    ------
    Corrupt
        The content has another SHA-256, is longer or shorter, or cannot be decompressed.
    Unavailable
        The stream broke while it was read. Of a file without a SHA-256 also: it is longer than ``file.limit`` or
        cannot be decompressed.
    """
    if gzipped:
        stream = gzip.GzipFile(fileobj=stream)
    digest, received, remark = hashlib.sha256(), 0, ""
    # Reading continues a little past the expected end so that an over-long file still gets its hash, but not for ever:
    # a small gzip file may hold terabytes.
    while received <= 2 * file.limit + _CHUNK:
        try:
            chunk = stream.read(_CHUNK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            remark = f"of the {received} bytes that could be decompressed: {error}"
            break
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"reading {file.name} broke off: {one_line(error)}") from error
        if not chunk:
            break
        digest.update(chunk)
        sink.write(chunk[: max(0, file.limit - received)])
        received += len(chunk)
        if progress is not None:
            progress(len(chunk))
    if file.sha256 is None:
        if remark or received > file.limit:
            raise Unavailable(f"{file.name} cannot be used: {remark or f'more than {file.limit} bytes'}")
        return
    if not remark and received != file.size:
        remark = f"{received} bytes, not {file.size}"
    if remark or digest.hexdigest() != file.sha256:
        raise Corrupt(where, file.name, file.sha256, digest.hexdigest(), remark)


def one_line(error: object) -> str:
    """The first line of an error's text, without its number, or the name of its class."""
    return (str(getattr(error, "strerror", None) or error).strip().splitlines() or [type(error).__name__])[0]
