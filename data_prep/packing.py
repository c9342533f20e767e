"""From the files that a source delivered to the staged form."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from data_prep import staged, synthetic
from data_prep.catalogue import Entry
from data_prep.errors import DataError


def pack(entry: Entry, raw: Path, packed: Path, source: str, report: Callable[[str], object]) -> None:
    """Write the collected files in the staged form into the new folder `packed`; `report` receives lines about the progress."""

    def open_file(name: str) -> BinaryIO:
        return (raw / name).open("rb")

    try:
        if entry.pack is not None:
            arrays, names = entry.pack(raw, report)
            staged.write(packed, _with_class_names(entry, names), arrays, source)
            return
        if entry.class_names is not None:
            entry = _with_class_names(entry, entry.class_names(open_file))
        staged.write(packed, entry, entry.unpack(open_file), source)
    except DataError as error:
        about = str(error).removeprefix(f"{entry.name}: ")
        raise DataError(f"{entry.name}: {source}: {about}: put the official files there") from error


def _with_class_names(entry: Entry, names: dict[str, tuple[str, ...]]) -> Entry:
    """`entry`, once the class names in the files were found to be its own, or those of a made-up set."""
    if any(synthetic.is_synthetic(kind) for kind in names.values()):
        more_labels = {kind: names[kind] for kind in entry.more_labels}
        title = f"Synthetic stand-in for {entry.title}"
        return replace(
            entry, title=title, provenance="synthetic", licence="MIT", classes=names["labels"], more_labels=more_labels
        )
    if not entry.classes:
        return replace(entry, classes=names["labels"])
    for kind, expected in {"labels": entry.classes, **entry.more_labels}.items():
        if names[kind] != expected:
            odd = next((a for a, b in zip(names[kind], expected, strict=False) if a != b), f"{len(names[kind])} names")
            raise DataError(f"the class names of its {kind} are not those of {entry.title}: {odd!r}")
    return entry
