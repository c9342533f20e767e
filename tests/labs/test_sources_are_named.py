"""Readers can look the sources up: by name, in labs/sources.md, never by a number that means nothing outside."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBERED = re.compile(r"[Dd]ocuments?[ _]00[0-4]")
LINK = re.compile(r"sources\.md#([a-z0-9-]+)")


def tracked_texts():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in files:
        if name.endswith((".ipynb", ".py", ".md", ".yaml", ".yml", ".toml", ".sbatch", ".pbs", ".html")):
            yield name, (ROOT / name).read_text(encoding="utf-8", errors="replace")


def test_no_source_is_called_by_a_number():
    assert [name for name, text in tracked_texts() if NUMBERED.search(text)] == []


def test_every_lab_links_its_sources_and_every_link_has_a_target():
    headings = {
        line[3:].strip().lower().replace(" ", "-")
        for line in (ROOT / "labs" / "sources.md").read_text().splitlines()
        if line.startswith("## ")
    }
    for name, text in tracked_texts():
        targets = set(LINK.findall(text))
        assert targets <= headings, name
        if name.startswith("labs/") and name.endswith(".ipynb"):
            assert targets, f"{name} links none of its sources"
