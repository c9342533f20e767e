"""What a person does in JupyterHub and JupyterLab, done through Chromium, with a picture of each step."""

from pathlib import Path

MINUTE = 60_000  # Playwright counts milliseconds


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
        page.wait_for_selector("#jp-main-dock-panel .lm-TabBar-tab", timeout=MINUTE)  # the launcher, if nothing else

    def menu(self, *path: str, page=None) -> None:
        """Choose from the menu bar: ``menu("Run", "Run All Cells")``."""
        page = page or self.page
        page.locator(".lm-MenuBar-item", has_text=path[0]).first.click()
        for label in path[1:]:
            page.locator(".lm-Menu-item", has=page.locator(f'.lm-Menu-itemLabel:text-is("{label}")')).last.click()

    def choose_command(self, label: str) -> None:
        """Choose from the command palette, which is open, by keyboard."""
        self.page.locator(".lm-CommandPalette-input:focus").wait_for()
        self.page.keyboard.insert_text(label)
        self.page.locator(".lm-CommandPalette-item.lm-mod-active", has_text=label).wait_for()
        self.page.keyboard.press("Enter")

    def tab_to(self, label: str) -> None:
        """Press Tab until the button with this label has the focus."""
        self.button(label).wait_for()
        for _ in range(300):
            self.page.keyboard.press("Tab")
            if self.button(label).evaluate("button => button === document.activeElement"):
                return
        raise AssertionError(f"no Tab reaches the button {label}")

    def menu_labels(self, name: str, page=None) -> list[str]:
        """What a menu offers; empty where there is no such menu."""
        page = page or self.page
        entry = page.locator(".lm-MenuBar-item", has_text=name)
        if not entry.count():
            return []
        entry.first.click()
        page.wait_for_selector(".lm-Menu-itemLabel:not(:empty)")
        labels = [one for one in page.locator(".lm-Menu-itemLabel").all_inner_texts() if one]
        page.keyboard.press("Escape")
        return labels

    def wait_for_notebook(self) -> None:
        """Until a notebook is there, and a kernel that waits."""
        self.cell(0).wait_for()
        # The toolbar's indicator says "idle" while the kernel starts, and who runs a cell then is asked for a kernel.
        self.page.locator("#jp-main-statusbar", has_text="(ipykernel) | Idle").wait_for(timeout=2 * MINUTE)

    def cell(self, index: int):
        """A cell of the notebook that is open, by its number."""
        return self.page.locator(f'.jp-NotebookPanel .jp-Cell[data-windowed-list-index="{index}"]')

    def type_cell(self, index: int, text: str) -> None:
        """Replace a cell's text, by keyboard."""
        cell = self.cell(index)
        if "jp-MarkdownCell" in cell.get_attribute("class"):
            cell.locator(".jp-RenderedMarkdown").dblclick()
        cell.scroll_into_view_if_needed()
        cell.locator(".cm-content").first.click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)

    def show(self, locator) -> None:
        """Bring a place of the notebook to the middle; cells that are drawn on the way move it again."""
        for _ in range(4):
            locator.evaluate("place => place.scrollIntoView({block: 'center'})")
            self.page.wait_for_timeout(300)

    def run_all(self, last: int, minutes: float) -> None:
        """Run → Run All Cells, until the cell with number `last` has run."""
        self.menu("Run", "Run All Cells")
        prompt = self.cell(last).locator(".jp-InputPrompt").first
        prompt.filter(has_text="*").wait_for(timeout=MINUTE)
        # A number instead of the star: it has run.
        prompt.filter(has_text="]:").filter(has_not_text="*").wait_for(timeout=minutes * MINUTE)

    def save(self) -> None:
        """File → Save Notebook, until the tab says that nothing is unsaved."""
        self.menu("File", "Save Notebook")
        self.page.wait_for_selector(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty", state="detached")

    def assignment_list(self) -> None:
        """Nbgrader → Assignment List, with the lists read anew."""
        self.menu("Nbgrader", "Assignment List")
        self.page.locator("#refresh_assignments_list").last.click()
        self.page.wait_for_timeout(1500)

    def button(self, label: str, within: str = "body"):
        """A visible button by its whole label."""
        return self.page.locator(within).get_by_role("button", name=label, exact=True).first
