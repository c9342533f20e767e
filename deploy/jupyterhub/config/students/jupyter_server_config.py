"""Jupyter Server's settings for a student's server: a page in the home says where the labs are, and until when.

An empty home gets it. At each start the page, if it is still there, has the labs that are released by then, and
JupyterLab opens with it.
"""

import contextlib
import json
import os
from pathlib import Path


def welcome() -> str:
    """The page: the text beside this file, and a row for each lab that is released or has a deadline."""
    deadlines = json.loads(os.environ.get("COURSE_HUB_DEADLINES", "{}"))
    exchange = os.environ.get("COURSE_HUB_EXCHANGE", ""), os.environ.get("COURSE_HUB_COURSE", "")
    released = {path.name: path for path in Path(*exchange, "outbound").glob("*/") if path.is_dir()}
    rows = []
    for lab in sorted({*released, *deadlines}):
        title = lab
        with contextlib.suppress(OSError, ValueError, LookupError):
            first = json.loads((released[lab] / f"{lab}.ipynb").read_text())["cells"][0]["source"]
            title = "".join(first).strip().partition("\n")[0].lstrip("# ").replace("|", "\\|")
        rows.append(f"| `{lab}` | {title} | {'now' if lab in released else 'later'} | {deadlines.get(lab, '–')} |")
    text = Path(__file__).with_name("WELCOME.md").read_text()
    if not rows:
        return text
    table = ["| name in *Assignment List* | lab | released | deadline |", "|---|---|---|---|", *rows]
    return text + "\n## The labs\n\n" + "\n".join(table) + "\n"


with contextlib.suppress(OSError, ValueError):  # a full or read-only home must not keep the server from starting
    page = Path.home() / "WELCOME.md"
    if all(name.startswith(".") for name in os.listdir(Path.home())) or page.is_file():
        page.with_name(".welcome").write_text(welcome())
        page.with_name(".welcome").replace(page)
        get_config().ServerApp.default_url = f"/lab/tree/{page.name}"  # noqa: F821  (jupyter_server provides it)
