import sys
from pathlib import Path

import browser
import pytest
import running_hub

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "jupyterhub"
sys.path.insert(0, str(DEPLOY))
sys.path.append(str(Path(__file__).resolve().parents[1] / "slurm"))  # one_machine_slurm


@pytest.fixture(scope="session")
def deploy():
    """The folder with the hub's configuration."""
    return DEPLOY


@pytest.fixture(scope="session")
def hub():
    """The hub of `make hub`, for all tests that need one; the first ever start installs for minutes."""
    if lack := running_hub.missing():
        pytest.skip(lack)
    running = running_hub.RunningHub()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def chromium():
    """Chromium, driven by Playwright."""
    path = browser.chromium()
    if path is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install -e '.[browser]'")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root's Chromium has none
        yield started
        started.close()
