"""Where staged data sets lie."""

import os
from pathlib import Path


def data_root(root: str | os.PathLike | None = None) -> Path:
    """The data root: `root`, else ``$LAB_DATA``, else ``data/`` in the repository, else ``./data``.

    The repository is the folder above this package if it holds ``pyproject.toml``, which is so in a checkout
    and in an editable install. The folder need not exist.
    """
    if root is None:
        root = os.environ.get("LAB_DATA") or None
    if root is None:
        repository = Path(__file__).resolve().parent.parent
        root = repository / "data" if (repository / "pyproject.toml").is_file() else "data"
    return Path(root).expanduser().absolute()
