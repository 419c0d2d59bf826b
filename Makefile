# One target per job, the same for a contributor, pre-commit and the CI.
# Everything is installed into an active virtual environment, VENV=DIR, or else .venv here.

VENV ?= $(or $(VIRTUAL_ENV),.venv)
BIN := $(abspath $(VENV))/bin
export PATH := $(BIN):$(PATH)
# A test starts hundreds of processes: compiling our modules in each is a third of their start.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
PYTEST := python -m pytest
READY := $(VENV)/.easyscale-ready
STAGES := lint types imports unit packaging integration e2e docs

.DEFAULT_GOAL := help
.PHONY: help setup demo check test lint format types imports unit stories packaging integration \
        e2e chaos proof gpu docs bench coverage map changelog clean

help: ## this list
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

setup: $(READY) ## a virtual environment with everything that the other targets need

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,docs]'
	@touch $@

demo: setup ## train a small model as 16 logical workers on this machine
	easyscale launch examples/digits.py --logical-workers 16

check: setup ## everything that the CI runs, the cheapest verdict first
	@.ci/stages $(STAGES)

test: setup ## all tests, without the checks of the text
	@.ci/stages unit packaging integration e2e docs

lint: setup ## ruff, its formatter and codespell
	ruff check .
	ruff format --check .
	codespell

format: setup ## let ruff repair and format
	ruff check --fix .
	ruff format .

types: setup ## mypy, strict
	mypy

imports: setup ## the layers, and no torch in the control plane
	lint-imports --no-logo

unit: setup ## pure tests and stories; no sockets, no processes, no sleeping
	$(PYTEST) tests/unit tests/stories -n 2

stories: setup ## the stories alone
	$(PYTEST) tests/stories

packaging: setup ## wheel, sdist, a clean install, what may be imported
	$(PYTEST) tests/packaging

integration: setup ## real etcd, real child processes
	$(PYTEST) tests/integration -n 2 --dist worksteal

e2e: setup ## from the command line to the digest
	$(PYTEST) tests/e2e -n 2 --dist worksteal

chaos: setup ## random faults from a printed seed; minutes
	HYPOTHESIS_PROFILE=nightly $(PYTEST) tests/chaos -m chaos

proof: setup ## whole state spaces and long random runs; minutes
	HYPOTHESIS_PROFILE=nightly $(PYTEST) tests -m proof -n 2 --dist worksteal

gpu: setup ## what needs a CUDA device
	$(PYTEST) tests -m gpu

docs: setup ## the pages, warnings as errors, then what they claim
	python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(PYTEST) tests/docs

bench: setup ## the figures we aim at, side by side with torchrun, gloo and a plain loop
	@set -e; for program in benchmarks/*.py; do echo "== $$program"; python "$$program"; done

coverage: setup ## unit, integration and e2e, forked workers included
	coverage erase
	coverage run -m pytest tests/unit tests/stories tests/integration tests/e2e
	coverage combine --quiet
	coverage report

map: setup ## write the map of files in docs/architecture.md
	python docs/folder_map.py

changelog: setup ## what the next release will say
	towncrier build --draft --version next

clean: ## what the targets above have written, the environment excepted
	rm -rf build dist docs/_build .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
