"""Sources of answers: a notebook's own, and answers with a mistake in them."""

from pathlib import Path

import nbformat

LABS = Path(__file__).resolve().parents[2] / "labs"


def edited(source, *edits):
    """An answer with pieces replaced: old, new, old, new, …"""
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert old in source, old
        source = source.replace(old, new)
    return source


class Notebook:
    """The answers of a lab's notebook, by their exercises: ``Notebook("09_hogwild")["sparse"]``."""

    def __init__(self, lab):
        cells = nbformat.read(LABS / lab / f"{lab}.ipynb", as_version=4).cells
        self._sources = {cell.id.removeprefix("ex-"): cell.source for cell in cells if cell.id.startswith("ex-")}

    def __getitem__(self, exercise):
        return self._sources[exercise]

    def edited(self, exercise, *edits):
        """The notebook's answer, with pieces replaced."""
        return edited(self[exercise], *edits)

    def instead(self, exercise, source):
        """The notebook's answer, with some of its functions defined again."""
        return f"{self[exercise]}\n\n{source}"
