# Every target does its own set-up; a second call re-installs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
SITE   := $(VENV)/installed-docs
WORKERS ?= 3
CI_TESTS := (exhibits or (labs or thorough) and not quick) and not (slow or gpu or slurm or browser)

.PHONY: help setup demo docs test test-ci test-all test-gpu results-gpu wheelhouse mutants jupyter authors hub hub-clean lint clean

help:
	@echo "make demo      stage FashionMNIST, run labs 01 and 02, grade them, write the report"
	@echo "make test      the quick tests: every exercise, every command, a sample of the rest (10 minutes on two slow cores)"
	@echo "make test-ci   what continuous integration adds: every hostile submission, every lab (20 to 50 minutes more)"
	@echo "make test-all  all tests, also those that need Slurm, a browser or a GPU (hours)"
	@echo "make test-gpu  the tests that need a CUDA GPU; refuses without one"
	@echo "make results-gpu   speed on a GPU and every lab's gpu profile, into docs/results/gpu/; MINUTES=25 chooses what fits"
	@echo "make wheelhouse    what a node without internet lacks, in wheelhouse/; PYTHON=3.12: that node's version"
	@echo "make docs      the documentation as a site, site/index.html; EXECUTED=DIR adds the outputs of lab run's notebooks"
	@echo "make mutants   break the library on purpose, one line at a time; a test must fail each time (one hour)"
	@echo "make jupyter   JupyterLab on copies of the labs to fill in, in $(MY_LABS)/"
	@echo "make authors   JupyterLab on the labs' sources, which contain the solutions"
	@echo "make hub       a JupyterHub on this machine, with two students and an instructor (as root)"
	@echo "make hub-clean remove that hub's accounts, homes and submissions"
	@echo "make clean     remove the environment and everything that was generated"

setup: $(STAMP)

$(STAMP): pyproject.toml autograde/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $(PYTHON) is `$(PYTHON) -V`; try make PYTHON=python3.12"; exit 1; }
	@echo "installing into $(VENV) (once; 1 to 15 minutes)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[jupyter,mpi,sweep,test]' -e './autograde[lti]'
	@touch $@

$(SITE): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python demo.py

# tests/cost_classes.py defines the classes of tests. More processes than cores share the files, because tests wait: for
# limits, for processes that start, for a disk.
unexport PYTHONDONTWRITEBYTECODE  # every process would compile the tests anew
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# They need the hub's packages and the schemas of Kubernetes, which nothing else here uses.
HUB_TESTS := tests/hub/test_lti_sign_in.py tests/hub/test_sign_on.py tests/hub/test_monitoring.py tests/test_kubernetes.py
INSTALL_HUB = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
  $(foreach name,hub sign-on,-r deploy/jupyterhub/requirements-$(name).txt) 'kubernetes-validate>=1.37,<2'

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q $(SHARED)

test-ci: $(SITE)
	$(BIN)/python -m pytest -q $(SHARED) -m '$(CI_TESTS)'
	@$(INSTALL_HUB)
	$(BIN)/python -m pytest -q $(HUB_TESTS)

test-all: $(SITE)
	$(BIN)/ruff check .
	@$(INSTALL_HUB) -e '.[browser]'
	$(BIN)/python -m pytest -q -m ''

NEEDS_GPU = import sys, torch; torch.cuda.is_available() or sys.exit("make $@ needs a CUDA GPU, and PyTorch sees none here; `lab doctor` says why")

test-gpu: $(STAMP)
	@$(BIN)/python -c '$(NEEDS_GPU)'
	$(BIN)/python -m pytest -q -m gpu tests/gpu tests/course_lib/test_kfac.py

MINUTES ?=

results-gpu: $(STAMP)
	@$(BIN)/python -c '$(NEEDS_GPU)'
	@$(BIN)/python benchmarks/results_gpu.py $(if $(MINUTES),--minutes $(MINUTES))

# PYTHON is the node's version here: 3.12. The environment of this checkout packs.
wheelhouse:
	@$(MAKE) --no-print-directory --silent setup PYTHON=python3
	@$(BIN)/python deploy/wheelhouse.py --python $(PYTHON:python3=3.12)

mutants: $(STAMP)
	$(BIN)/python tests/mutants/run.py

# The folder EXECUTED holds what `lab run` wrote; the site shows its outputs below the release's code.
EXECUTED ?=

docs: $(SITE)
	@$(BIN)/python docs/site/build.py $(if $(EXECUTED),--executed '$(EXECUTED)')

# A student's copies; existing files stay. The terminals of JupyterLab find `lab` on the PATH.
MY_LABS ?= my_labs
WITH_PATH := PATH="$(CURDIR)/$(BIN):$$PATH"

jupyter: $(STAMP)
	@$(BIN)/lab start --all -o $(MY_LABS)
	$(WITH_PATH) $(BIN)/jupyter lab --notebook-dir=$(MY_LABS)

authors: $(STAMP)
	$(WITH_PATH) $(BIN)/jupyter lab --notebook-dir=labs

# Installs into /opt/course-hub: students must be able to read their environment, and not this checkout.
HUB_PORT ?= 8000

hub:
	@exec $(PYTHON) deploy/jupyterhub/hub_demo.py --port $(HUB_PORT) $(HUB_ARGUMENTS)

hub-clean:
	@exec $(PYTHON) deploy/jupyterhub/hub_demo.py --clean $(HUB_ARGUMENTS)

lint: $(STAMP)
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV) site course runs build dist *.egg-info autograde/*.egg-info .pytest_cache .ruff_cache
