"""Where staged data sets are."""

import os
from pathlib import Path

PER_USER = "distributed-training-labs"


def data_root(root: str | os.PathLike | None = None) -> Path:
    """The data root: `root`, else ``$LAB_DATA``, else ``data/`` of a checkout, else a folder of the user's own.

    The checkout is the folder above this package if it holds ``pyproject.toml``, which is so in a clone and in an
    editable install. The user's folder is ``$XDG_DATA_HOME/distributed-training-labs``, by default
    ``~/.local/share/distributed-training-labs``. So a terminal and a notebook's kernel find the same folder, wherever
    they were started. The folder need not exist.
    """
    return located(root)[0]


def located(root: str | os.PathLike | None = None) -> tuple[Path, str]:
    """The data root, and a few words that say why it is this folder."""
    if root is not None:
        return _absolute(root), "--root"
    if given := os.environ.get("LAB_DATA"):
        return _absolute(given), "$LAB_DATA"
    repository = Path(__file__).resolve().parent.parent
    if (repository / "pyproject.toml").is_file():
        return repository / "data", "data/ of the checkout"
    share = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not share.is_absolute():  # the standard says that a relative one is to be ignored
        share = Path.home() / ".local" / "share"
    return share / PER_USER, "your own data folder, as $LAB_DATA is not set"


def _absolute(path: str | os.PathLike) -> Path:
    return Path(path).expanduser().absolute()
