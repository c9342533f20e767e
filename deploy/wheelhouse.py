"""Pack what a GPU node without internet lacks, into wheelhouse/: make wheelhouse PYTHON=3.12

The node has PyTorch and torchvision, with what these need (NumPy, Pillow). The folder holds this course and everything
else that running a lab headlessly and `make test-gpu` need: no JupyterLab, no grader. Copy it and this checkout there.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
COURSE = "distributed-training-labs"
EXTRAS = ("mpi", "sweep")  # lab 08; a lab headlessly
THERE = ("torch", "torchvision")  # on the node, with their own needs
# The last three are large and nobody imports them here: the debugger, a download protocol, a client for cloud storage.
LEFT_OUT = {"torch", "torchvision", "debugpy", "hf-xet", "aiohttp"}
TESTS = ("pytest", "pytest-xdist")
MOST = 60 * 2**20  # bytes
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64",
             "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64")  # fmt: skip
INSTALL = "python{} -m venv --system-site-packages .venv && .venv/bin/pip install --no-index --no-deps {}/*.whl && touch .venv/installed"


def needs(names: tuple[str, ...], python: str, left_out: set[str], extras: tuple[str, ...] = ()) -> set[str]:
    """The distributions that these need, by this environment's metadata, for another Python; themselves included.

    `extras` are those of all `names`.
    """
    found: set[str] = set()
    waiting = [(name, {"", *extras}) for name in names]
    seen = set()
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    while waiting:
        name, extras = waiting.pop()
        if (name, *sorted(extras)) in seen:
            continue
        seen.add((name, *sorted(extras)))
        found.add(name)
        try:
            texts = requires(name) or []
        except PackageNotFoundError:  # needed on another Python only
            continue
        for text in texts:
            need = Requirement(text)
            wanted = canonicalize_name(need.name)
            if wanted in left_out:
                continue
            if need.marker is None or any(need.marker.evaluate({**environment, "extra": extra}) for extra in extras):
                waiting.append((wanted, {"", *need.extras}))
    return found


def pack(folder: Path, python: str) -> list[Path]:
    """Fill the folder; its wheels. Raises SystemExit where they are too large together."""
    folder.mkdir(parents=True, exist_ok=True)
    there = needs(THERE, python, set()) - {"setuptools"}
    names = needs((COURSE, *TESTS), python, LEFT_OUT | there, EXTRAS) - {COURSE}
    for old in folder.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run(
        [*pip, "download", "--no-deps", "--only-binary=:all:", "--python-version", python, *platforms,
         "-c", str(ROOT / "constraints.txt"), "-d", str(folder), *sorted(names)], check=True,
    )  # fmt: skip
    sys.path.insert(0, str(ROOT / "deploy" / "jupyterhub"))
    from hub_install import PACKAGES, copy_sources

    with tempfile.TemporaryDirectory() as temporary:  # building leaves files beside the sources
        copy_sources(Path(temporary) / "source", PACKAGES)
        built = "import sys, setuptools.build_meta as b; b.build_wheel(sys.argv[1])"
        subprocess.run(
            [sys.executable, "-c", built, temporary], cwd=Path(temporary) / "source", check=True, capture_output=True
        )
        for wheel in Path(temporary).glob("*.whl"):
            shutil.copy(wheel, folder)
    wheels = sorted(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    if size > MOST:
        sys.exit(f"{folder} has {size / 2**20:.1f} MiB, more than {MOST / 2**20:.0f}")
    print(f"{len(wheels)} wheels, {size / 2**20:.1f} MiB. In the checkout on the node, with {folder.name}/ in it:")
    print(INSTALL.format(python, folder.name))
    return wheels


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="the node's version")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "wheelhouse")
    given = parser.parse_args()
    pack(given.output, given.python.removeprefix("python"))
