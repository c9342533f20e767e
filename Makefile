# Every target does its own set-up; a second call re-installs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed

.PHONY: help setup demo test test-all jupyter lint clean

help:
	@echo "make demo      stage FashionMNIST, run labs 01 and 02, grade them, write the report"
	@echo "make test      the tests that need two cores and no GPU"
	@echo "make test-all  those marked slow, gpu, slurm and browser too"
	@echo "make jupyter   JupyterLab on the labs"
	@echo "make clean     remove the environment and everything that was generated"

setup: $(STAMP)

$(STAMP): pyproject.toml autograde/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $(PYTHON) is `$(PYTHON) -V`; try make PYTHON=python3.12"; exit 1; }
	@echo "installing into $(VENV) (once; about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]' -e ./autograde
	@touch $@

demo: $(STAMP)
	@$(BIN)/python demo.py

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test-all: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q -m ''

jupyter: $(STAMP)
	$(BIN)/jupyter lab --notebook-dir=labs

lint: $(STAMP)
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV) course runs build *.egg-info autograde/*.egg-info .pytest_cache .ruff_cache
