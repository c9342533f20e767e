"""A command's start does not pay for a grammar that nobody uses, and notebooks are checked as before."""

import subprocess
import sys

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


def test_nbformat_comes_without_the_grammar_of_addresses():
    done = subprocess.run([sys.executable, "-c", f"import autograde\n{CHECKS}"], capture_output=True, text=True)
    assert done.stdout == "told\n", done.stderr
