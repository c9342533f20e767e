"""Bringing a data set under the data root, once for everybody.

All work is done in a hidden folder beside the final place. One rename then gives it its final name, so no incomplete
data set ever has this name. A lock keeps two fetches apart; the kernel releases it when its process ends. If a fetch
holds the lock and finds a hidden folder, a killed fetch has left it, and the folder is removed.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from data_prep import catalogue, made_up, packing, staged
from data_prep.catalogue import Entry
from data_prep.errors import Corrupt, Damaged, DataError, Unavailable, UnknownDataset
from data_prep.progress import shows_bars
from data_prep.provenance import provenance_of
from data_prep.root import data_root
from data_prep.sources import SiteMirror, Source
from data_prep.staged import StagedDataset


def fetch(
    name: str,
    root: str | os.PathLike | None = None,
    *,
    mirror: str | os.PathLike | None = None,
    report: Callable[[str], object] = print,
) -> StagedDataset:
    """Stage the data set `name`, unless it is staged already.

    The sources are tried in order, `mirror` first; a damaged staged folder is replaced.

    Parameters
    ----------
    root : path, optional
        The data root; see `data_prep.root.data_root`.
    mirror : path, optional
        A folder that holds the official files, plain or gzipped, flat or in torchvision's layout.
    report : callable
        Receives one line per attempt and one for the outcome.

    Raises
    ------
    UnknownDataset
        The catalogue has no such entry.
    DataError
        No source gave the files; the root cannot be written; or a file in `mirror` is not the official one, and then
        `Corrupt` is the cause. (A corrupt file from another source is reported and the next source tried; a mirror
        was named by somebody who can mend it.)
    """
    entry = catalogue.entry(name)
    return _stage(entry, data_root(root), lambda work: _collect(entry, mirror, work / "raw", report), report)


def synthesize(
    name: str, root: str | os.PathLike | None = None, *, report: Callable[[str], object] = print
) -> StagedDataset:
    """Stage a small synthetic set in place of the data set `name`, with the provenance ``synthetic``.

    It never replaces a real set. The next `fetch` that finds the real one replaces it.

    Raises
    ------
    UnknownDataset
        No such set can be made.
    DataError
        The real set is staged, or the root cannot be written.
    """
    entry = synthesizable(name)

    def make(work: Path) -> tuple[str, str]:
        entry.synthesize(work / "made")
        made = SiteMirror(work / "made", entry.mirror_layouts, tree=entry.tree)
        made.deliver(entry.files, work / "raw", lambda count: None)
        return f"lab data synth {name}", "synthetic"

    return _stage(entry, data_root(root), make, report, synthetic=True)


def synthesizable(name: str) -> Entry:
    """The entry called `name`. Raises `UnknownDataset` if it has no synthetic set."""
    entry = catalogue.CATALOGUE.get(name)
    if entry is None or entry.synthesize is None:
        names = ", ".join(item.name for item in catalogue.CATALOGUE.values() if item.synthesize)
        raise UnknownDataset(f"there is no synthetic set for {name!r}; there are {names}")
    return entry


def _stage(
    entry: Entry, root: Path, fill: Callable[[Path], tuple[str, str]], report: Callable[[str], object], synthetic: bool = False,
) -> StagedDataset:  # fmt: skip
    """Stage `entry`, unless it is; `fill` puts its files into ``raw`` of a folder and gives source and provenance."""
    name = entry.name
    try:
        if (dataset := _already(entry, root, report, synthetic)) is not None:
            _tidy(root, name)
            return dataset
        with _locked(root, name, report):
            # Another process may have finished while this one waited.
            if (dataset := _already(entry, root, lambda line: None, synthetic)) is not None:
                report(f"{name}: staged meanwhile by another process in {dataset.path}")
                return dataset
            began = time.monotonic()
            with _working_folder(root, name) as work:
                packed = work / "packed"
                source, provenance = fill(work)
                packing.pack(replace(entry, provenance=provenance), work / "raw", packed, source, report)
                _publish(packed, root / name, work)
    except OSError as error:
        megabytes = 2 * sum(file.size for file in entry.files) / 1e6
        if entry.pack is not None:
            megabytes *= 3  # JPEG files grow when they are packed
        raise DataError(
            f"{name}: cannot write in {root} ({error.strerror or error}): "
            f"choose a place with {megabytes:.0f} MB free by --root or LAB_DATA"
        ) from error
    dataset = staged.open_folder(root / name)
    counts = " + ".join(str(len(dataset.arrays[f"{split}_labels"])) for split in ("train", "test"))
    report(
        f"{name}: staged in {dataset.path}: {counts} images, {dataset.provenance}, from {source} "
        f"({time.monotonic() - began:.1f} s)"
    )
    return dataset


def _already(entry: Entry, root: Path, report: Callable[[str], object], synthetic: bool) -> StagedDataset | None:
    """The staged set, where it is good enough: a real one for a fetch, a made-up one for `synthesize`."""
    folder = root / entry.name
    if not (folder / staged.DESCRIPTION).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise DataError(f"{folder} is there and holds no staged data set: move it away, or choose another --root")
        return None
    try:
        dataset = staged.open_folder(folder)
    except Damaged as error:
        report(f"{entry.name}: fetching again, because {str(error).rpartition(': ')[0]}")
        return None
    if synthetic and dataset.provenance != "synthetic":
        raise DataError(
            f"{entry.name}: the real set ({dataset.provenance}) is staged in {folder}, "
            "and a synthetic one never takes its place: choose another --root"
        )
    if not synthetic and dataset.provenance == "synthetic":
        report(f"{entry.name}: what is staged in {folder} is synthetic; looking for the real set")
        return None
    report(f"{entry.name}: already staged in {folder}: {dataset.provenance}, from {dataset.source}")
    return dataset


def _lock(root: Path, name: str, **options: float) -> FileLock:
    # Group-writable, so that two people who share a root can both take it.
    return FileLock(root / f".lock-{name}", mode=0o664, **options)


@contextmanager
def _locked(root: Path, name: str, report: Callable[[str], object]) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    lock = _lock(root, name)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"{name}: another process is fetching it into {root}; waiting for it")
        lock.acquire()
    except NotImplementedError as error:
        raise OSError(None, f"its file system has no locks: {error}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _working_folder(root: Path, name: str) -> Iterator[Path]:
    """A new hidden folder under the root; call it with the lock held. Those of dead processes are removed."""
    _sweep(root, name)
    # Its own name each time: a package tool that outlives its killed parent may still write in the old one.
    work = Path(tempfile.mkdtemp(prefix=f".staging-{name}.{os.getpid()}-", dir=root))
    try:
        (work / "raw").mkdir()
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _leftovers(root: Path, name: str) -> list[Path]:
    # The dot after the name keeps `mnist` from sweeping up after `mnist-small`.
    return list(root.glob(f".staging-{name}.*"))


def _sweep(root: Path, name: str) -> None:
    for leftover in _leftovers(root, name):
        shutil.rmtree(leftover, ignore_errors=True)


def _tidy(root: Path, name: str) -> None:
    """Remove the remains of a fetch that was killed after its rename, unless another fetch is running."""
    if _leftovers(root, name):
        # A reader of somebody else's root need not be able to.
        with suppress(Timeout, OSError, NotImplementedError), _lock(root, name, timeout=0):
            _sweep(root, name)


def _collect(
    entry: Entry, mirror: str | os.PathLike | None, into: Path, report: Callable[[str], object]
) -> tuple[str, str]:
    """Fill the folder `into` from the first source that can; gives its label and the provenance of the files."""
    sources = entry.sources
    if mirror is not None:
        sources = (SiteMirror(Path(mirror), entry.mirror_layouts, entry.archive, entry.tree), *sources)
    corrupt = None
    for source in sources:
        began = time.monotonic()
        try:
            with _bar(entry, source) as bar:
                source.deliver(entry.files, into, bar.update)
            provenance = provenance_of(entry, into, source)
        except Unavailable as error:
            reason = str(error)
        except Corrupt as error:
            reason = str(error)
            if (other := _owner(error.found)) is not None:
                reason = f"its {error.file} is that of {other}"
            elif isinstance(source, SiteMirror):
                remedy = "put the official file there, or fetch without --mirror"
                raise DataError(f"{entry.name}: {reason}: {remedy}") from error
            else:
                corrupt = error
        else:
            report(f"{entry.name}: {source.label}: complete ({time.monotonic() - began:.1f} s)")
            return source.label, provenance
        report(f"{entry.name}: {source.label}: {reason}")
    raise DataError(
        f"{entry.name}: none of {len(sources)} sources gave it{f' ({corrupt})' if corrupt else ''}: "
        "fetch where one can be reached, give --mirror DIR with the official files, "
        + (f"make a synthetic set by `lab data synth {entry.name}`, " if entry.synthesize else "")
        + f"or use {_always_there(entry)}"
    ) from corrupt


def _always_there(entry: Entry) -> str:
    """A set with images of the same form that needs no source."""
    other = stand_in(entry.name)
    return f"{other}, which is made when it is read" if other in made_up.MADE_UP else f"{other}, which is always there"


def stand_in(name: str) -> str:
    """The set that takes the place of the data set `name` without any source: a made-up one, or the one that ships."""
    other = f"{name}-synthetic"
    return other if other in made_up.MADE_UP else "fashion-mnist-small"


def _bar(entry: Entry, source: Source) -> tqdm:
    """A progress bar over the uncompressed bytes; silent where nobody would see it move."""
    total, quiet = sum(file.size for file in entry.files), not shows_bars()
    return tqdm(
        desc=f"{entry.name}: {source.label}", total=total, unit="B", unit_scale=True, leave=False, disable=quiet
    )


def _owner(sha256: str) -> str | None:
    """The data set that a file belongs to: MNIST and its relatives all use the same file names."""
    owners = (item.name for item in catalogue.CATALOGUE.values() if any(file.sha256 == sha256 for file in item.files))
    return next(owners, None)


def _publish(packed: Path, final: Path, work: Path) -> None:
    """Give the packed folder its final name, in one step."""
    staged.flush_folder(packed)
    if (final / staged.DESCRIPTION).is_file():
        os.rename(final, work / "damaged")
    os.rename(packed, final)
    staged.flush_folder(final.parent)
