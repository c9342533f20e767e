"""What a student sees in JupyterLab while something trains, in Chromium: bar, curves, ranks, in both themes.

``LIVE_VIEW_PICTURES`` names a folder for the screenshots; without it they go with the test's folder.
"""

import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = {
    "setup": """
import time
import torch
import torch.distributed as dist
from course_lib.data.batches import Batches, load
from course_lib.distributed import launch
from course_lib.models import SmallCNN
from course_lib.training.loop import EarlyStopping, fit, train_step

def train(epochs=8, slower=0.0):
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    data = load("fashion-mnist-small", train_samples=2000, test_samples=500)
    shares = dict(mean=data.mean, std=data.std, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = SmallCNN()
    print(f"rank {rank} of {ranks} begins & says <b>so</b>")
    def step(*arguments):
        time.sleep(slower)
        return train_step(*arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return fit(model, Batches(data.train, 50, shuffle=True, **shares), Batches(data.test, 250, **shares), optimizer,
               epochs=epochs, step=step)
""",
    "train": "history = train(slower=0.03)",
    "launch": "histories = launch(train, 2, kwargs=dict(slower=0.06, epochs=5), threads=1)",
    "talk": """
def talk():
    for line in range(40):
        print("line", line, "<script>document.title = 'taken over'</script>")
        time.sleep(0.05)
    if dist.get_rank() == 0:
        from tqdm import tqdm
        for _ in tqdm(range(200)):
            time.sleep(0.005)
launch(talk, 4);
""",
    "stop": "history = train(slower=0.2)",
}


@pytest.fixture(params=["JupyterLab Light", "JupyterLab Dark"])
def lab(request, tmp_path):
    """A JupyterLab of its own with the notebook: its address, its folder, its theme."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text.strip("\n"), id=name) for name, text in CELLS.items()],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    (tmp_path / "work").mkdir()
    nbformat.write(notebook, tmp_path / "work" / "live.ipynb")
    settings = tmp_path / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": request.param}))
    (settings / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folders = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTER_DATA_DIR": "data", "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython"}  # fmt: skip
    environment = {**os.environ, **{name: str(tmp_path / folder) for name, folder in folders.items()}}
    allowed = ["--allow-root"] if os.getuid() == 0 else []
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--ServerApp.port_retries=0",
             "--IdentityProvider.token=sesame", *allowed],
            cwd=tmp_path / "work", env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while "is running at" not in (tmp_path / "log").read_text():
            assert server.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.2)
        yield (
            f"http://127.0.0.1:{port}/lab/tree/live.ipynb?token=sesame",
            tmp_path / "work",
            request.param.split()[1].lower(),
        )
    finally:
        server.terminate()
        server.wait(30)


def run(page, number):
    """Run a cell by Shift-Enter."""
    cell = page.locator(f'.jp-NotebookPanel .jp-Cell[data-windowed-list-index="{number}"]')
    cell.scroll_into_view_if_needed()
    cell.locator(".cm-content").first.click()
    page.keyboard.press("Shift+Enter")
    return cell


def has_run(cell, seconds=90):
    prompt = cell.locator(".jp-InputPrompt").first
    prompt.filter(has_text="]:").filter(has_not_text="*").wait_for(timeout=1000 * seconds)


def pixels_of(picture, colour):
    """How many pixels have (about) a colour."""
    import matplotlib.image

    pixels = matplotlib.image.imread(io.BytesIO(picture))[..., :3] * 255
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((abs(pixels - channels).max(axis=-1) < 12).sum())


def test_bar_and_curves_while_it_trains_and_after(lab, chromium, tmp_path):
    address, folder, theme = lab
    pictures = Path(os.environ.get("LIVE_VIEW_PICTURES", tmp_path))
    page = chromium.new_context(viewport={"width": 1100, "height": 800}).new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for(timeout=120_000)

    def keep(cell, step):
        cell.locator(".jp-OutputArea").first.scroll_into_view_if_needed()
        page.screenshot(path=pictures / f"{theme}-{step}.png")
        return cell.locator(".jp-OutputArea").first.screenshot()

    has_run(run(page, 0))

    cell = run(page, 1)
    cell.locator("pre", has_text="epoch 3 of 8").wait_for()
    cell.locator("img").wait_for()
    middle = keep(cell, "training")
    assert "images/s" in cell.inner_text() and "left" in cell.inner_text()
    has_run(cell)
    cell.locator("pre", has_text="8 epochs").wait_for()
    end = keep(cell, "trained")
    assert cell.locator(".jp-OutputArea-output").count() == 2  # the printed line of the cell itself, and the view
    for colour in ("#0072B2", "#D55E00"):
        assert pixels_of(middle, colour) > 20, "a curve, drawn by now"
        assert pixels_of(middle, colour) < pixels_of(end, colour), "the curves, and the bar, grow"
    size = cell.locator("img").evaluate("image => [image.naturalWidth, image.clientWidth]")
    assert size[0] == 700 and size[1] > 400

    cell = run(page, 2)
    cell.locator("pre", has_text="epoch 3 of 5").wait_for()
    keep(cell, "launch-training")
    has_run(cell)
    keep(cell, "launch-trained")
    assert "2 ranks" in cell.inner_text() and "rank 1 of 2 begins & says <b>so</b>" in cell.inner_text()

    cell = run(page, 3)
    cell.locator("b", has_text="rank 3").wait_for()
    page.wait_for_timeout(1000)
    keep(cell, "ranks-talking")
    has_run(cell)
    cell.locator("details").first.wait_for()
    cell.locator("summary").first.click()
    keep(cell, "ranks-talked")
    assert cell.locator("details").count() == 4 and cell.locator("script").count() == 0
    assert cell.inner_text().count("200/200") == 2  # in the summary and in the lines, once each
    assert page.title() != "taken over"

    cell = run(page, 4)
    cell.locator("pre", has_text="epoch 1 of 8").wait_for()
    page.locator('[data-command="notebook:interrupt-kernel"], .jp-Toolbar [title*="Interrupt"]').first.click()
    has_run(cell, 10)
    keep(cell, "interrupted")
    error = cell.locator(
        '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"], .jp-RenderedText'
    ).last
    assert error.inner_text().strip() == "KeyboardInterrupt: the training was stopped in epoch 1 of 8"
    cell.locator("pre", has_text="interrupted in epoch 1 of 8").wait_for()

    page.keyboard.press("Control+s")
    page.wait_for_selector(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty", state="detached")
    saved = nbformat.read(folder / "live.ipynb", 4)
    nbformat.validate(saved)
    assert len((folder / "live.ipynb").read_bytes()) < 200_000
    outputs = {cell.id: cell.outputs for cell in saved.cells}
    assert [output.output_type for output in outputs["train"]] == ["stream", "display_data"]
    assert outputs["train"][1].data["text/plain"].count("images/s") == 8

    # A notebook from elsewhere is not trusted, and its outputs are sanitised.
    saved.cells[3].outputs[0].metadata, other = {}, folder / "other.ipynb"
    nbformat.write(saved, other)
    page.goto(address.replace("live", "other"))
    page.locator("pre", has_text="8 epochs").wait_for()
    page.locator("pre", has_text="8 epochs").scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    page.screenshot(path=pictures / f"{theme}-untrusted.png")
    assert page.locator("img[alt^='learning curves']").first.evaluate("image => image.naturalWidth") == 700
