"""Build the documentation site: gather its pages, run Sphinx on them, and replace `site/`.

The pages are the repository's own Markdown files, the labs in their release form, and the docstrings of what the labs
import. Nothing is imported for that but `course_lib.runs.release_copy`, and nothing is fetched.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(HERE), str(REPOSITORY)]

from accessible import accessible  # noqa: E402
from gather import gather  # noqa: E402
from sphinx.cmd.build import main as sphinx  # noqa: E402

MARK = "searchindex.js"  # what only a built site has
UNUSED = ("mml-*.js", "tex-mml-*.js", "tex-svg*.js", "tex-chtml-full*.js", "node-main.js")  # MathJax's other builds
LEFT_OUT = shutil.ignore_patterns(".buildinfo*", "objects.inv", "_sources", *UNUSED)


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 built, 1 Sphinx has warned or failed, 2 bad arguments. `site/` changes only if all went well."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("-o", "--output", type=Path, default=REPOSITORY / "site", help="folder to replace")
    parser.add_argument(
        "--executed", type=Path, help="folder with executed notebooks of `lab run`, whose outputs are shown"
    )
    options = parser.parse_args(arguments)
    if options.output.exists() and not (options.output / MARK).is_file():
        print(f"docs: {options.output} is there and is no site; remove it or choose another folder", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="docs-") as folder:
        pages, html = Path(folder, "pages"), Path(folder, "html")
        try:
            gather(REPOSITORY, pages, options.executed)
        except FileNotFoundError as error:
            print(f"docs: {error}", file=sys.stderr)
            return 2
        strict = ["-W", "--keep-going", "-q"]
        if sphinx(["-b", "html", "-c", str(HERE), *strict, "-d", str(Path(folder, "state")), str(pages), str(html)]):
            return 1
        for page in html.rglob("*.html"):
            page.write_text(accessible(page.read_text(encoding="utf-8")), encoding="utf-8")
        new = options.output.with_name(
            options.output.name + ".new"
        )  # beside it: a rename, and the old one is whole until then
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(html, new, ignore=LEFT_OUT)
        if options.output.exists():
            shutil.rmtree(options.output)
        new.rename(options.output)
    print(f"{options.output}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
