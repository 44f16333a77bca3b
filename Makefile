# One real command a target. Needs Python 3.11 or newer, make and git; everything else comes into .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Where it is set, each process that a test starts would compile everything anew: half the time of all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run test check e2e e2e-full fuzz soak bench fmt wheel-test clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("acpd needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip # older ones write scripts that import re: 5 ms
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,models]'
	touch $@

run: $(READY)
	$(BIN)/python tests/demo.py

# Three workers for two cores: much of the time of a test is waiting for processes that it started.
test: $(READY)
	$(BIN)/python -m pytest -q -n 3 -m 'not e2e and not peers and not slow'

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/lint-imports

e2e: $(READY)
	$(BIN)/python -m pytest -q -rs -n 3 -m '(e2e or peers) and not slow'

e2e-full: $(READY)
	$(BIN)/python -m pytest -q -m slow
	$(BIN)/python -m pytest -q -n 2 -m 'hypothesis and not slow' --hypothesis-profile=wide # other examples than a push is judged by

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz

soak: $(READY)
	$(BIN)/python -m tests.soak

bench: $(READY)
	$(BIN)/python -m tests.bench

fmt: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel-test: $(READY)
	$(BIN)/python tests/wheel.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .bench .fuzz
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
