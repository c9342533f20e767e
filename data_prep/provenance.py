"""Whether files are the publisher's own, where the publisher gives only MD5 sums.

A re-encoded data set (for example as JPEG) trains as the original does, but its bytes differ. It is accepted with the
provenance ``copy``. A damaged original must not pass for a copy, so a mixture of official and other image files is
refused.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from data_prep.catalogue import Entry
from data_prep.errors import Corrupt
from data_prep.rawfile import RawFile
from data_prep.sources import SiteMirror, Source


def provenance_of(entry: Entry, folder: Path, source: Source) -> str:
    """Provenance of the files that `source` delivered. Raises `Corrupt` if they are neither official nor a whole copy."""
    if all(file.md5 is None for file in entry.files):
        return entry.provenance
    if entry.tree is not None and (folder / entry.tree.name).is_dir():
        return "copy"  # the publisher gives a sum for the archive only
    return by_sums(entry.files, folder, source.label, must_be_official=not isinstance(source, SiteMirror))


def by_sums(files: Sequence[RawFile], folder: Path, where: str, *, must_be_official: bool = False) -> str:
    """``official`` or ``copy``, by the MD5 sums of the files in `folder`.

    Parameters
    ----------
    files : sequence of RawFile
        Those with an `md5` are looked at. The largest ones are the images: a copy may keep the small ones as they are.
    where : str
        Where the files come from, for the error.
    must_be_official : bool
        A copy is refused: the files come from the publisher's own address.

    Raises
    ------
    Corrupt
        The first file with another sum, where some image file is official or all must be.
    """
    sums = {file: _md5(folder / file.name) for file in files if file.md5 is not None}
    wrong = [file for file in sums if sums[file] != file.md5]
    if not wrong:
        return "official"
    images = [file for file in sums if 10 * file.size > max(other.size for other in sums)]
    if must_be_official or any(file not in wrong for file in images):
        raise Corrupt(where, wrong[0].name, wrong[0].md5, sums[wrong[0]], checksum="MD5")
    return "copy"


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
