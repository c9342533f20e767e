"""The novel that ships in this package: how it is read, and how it was made from Debian's package r-cran-janeaustenr.

``python -m data_prep.novel r-cran-janeaustenr_1.0.0-1_all.deb`` rebuilds ``persuasion/persuasion.txt.gz``.
"""

import gzip
import hashlib
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

__all__ = ["NAME", "SOURCE", "read_novel"]

NAME = "austen-persuasion"
SOURCE = "Debian package r-cran-janeaustenr 1.0.0: Jane Austen, Persuasion (1818), public domain"
FILE = Path(__file__).parent / "persuasion" / "persuasion.txt.gz"
SHA256 = "726513a6c18bb678427bcbcf7c72d0d20816a67c25b0471b26ddcabf3ebac140"  # of the text
BOOKS = "./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
CHARACTER_VECTOR = b"\x00\x00\x00\x10"


def read_novel() -> str:
    """The whole text, ASCII.

    Raises
    ------
    ValueError
        The file is not the one that was shipped.
    """
    content = gzip.decompress(FILE.read_bytes())
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise ValueError(f"{FILE} is not the text that ships with the course; install the course again")
    return content.decode("ascii")


def books_of(database: bytes) -> list[str]:
    """The character vectors of an R database: each is a compressed object, after four bytes with its length."""
    books, start = [], 0
    while start < len(database):
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(database[start + 4 :])
        start = len(database) - len(unpacker.unused_data)
        place = plain.index(CHARACTER_VECTOR) + 4
        (count,) = struct.unpack_from(">I", plain, place)
        lines, place = [], place + 4
        for _ in range(count):
            _, length = struct.unpack_from(">Ii", plain, place)
            lines.append(plain[place + 8 : place + 8 + length].decode())
            place += 8 + length
        books.append("\n".join(lines))
    return books


def build(package: str) -> None:
    """Write the shipped file from Debian's package."""
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacker,
        tarfile.open(fileobj=unpacker.stdout, mode="r|") as archive,
    ):
        database = next(archive.extractfile(each).read() for each in archive if each.name == BOOKS)
    (novel,) = (book for book in books_of(database) if book.startswith("Persuasion\n"))
    FILE.write_bytes(gzip.compress(novel.encode("ascii"), 9, mtime=0))


if __name__ == "__main__":
    build(sys.argv[1])
    print(hashlib.sha256(gzip.decompress(FILE.read_bytes())).hexdigest())
