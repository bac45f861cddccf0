# Everything that one does with Nightshift, from a clean clone on. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# A Python of at least 3.11 to make the environment with; `make PYTHON=/path/to/python venv` chooses another.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	command -v $$python >/dev/null && $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What production needs, what the lab adds, what tests add: each is compiled with the pins of those before it.
LOCKS := requirements.txt requirements-lab.txt requirements-dev.txt
# What the image adds: no environment of a checkout has it.
IMAGE_LOCK := requirements-image.txt
# What builds the documentation, in an environment of its own.
DOCS_LOCK := requirements-docs.txt
BASE ?= HEAD
DATE ?=
SLOT ?=
# Where it is set, each of the hundreds of processes that tests start compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
NIGHTLY_OPTIONS := $(if $(DATE),--date $(DATE)) $(if $(SLOT),--slot $(SLOT))

.PHONY: help venv lock format lint check test-dags test test-busy coverage servers nightly stageout storage-benchmark up down docs docs-site structure walkthrough soak week month clean

help:  ## this list
	@awk -F ':.*##' '/^[a-z%-]+:.*##/ {printf "  make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## the Python environment in .venv, as the three locks have it

# uv itself comes from the lock, hash-checked, by the pip of the new environment; uv then installs the rest.
$(BIN)/uv: | $(BIN)/python
	@awk '/^uv==/ {on = 1} on {print} on && !/\\$$/ {exit}' requirements-dev.txt > $(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/uv.txt

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python of at least 3.11 found; install python3.11 or say make PYTHON=/path/to/it" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no ensurepip; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(STAMP): $(LOCKS) pyproject.toml | $(BIN)/uv
	@$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes $(LOCKS)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

UPGRADE ?=

lock: $(STAMP)  ## compile requirements*.in into the locks; pins stay where they can [UPGRADE=1 (newest versions)]
	@for lock in $(LOCKS) $(IMAGE_LOCK) $(DOCS_LOCK); do $(BIN)/uv pip compile --quiet $(if $(UPGRADE),--upgrade) --generate-hashes --python-version 3.11 \
		--no-emit-index-url --custom-compile-command "make lock" $${lock%.txt}.in --output-file $$lock || exit 1; done

format: $(STAMP)  ## bring the code into its form
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

check: lint  ## lint, types, the contracts of all DAGs and the fast tests, in 90 s
	@$(BIN)/pytest tests/dags/test_contracts.py tests/unit -m "not slow" -q -n 3 --dist worksteal --hypothesis-profile quick

# What others call, and has sections in its docstrings.
PUBLIC := operators sensors triggers hooks include/storage include/publishers include/fts

# Ruff has the lower levels of bandit (S), where each exception has its reason beside it.
BANDIT := include operators sensors triggers hooks dags plugins lab airflow_local_settings.py

lint: $(STAMP)  ## linters and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/bandit --quiet --recursive --severity-level high $(BANDIT)
	@$(BIN)/pydoclint --quiet $(PUBLIC)
	@$(BIN)/mypy
	@$(BIN)/hadolint docker/Dockerfile
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker/compose.yaml
	@$(BIN)/kubernetes-validate --strict --quiet docker/kubernetes/gateway.yaml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.gitlab-ci .gitlab-ci.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

REPORTS := build/reports

# By module: unlike in `make test`, several workers run DAGs, which wait half of their time.
test-dags: lint  ## what `make check` does, and whole DAGs by `dag.test()`; JUnit and the log in build/reports
	@mkdir -p $(REPORTS)
	@$(BIN)/pytest tests/unit tests/dags -m "not slow" -q -n 3 --dist loadscope --no-loadscope-reorder \
		--junitxml=$(REPORTS)/test-dags.xml -o junit_logging=all -o junit_log_passing_tests=false 2>&1 | tee $(REPORTS)/test-dags.log

test: $(STAMP) servers  ## all tests; a server that cannot be had is skipped and named, or a failure where CI is set
	@tests/run.sh

PASSES ?= 3

test-busy: $(STAMP) servers  ## all tests beside four busy loops, PASSES times in a row [PASSES=3]
	@export CI=true; for pass in $$(seq $(PASSES)); do echo "pass $$pass of $(PASSES)"; tests/beside-busy-loops.sh tests/run.sh || exit 1; done

coverage: $(STAMP) servers  ## all tests, and the share of the branches of include that they take, processes they start included
	@mkdir -p build/coverage && $(BIN)/coverage erase
	@PYTEST="$(BIN)/coverage run -m pytest" tests/run.sh
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

servers:  ## the servers that tests need, from Debian's packages where this is root
	@tests/install-servers.sh
	@tests/install-fts3-client.sh
	@tests/install-rucio.sh

nightly: $(STAMP)  ## pack a build of this machine's software and install it, in the demonstration's slot [DATE=YYYY-MM-DD] [SLOT=name]
	@$(BIN)/nightshift nightly run $(NIGHTLY_OPTIONS)

FILES_STAGED ?= 1000

stageout: $(STAMP)  ## transfer 1,000 files of 5 users between the lab's 4 sites, with 5 % faults, under the scheduler [FILES_STAGED=1000]
	@$(BIN)/nightshift lab stageout --files $(FILES_STAGED)

storage-benchmark: $(STAMP)  ## small campaigns on a folder and on the embedded S3, under the scheduler; needs Debian's fio
	@$(BIN)/nightshift storage-benchmark demonstrate

up: $(STAMP)  ## start all services and Airflow; prints URL and login
	@$(BIN)/nightshift lab up

down: $(STAMP)  ## stop them all
	@$(BIN)/nightshift lab down

docs: $(STAMP)  ## generate docs/dags.md, docs/configuration.md, the table of docs/publishers.md, the picture of docs/architecture.md and config/grafana
	@$(BIN)/python docs/generate_dags.py
	@$(BIN)/python docs/generate_publishers.py
	@$(BIN)/python docs/generate_configuration.py
	@$(BIN)/python docs/generate_architecture.py
	@$(BIN)/python docs/generate_dashboards.py

$(VENV)/docs/.installed: $(DOCS_LOCK) | $(BIN)/uv
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/docs
	@$(BIN)/uv pip sync --quiet --python $(VENV)/docs/bin/python --require-hashes $(DOCS_LOCK)
	@touch $@

docs-site: $(VENV)/docs/.installed  ## build the documentation into build/site; a warning is an error
	@$(VENV)/docs/bin/mkdocs build --quiet --strict

structure: $(STAMP)  ## the shape of the product code beside that of another commit [BASE=<commit>]
	@$(BIN)/python -m tests.structure --base $(BASE)

walkthrough: $(STAMP)  ## type what the README, the tour and the page to production have, in a new folder with an empty environment
	@$(BIN)/pytest tests/e2e/test_walkthrough.py -m thorough -q --durations=0

NIGHTS ?= 7
SEED ?= 1

PART ?= gateway
SOAK_S ?= 1200

soak: $(STAMP)  ## a part of what takes long, drawn afresh, for SOAK_S seconds [PART=gateway|collection|stageout|engine|airflow|cache|restore|cases SOAK_S=1200]
	@$(BIN)/python -m tests.soak.run --part $(PART) --seconds $(SOAK_S)

week: $(STAMP)  ## a simulated week under the real Airflow, with failures; where links lead is watched all the time [NIGHTS=7 SEED=1]
	@$(BIN)/python -m tests.week.run --nights $(NIGHTS) --seed $(SEED)

month: NIGHTS = 30
month: $(STAMP)  ## a simulated month of two slots under retention, collected every night: the size of the store [NIGHTS=30 SEED=1]
	@$(BIN)/python -m tests.month.run --nights $(NIGHTS) --seed $(SEED)

OPTIONS ?=

bench-%: $(STAMP)  ## a benchmark; `python -m bench` lists them, and `python -m bench NAME --help` its options [OPTIONS=]
	@$(BIN)/python -m bench $* $(OPTIONS)

clean:  ## stop the services; remove the environment, state and caches
	@if [ -x $(BIN)/nightshift ]; then $(BIN)/nightshift lab down; fi
	@rm -rf $(VENV) var .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
