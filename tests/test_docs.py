"""What the documents name is there, and they say what the catalogue of data says."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from data_prep.catalogue import CATALOGUE
from data_prep.made_up import MADE_UP
from data_prep.novel import NAME

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "labs/sources.md")),
    *sorted(REPOSITORY.glob("docs/**/*.md")),
]
GLOSSARY = REPOSITORY / "docs" / "site" / "glossary.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


@cache
def headings(page: Path) -> set[str]:
    """Anchors as GitHub makes them of a page's headings."""
    lines = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_into_the_repository_leads_somewhere(page):
    missing = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in headings(target)):
            missing.append(link)
    assert missing == []


def test_the_page_of_the_data_has_every_set_with_its_licence():
    rows = [line.split("|") for line in (REPOSITORY / "docs/data.md").read_text().splitlines() if line[:3] == "| `"]
    licences = {name.strip(" `"): row[3].strip() for row in rows for name in row[1].split(",")}
    assert set(licences) == {*CATALOGUE, *MADE_UP, NAME}
    assert {name: licences[name] for name in CATALOGUE} == {name: entry.licence for name, entry in CATALOGUE.items()}


def test_each_term_of_the_glossary_is_a_word_of_the_labs_that_it_names():
    text = {
        path.name[:2]: " ".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]).lower()
        for path in REPOSITORY.glob("labs/*/*.ipynb")
    }
    entries = re.split(r"\n{2,}", re.search(r"```{glossary}\n(.*?)```", GLOSSARY.read_text(), re.DOTALL)[1].strip())
    terms = [entry.split("\n")[0] for entry in entries]
    assert terms == sorted(terms, key=str.lower) and len(terms) >= 40
    for term, entry in zip(terms, entries, strict=True):
        labs = re.findall(r"\[lab (\d\d)\]", entry)
        assert labs, f"{term}: no lab"
        assert [lab for lab in labs if re.sub(r" \(.*\)", "", term).lower() not in text[lab]] == [], term
