# Every target does its own set-up in .venv. uv is used where it is installed.
PYTHON ?= python3
BIN := .venv/bin
UV := $(shell command -v uv 2>/dev/null)

.PHONY: help setup demo test stress check format lint types coverage docs clean

help:  ## show what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: .venv/installed  ## make .venv and install mapl with what its tests need

.venv/installed: pyproject.toml
ifdef UV
	test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) .venv
	uv pip install --quiet --python $(BIN)/python --editable '.[dev]'
else
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
endif
	touch $@

demo: setup  ## show what mapl does, in under a minute
	$(BIN)/mapl demo

test: setup  ## run all tests, in parallel
	$(BIN)/python -m pytest -n auto

stress: setup  ## ten thousand neighbours, two thousand kills, 200 audits of each claim
	MAPL_FUZZ=15 $(BIN)/python -m pytest -n auto --hypothesis-seed=random tests/fuzz tests/audit
	MAPL_KILLS=2000 $(BIN)/python -m pytest tests/ledger/test_ledger_crashes.py

check: setup format lint types coverage  ## all that CI runs

format:
	$(BIN)/ruff format --check .

lint:
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

coverage:
	$(BIN)/python -m pytest -n auto --cov --cov-report=term --cov-fail-under=100

docs: setup  ## redraw the plots that need no data, rewrite docs/cli.md
	$(BIN)/python benchmarks/plot_thresholds.py
	$(BIN)/python benchmarks/plot_planner.py
	$(BIN)/python docs/make_cli.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .coverage
