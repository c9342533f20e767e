"""The pages of the site, gathered into a folder for Sphinx: which file becomes which page, and where its links lead."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from api import api_pages
from lab_pages import executed_notebooks, lab_page

__all__ = ["gather"]

FENCE = re.compile(r"(^ *(`{3,}).*?^ *\2)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
DEFINITION = re.compile(r"^(\[[^\]]+\]: )(\S+)$", re.MULTILINE)


def gather(repository: Path, pages: Path, executed: Path | None = None) -> None:
    """Write all pages below the new folder `pages`.

    Parameters
    ----------
    repository : Path
        The checkout.
    pages : Path
        Sphinx's source folder.
    executed : Path, optional
        Folder with executed notebooks, at any depth, named as the labs. Their outputs are put into the release copies.

    Raises
    ------
    FileNotFoundError
        `executed` has no notebook of a lab.
    """
    places = dict(_places(repository))
    labs = [source for source in places if source.suffix == ".ipynb"]
    runs = executed_notebooks(executed, labs)
    for source, place in places.items():
        target = pages / place
        target.parent.mkdir(parents=True, exist_ok=True)
        text = lab_page(source, runs.get(source.name), target.parent) if source in labs else source.read_text("utf-8")
        target.write_text(_relinked(text, source, places, pages, repository), encoding="utf-8")
    for name, text in api_pages(repository, labs):
        (pages / "api").mkdir(exist_ok=True)
        (pages / "api" / f"{name}.rst").write_text(text, encoding="utf-8")


def _places(repository: Path) -> Iterator[tuple[Path, str]]:
    """Each file that becomes a page, and the page."""
    for folder in ("docs", "docs/site"):
        for path in sorted((repository / folder).glob("*.md")):
            yield path, path.name
    yield repository / "docs/results/README.md", "results/results.md"
    yield repository / "docs/results/speed.md", "results/speed.md"
    yield repository / "docs/results/comparison.md", "results/comparison.md"
    yield repository / "labs/sources.md", "sources.md"
    for path in sorted(repository.glob("labs/[0-9][0-9]_*/profiles.yaml")):
        yield path.parent / f"{path.parent.name}.ipynb", f"labs/{path.parent.name}.md"
    for path in sorted(repository.glob("deploy/*/README.md")):
        yield path, f"deploy/{path.parent.name}.md"
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        yield repository / name, name.lower()


def _relinked(text: str, source: Path, places: dict[Path, str], pages: Path, repository: Path) -> str:
    """`text` with its relative links as they are on the site.

    A link to a page leads to that page. A file below docs/ is copied and linked. Any other file of the repository is
    not on the site: the link's text remains.
    """
    start = (pages / places[source]).parent

    def there(link: str) -> str | None:
        if re.match(r"[a-z]+:|#", link):
            return link
        path, hash_, anchor = link.partition("#")
        target = (source.parent / path).resolve()
        if target in places:
            return os.path.relpath(pages / places[target], start) + hash_ + anchor
        if target.is_file() and target.is_relative_to(repository / "docs"):
            copy = pages / target.relative_to(repository / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, copy)
            return os.path.relpath(copy, start)
        return link if (start / path).is_file() else None  # a lab's picture

    def inline(match: re.Match[str]) -> str:
        new = there(match[3])
        return f"{match[1]}[{match[2]}]({new})" if new else match[2]

    parts = FENCE.split(text)  # text, block, the block's backticks, text, …
    del parts[2::3]
    parts[::2] = [DEFINITION.sub(lambda m: m[1] + (there(m[2]) or m[2]), LINK.sub(inline, part)) for part in parts[::2]]
    return "".join(parts)
