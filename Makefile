# The project's commands. `make` alone lists them.
#
#   make reproduce                    study mpo at scale quick: train, evaluate, tables, figures
#   make reproduce SCALE=cpu SEEDS=12 CORES=8

STUDY ?= mpo
SCALE ?= quick
SEEDS ?=
PACK ?=
CORES ?= all
PYTHON ?= python3
PORT ?= 5000
FUZZ ?= 2000
PEERS ?=
SUMMARY ?=

VENV := .venv
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

SETTINGS = study=$(STUDY) scale=$(SCALE) $(if $(SEEDS),seeds=$(SEEDS))
SNAKEMAKE = snakemake --cores $(CORES)
SELECT = --study $(STUDY) --scale $(SCALE) $(if $(SEEDS),--seeds $(SEEDS))

.DEFAULT_GOAL := help
.PHONY: help setup plan reproduce tables figures restore ui test test-search test-faults test-slow test-chaos test-fuzz test-slurm test-tracking smoke lint format bench clean-results

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: STUDY=$(STUDY) SCALE=$(SCALE) SEEDS=$(SEEDS) PACK=$(PACK) CORES=$(CORES) PYTHON=$(PYTHON) PORT=$(PORT) FUZZ=$(FUZZ) PEERS=$(PEERS) SUMMARY=$(SUMMARY)"

setup: $(STAMP) ## make the virtual environment with the locked packages

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) --version) is too old: set PYTHON to 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) lacks venv or pip: install its venv package (on Debian: python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

plan: $(STAMP) ## what would run, how long it takes, what it can detect
	@turnscale plan $(STUDY) --scale $(SCALE) $(if $(SEEDS),--seeds $(SEEDS))

reproduce: $(STAMP) ## train, evaluate, tables and figures of STUDY at SCALE; run it again after a kill or with more SEEDS
	@turnscale reproduce $(STUDY) --scale $(SCALE) --cores $(CORES) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(PACK),--pack $(PACK))

tables: $(STAMP) ## tables again, from finished runs only (trains nothing)
	@turnscale job unlock
	@turnscale runs restore $(SELECT)
	$(SNAKEMAKE) tables --config $(SETTINGS) partial=true

figures: $(STAMP) ## figures again, from finished runs only (trains nothing)
	@turnscale job unlock
	@turnscale runs restore $(SELECT)
	$(SNAKEMAKE) figures --config $(SETTINGS) partial=true

restore: $(STAMP) ## rebuild lost records under results/ from the tracking store
	@turnscale runs restore $(SELECT)

ui: $(STAMP) ## MLflow's interface on this machine
	@turnscale ui --port $(PORT)

test: $(STAMP) ## all tests but the slow ones, with the whole workflow at scale smoke
	pytest -m "not slow" -n 2 --dist loadfile

test-search: $(STAMP) ## property tests with new random examples, more of them (`make test` always tries the same)
	pytest -m "hypothesis and not slow" --hypothesis-profile search

test-faults: $(STAMP) ## storage faults, damaged files, broken numbers and environments, in full
	pytest tests/faults

test-slow: $(STAMP) ## the slow tests
	pytest -m slow

test-chaos: $(STAMP) ## kill trainers, evaluators, Snakemake and the tracking server at random points; nothing may be lost
	python -m tests.chaos.campaign $(if $(SUMMARY),--summary $(SUMMARY))

test-fuzz: $(STAMP) ## FUZZ (2000) spoilt files for each reader of configuration, outcomes, records and bundles
	TURNSCALE_FUZZ_CASES=$(FUZZ) pytest tests/fuzz

test-slurm: $(STAMP) ## the workflow on several machines: through a Slurm of its own here (as root it may install Debian's), and shared
	tests/slurm/install.sh
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[slurm]' --no-build-isolation
	pytest tests/slurm

test-tracking: $(STAMP) ## 16 processes log at once, to SQLite, a server and a PostgreSQL of its own here (as root it may install Debian's); bundles into each
	tests/track/install_postgres.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[postgres]' --no-build-isolation
	pytest -rs tests/track/test_load.py tests/track/test_load_full.py tests/track/test_bundle_tabular.py tests/track/test_address.py

smoke: $(STAMP) ## the whole workflow at scale smoke, in this folder
	@$(MAKE) --no-print-directory reproduce SCALE=smoke

lint: $(STAMP) ## linters, types and formats
	ruff check .
	ruff format --check .
	mypy
	snakemake --lint
	snakemake --lint --config study=grouping scale=grouping5
	snakefmt --check Snakefile workflow

format: $(STAMP) ## format code and rules
	ruff format .
	snakefmt Snakefile workflow

bench: $(STAMP) ## every benchmark of speed, and their table; PEERS=python of other packages for those against them
	$(if $(PEERS),TURNSCALE_PEERS=$(PEERS) )python benchmarks/run.py

clean-results: ## remove records, tables and figures of SCALE; the tracking store and checkpoints stay
	@echo '$(SCALE)' | grep -Eqx '[A-Za-z0-9][A-Za-z0-9._+-]*' || { echo "SCALE must be the name of a scale" >&2; exit 2; }
	rm -rf results/$(SCALE) paper_tables/$(SCALE) figures/$(SCALE) logs/$(SCALE)
