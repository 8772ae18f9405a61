# Daily commands. `make` prints this list; PYTHON=python3.12 and VENV=dir choose another interpreter and place.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
REFEREE ?=

.DEFAULT_GOAL := help
.PHONY: help setup fmt fmt-check lint types imports test oldest run bench engines check

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# Stamps, so that a second call costs nothing. `run` needs the core alone and should not wait for the test tools.
$(VENV)/.core: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "No virtual environment: on Debian, apt install python3-venv; or give PYTHON=..." >&2; exit 1; }
	@echo "Installing longbench-sched into $(VENV)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[plots]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "Installing the development extras into $(VENV)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(VENV)/.dev ## editable install with development extras

fmt: $(VENV)/.dev ## format and sort imports
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --select I .

fmt-check: $(VENV)/.dev
	@$(BIN)/ruff format --check .

lint: $(VENV)/.dev imports ## ruff, import floors, spelling
	@$(BIN)/ruff check .
	@$(BIN)/codespell

imports: $(VENV)/.dev ## import floors: who may import whom
	@$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev ## mypy, strict
	@$(BIN)/mypy

test: $(VENV)/.dev ## the whole suite, warnings as errors
	@$(BIN)/python -m pytest -n auto --dist loadfile

# uv for its resolver alone. The test tools stay at today's versions: it is the runtime whose floors are promised.
oldest: ## the suite on the oldest versions that pyproject.toml allows, in an environment of its own
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' uv
	@.venv-oldest/bin/uv pip install --quiet --python .venv-oldest --upgrade --resolution lowest-direct --editable '.[plots,tokenizers]'
	@.venv-oldest/bin/python -m pytest -n auto --dist loadfile

run: $(VENV)/.core ## the headline on the embedded engine in each dialect: the table, and a page with charts
	@$(BIN)/longbench-sched headline

bench: $(VENV)/.dev ## what the tool costs and how wrong it is; REFEREE=DIR adds an outside server of known truth
	@$(BIN)/python -m benchmarks $(if $(REFEREE),--referee $(REFEREE))

engines: $(VENV)/.dev ## vLLM and SGLang on CPU in environments of their own: smoke runs, and the shape of their stalls
	@$(BIN)/python -m benchmarks.engines

check: fmt-check lint types test ## what must be green before a commit
