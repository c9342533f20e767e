"""``lab new``: a whole lab that runs and is graded, for its author to replace piece by piece.

The pieces are in ``skeleton/``, those of a lab that is called ``00_skeleton``; only the names change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

__all__ = ["new"]

SKELETON = Path(__file__).with_name("skeleton")
PLACES = {
    "notebook.ipynb": "labs/{lab}/{lab}.ipynb",
    "profiles.yaml": "labs/{lab}/profiles.yaml",
    "exercises.py": "course_lib/exercises/labs/{short}.py",
    "answers.py": "course_lib/exercises/answers/{short}.py",
    "criteria.toml": "course_lib/runs/run_evidence/labs/{lab}.toml",
    "rubric.toml": "autograde/rubrics/{lab}.toml",
    "mistakes.py": "tests/exercises/tables/{short}_answers.py",
}
EXPECTED = "course_lib/exercises/expected/{short}.pt.gz"  # computed from the answers


@click.command()
@click.argument("lab", metavar="NN_NAME")
def new(lab: str) -> None:
    """Write the skeleton of a lab into the checkout: it runs, is released and is graded at once.

    NN_NAME is a free number and words in lower case, such as 15_mean. CONTRIBUTING.md says how to go on.
    """
    root = _checkout()
    _check_name(lab, root)
    _check_places(lab, root)
    short, title = f"lab{lab[:2]}", lab[3:].replace("_", " ").capitalize()
    texts = {
        root / place.format(lab=lab, short=short): _renamed((SKELETON / name).read_text(encoding="utf-8"), lab, title)
        for name, place in PLACES.items()
    }
    expected = root / EXPECTED.format(short=short)
    with _all_or_nothing([*texts, expected], root / "labs" / lab):
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        _write_expected(short)
    for path in (*texts, expected):
        click.echo(path.relative_to(root))
    click.echo(f"next: lab run {lab[:2]} --profile smoke; then replace what is marked TODO, as CONTRIBUTING.md says")


def _checkout() -> Path:
    import autograde
    import course_lib

    root = Path(course_lib.__file__).resolve().parents[1]
    if not (root / "labs").is_dir() or Path(autograde.__file__).resolve().parents[1] != root:
        raise click.ClickException("lab new writes into a checkout, and course_lib and autograde are not installed from one; in the checkout: make setup")  # fmt: skip
    return root


def _check_name(lab: str, root: Path) -> None:
    numbers = {path.name[:2] for path in (root / "labs").glob("[0-9][0-9]_*")}
    free = next((f"{number:02d}" for number in range(1, 100) if f"{number:02d}" not in numbers), "NN")
    if not re.fullmatch(r"(?!00)[0-9]{2}_[a-z][a-z0-9]*(_[a-z0-9]+)*", lab, re.ASCII) or len(lab) > 60:
        raise click.UsageError(f"{lab[:60]!r} is no name of a lab: two digits from 01, then words in lower case, joined by _, such as {free}_mean")  # fmt: skip
    if lab[:2] in numbers:
        taken = min(path.name for path in (root / "labs").glob(f"{lab[:2]}_*"))
        raise click.UsageError(f"number {lab[:2]} is that of {taken}; {free} is free")


def _check_places(lab: str, root: Path) -> None:
    # A lab that was removed may have left pieces, also under another name of this number.
    for place in (*PLACES.values(), EXPECTED):
        for there in root.glob(place.format(lab=f"{lab[:2]}_*", short=f"lab{lab[:2]}").replace(".py", "*")):
            raise click.UsageError(f"{there.relative_to(root)} is there already and was left as it is; remove it or choose another number")  # fmt: skip


def _renamed(text: str, lab: str, title: str) -> str:
    text = text.replace("00_skeleton", lab).replace("lab00", f"lab{lab[:2]}").replace("Skeleton", title)
    return re.sub(r"\b00\b", lab[:2], text)


@contextmanager
def _all_or_nothing(files: list[Path], folder: Path) -> Iterator[None]:
    """Remove the files, and the lab's folder, if the block fails; a full disk is one line."""
    try:
        yield
    except BaseException as error:
        for path in files:
            with suppress(OSError):  # what is missing was not made
                path.unlink()
        with suppress(OSError):
            folder.rmdir()
        if isinstance(error, OSError):
            raise click.ClickException(f"{error.filename or folder} cannot be written ({error.strerror}); nothing was made") from None  # fmt: skip
        raise


def _write_expected(short: str) -> None:
    import importlib

    from course_lib.exercises.expected import write

    importlib.invalidate_caches()
    write(short)
