# `make` alone lists what there is.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
LOWEST ?= .venv-lowest

.DEFAULT_GOAL := help
.PHONY: help install demo test test-lowest quick check fix bench clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(BIN)/tamis: pyproject.toml
	@echo "creating the environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.test: pyproject.toml tests/constraints.txt $(BIN)/tamis
	@echo "installing what the tests need"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tests/constraints.txt --editable '.[test]'
	@touch $@

install: $(BIN)/tamis  ## Create .venv with the command `tamis`

demo: install  ## Curate the sample that ships with the package and print the report
	$(BIN)/tamis run length --input tamis/recipes/speeches.jsonl.gz --output demo-output --rejects
	$(BIN)/tamis report demo-output

test: $(VENV)/.test  ## Lint, check types and run every test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --dist worksteal

$(LOWEST)/.test: pyproject.toml
	@echo "creating the environment of the lowest versions in $(LOWEST)"
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[test]'
	@touch $@

# Which versions of other libraries read the output is theirs to promise; typer's warnings about newer clicks are its own.
test-lowest: $(LOWEST)/.test  ## Run the tests on Python 3.11 with the lowest versions admitted
	$(LOWEST)/bin/python -m pytest -n auto --dist worksteal --ignore tests/sinks/test_interop.py -W "ignore:'click:DeprecationWarning"

quick: $(VENV)/.test  ## Run the tests that take no more than a moment each
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" -x

fix: $(VENV)/.test  ## Mend what the linter can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test  ## Measure the engine against bare pyarrow; see benchmarks/
	$(BIN)/python benchmarks/engine.py

clean:  ## Remove the environment and what the demo wrote
	rm -rf $(VENV) $(LOWEST) demo-output build *.egg-info
