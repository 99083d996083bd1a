# Everything runs in .venv, which `make` creates; no root and no GPU needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Three workers for two cores: with two, tests that wait for other processes left a quarter idle.
JOBS ?= 3
# Files in the order of tests/conftest.py, long ones first; xdist's own, by tests, has them last.
DIST := --dist loadfile --no-loadscope-reorder
# Workers take all cores. Hundreds of processes start: the package and the tests are compiled once.
test test-all golden: export OMP_NUM_THREADS := 1
test test-all golden: export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all golden lint types contracts check docs clean

$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("tvm_layout_ext needs Python 3.10 or newer, this is %d.%d; run: make PYTHON=python3.11 ..." % sys.version_info[:2] if sys.version_info < (3, 10) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m tvm_layout_ext demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) $(DIST)

test-all: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) $(DIST) --whole

# What is emitted for the corpus, against what was committed; ARGS=--update-golden rewrites that.
golden: $(STAMP)
	$(BIN)/python -m tests.golden.programs $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

check: lint types contracts test

# The site in build/site, from docs/, the README, the tutorials and the docstrings. Its search needs a
# server: python -m http.server -d build/site.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	PYTHONPATH=. $(BIN)/python docs/_site.py
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) demo_logs build *.egg-info
