"""What axe-core finds wrong on a page, as short lines."""

from pathlib import Path

from axe_playwright_python.sync_playwright import Axe

WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"], "resultTypes": ["violations"]}


def findings(page, path: Path) -> list[str]:
    """A line for each element that breaks a rule of WCAG 2.1, A or AA, or axe's good practice, at `path`.

    Parameters
    ----------
    page : playwright.sync_api.Page
    """
    page.goto(path.as_uri())
    page.wait_for_load_state("networkidle")
    broken = Axe().run(page, options=WCAG).response["violations"]
    return [f"{rule['id']}: {node['html'][:160]}" for rule in broken for node in rule["nodes"]]
