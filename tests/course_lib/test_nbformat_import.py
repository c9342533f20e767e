"""A command's start does not pay for a grammar that nobody uses, and notebooks are checked as before."""

import subprocess
import sys

import pytest

CHECKS = """
import sys
import nbformat
assert "lark" not in sys.modules
nbformat.validate(nbformat.v4.new_notebook())
try:
    nbformat.validate({"cells": 3})
except nbformat.ValidationError:
    print("told")
"""


@pytest.mark.parametrize(
    "first", ["import autograde", "import course_lib.system.nbformat_import as n; n.leave_addresses_out()"]
)
def test_nbformat_comes_without_the_grammar_of_addresses(first):
    done = subprocess.run([sys.executable, "-c", f"{first}\n{CHECKS}"], capture_output=True, text=True)
    assert done.stdout == "told\n", done.stderr
