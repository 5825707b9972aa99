# Every target does its own set-up in .venv. uv is used where it is installed.
PYTHON ?= python3
BIN := .venv/bin
UV := $(shell command -v uv 2>/dev/null)
# With DATA, make compare takes these sets from that folder.
SETS ?= adult
EPSILONS ?= 0.3,1,4

.PHONY: help setup demo test fuzzer stress check format lint types coverage docs figures dist compare oldest clean

help:  ## show what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: .venv/installed  ## make .venv and install mapl with what its tests need

.venv/installed: pyproject.toml
ifdef UV
	test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) .venv
	uv pip install --quiet --python $(BIN)/python --editable '.[dev,docs]'
else
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
endif
	touch $@

demo: setup  ## show what mapl does, in under a minute
	$(BIN)/mapl demo

test: setup  ## run all tests, in parallel
	$(BIN)/python -m pytest -n auto

stress: setup  ## ten thousand neighbours, two thousand kills, 200 audits of each claim
	MAPL_FUZZ=15 $(BIN)/python -m pytest -n auto --hypothesis-seed=random tests/fuzz tests/audit
	MAPL_KILLS=2000 $(BIN)/python -m pytest tests/ledger/test_ledger_crashes.py

check: setup format lint types coverage fuzzer docs dist  ## all that CI runs

format:
	$(BIN)/ruff format --check .

lint:
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

coverage:
	$(BIN)/python -m pytest -n auto --cov --cov-report=term --cov-fail-under=100

docs: setup  ## build the site in docs/_build/html; warnings and dead links are errors
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/draw_pictures.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

figures: setup  ## redraw the plots of the documentation that need no data
	$(BIN)/python benchmarks/plot_thresholds.py
	$(BIN)/python benchmarks/plot_planner.py

dist: setup  ## build wheel and sdist, and run the README from the wheel alone
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tests/run_readme.py dist

compare: setup  ## mapl beside its peers, on Adult; others with DATA=DIR SETS=adult,magic
	$(BIN)/python benchmarks/compare/run.py --sets $(SETS) --epsilons $(EPSILONS) \
	    $(if $(DATA),--data $(DATA),--without synthetic)

fuzzer: setup  ## neighbours with the lowest versions that pyproject.toml allows
	$(PYTHON) tests/run_oldest.py fuzzer

oldest: setup  ## the main tests with the oldest versions that pyproject.toml allows
	$(PYTHON) tests/run_oldest.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .coverage build dist docs/_build docs/generated
