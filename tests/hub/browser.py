"""What a person does in JupyterHub and JupyterLab, done through Chromium, with a picture of each step."""

from __future__ import annotations

import shutil
from pathlib import Path

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
MINUTE = 60_000  # Playwright counts milliseconds


def chromium() -> str | None:
    """The browser's path, or None."""
    return next((path for name in CHROMIUM if (path := shutil.which(name))), None)


class Person:
    """Somebody at a browser of their own.

    Parameters
    ----------
    browser : playwright.sync_api.Browser
    hub : RunningHub
    name : str
        The account.
    pictures : Path
        Folder of the screenshots, named ``NN-NAME-STEP.png`` in the order in which they were taken.
    """

    def __init__(self, browser, hub, name: str, pictures: Path) -> None:
        self.hub, self.name, self.pictures = hub, name, pictures
        self.context = browser.new_context(viewport={"width": 1280, "height": 800})
        self.page = self.context.new_page()
        self.page.set_default_timeout(MINUTE)

    def picture(self, step: str, page=None) -> Path:
        """Keep what the page looks like."""
        number = len(list(self.pictures.glob("*.png"))) + 1
        path = self.pictures / f"{number:02d}-{self.name.partition('-')[2]}-{step}.png"
        (page or self.page).screenshot(path=path)
        return path

    def sign_in(self) -> None:
        """From the hub's first page to JupyterLab."""
        self.page.goto(self.hub.address)
        self.page.fill("#username_input", self.name)
        self.page.fill("#password_input", self.hub.passwords[self.name])
        self.picture("sign-in")
        self.page.click("#login_submit")
        self.page.wait_for_url("**/user/**/lab**", timeout=2 * MINUTE)
        self.wait_for_lab()
        self.picture("jupyterlab")

    def wait_for_lab(self, page=None) -> None:
        """Until JupyterLab is there, and whatever it asks at first is answered."""
        page = page or self.page
        page.wait_for_selector("#jp-main-dock-panel", timeout=2 * MINUTE)
        page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=MINUTE)

    def menu(self, *path: str, page=None) -> None:
        """Choose from the menu bar: ``menu("Run", "Run All Cells")``."""
        page = page or self.page
        page.locator(".lm-MenuBar-item", has_text=path[0]).first.click()
        for label in path[1:]:
            page.locator(".lm-Menu-item", has=page.locator(f'.lm-Menu-itemLabel:text-is("{label}")')).last.click()

    def menu_labels(self, name: str, page=None) -> list[str]:
        """What a menu offers; empty where there is no such menu."""
        page = page or self.page
        entry = page.locator(".lm-MenuBar-item", has_text=name)
        if not entry.count():
            return []
        entry.first.click()
        page.wait_for_selector(".lm-Menu-itemLabel")
        labels = [one for one in page.locator(".lm-Menu-itemLabel").all_inner_texts() if one]
        page.keyboard.press("Escape")
        return labels

    def type_cell(self, index: int, text: str) -> None:
        """Replace a cell's text, by keyboard."""
        cell = self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell").nth(index)
        cell.scroll_into_view_if_needed()
        cell.locator(".cm-content").first.click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)
