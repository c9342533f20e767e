"""Puts release copies of the labs, and the cluster's scripts, into the wheel; the rest is in pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
RELEASE = runpy.run_path(str(ROOT / "course_lib" / "runs" / "release_copy.py"))


class BuildWithReleaseCopies(build_py):
    """An editable install has no copies: `lab start` makes them from the checkout."""

    def run(self):
        super().run()
        if not self.editable_mode:
            RELEASE["release_everything"](ROOT, Path(self.build_lib) / "course_lib" / "release_copies")


setup(cmdclass={"build_py": BuildWithReleaseCopies})
