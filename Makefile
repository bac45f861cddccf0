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
# What builds the documentation, in an environment of its own.
DOCS_LOCK := requirements-docs.txt
BASE ?= HEAD
DATE ?=
SLOT ?=
# Where it is set, each of the hundreds of processes that tests start compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
NIGHTLY_OPTIONS := $(if $(DATE),--date $(DATE)) $(if $(SLOT),--slot $(SLOT))

.PHONY: help venv lock format lint check test-dags test test-full test-busy middle-tests apart-tests servers nightly stageout up down status docs docs-site walkthrough tour-pictures structure fuzz soak soak-status week month clean bench-publish bench-publish-curves bench-gateway bench-million bench-night bench-backfill bench-gc bench-pages bench-stageout bench-together bench-heartbeats storage-benchmark bench-harness bench-verdict bench-ceph bench-readers bench-workers

help:  ## this list
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "  make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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
	@for lock in $(LOCKS) $(DOCS_LOCK); do $(BIN)/uv pip compile --quiet $(if $(UPGRADE),--upgrade) --generate-hashes --python-version 3.11 \
		--no-emit-index-url --custom-compile-command "make lock" $${lock%.txt}.in --output-file $$lock || exit 1; done

format: $(STAMP)  ## bring the code into its form
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

check: lint  ## lint, types, the contracts of all DAGs and the fast tests, in 90 s
	@$(BIN)/pytest tests/dags/test_contracts.py tests/unit -m "not slow" -q -n auto --dist worksteal

# What others call, and has sections in its docstrings.
PUBLIC := operators sensors triggers hooks include/storage include/publishers include/fts/client

lint: $(STAMP)  ## linters and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pydoclint --quiet $(PUBLIC)
	@$(BIN)/mypy
	@$(BIN)/hadolint docker/Dockerfile
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker/compose.yaml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.gitlab-ci .gitlab-ci.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

REPORTS := build/reports

# By module: unlike in `make test`, several workers run DAGs, which wait half of their time.
test-dags: lint  ## what `make check` does, and whole DAGs by `dag.test()`; JUnit and the log in build/reports
	@mkdir -p $(REPORTS)
	@$(BIN)/pytest tests/unit tests/dags -m "not slow" -q -n 3 --dist loadscope --no-loadscope-reorder \
		--junitxml=$(REPORTS)/test-dags.xml -o junit_logging=all -o junit_log_passing_tests=false 2>&1 | tee $(REPORTS)/test-dags.log

# Files in parallel, more than there are cores, since they wait for a part of their time. The end-to-end tests share a
# whole deployment, which waits for half of its time: they run beside the others, and their output follows.
APART = tests/e2e
TESTS = $(BIN)/pytest tests/unit -n auto --dist worksteal && \
	$(MAKE) --no-print-directory --keep-going --jobs 2 middle-tests apart-tests

middle-tests:
	@$(BIN)/pytest tests $(addprefix --ignore=,tests/unit $(APART)) -n 3 --dist loadfile --no-loadscope-reorder

apart-tests:
	@mkdir -p $(REPORTS)
	@code=0; $(BIN)/pytest $(APART) > $(REPORTS)/apart-tests.log 2>&1 || code=$$?; cat $(REPORTS)/apart-tests.log; exit $$code

test: $(STAMP) servers  ## all tests; a server that cannot be had is skipped and named
	@$(TESTS)

test-full: $(STAMP) servers  ## all tests; any skip is a failure
	@export CI=true; $(TESTS)

PASSES ?= 3

test-busy: $(STAMP) servers  ## test-full beside four busy loops, PASSES times in a row [PASSES=3]
	@for pass in $$(seq $(PASSES)); do echo "pass $$pass of $(PASSES)"; tests/beside-busy-loops.sh $(MAKE) --no-print-directory test-full || exit 1; done

servers:
	@tests/install-servers.sh
	@tests/install-fts3-client.sh

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

status: $(STAMP)  ## what runs, where, and whether it answers
	@$(BIN)/nightshift lab status

docs: $(STAMP)  ## generate docs/dags.md, docs/configuration.md, the table of docs/publishers.md and the picture of docs/architecture.md
	@$(BIN)/python docs/generate_dags.py
	@$(BIN)/python docs/generate_publishers.py
	@$(BIN)/python docs/generate_configuration.py
	@$(BIN)/python docs/generate_architecture.py

$(VENV)/docs/.installed: $(DOCS_LOCK) | $(BIN)/uv
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/docs
	@$(BIN)/uv pip sync --quiet --python $(VENV)/docs/bin/python --require-hashes $(DOCS_LOCK)
	@touch $@

docs-site: $(VENV)/docs/.installed  ## build the documentation into build/site; a warning is an error
	@$(VENV)/docs/bin/mkdocs build --quiet --strict

walkthrough: $(STAMP)  ## type the commands of the README and of the tour, in a new folder with an empty environment
	@$(BIN)/pytest tests/e2e/test_walkthrough.py -q -m thorough

tour-pictures: $(STAMP) servers  ## walk through the tour in a new folder, and take its screenshots again
	@$(BIN)/python -m tests.e2e.walkthrough

structure: $(STAMP)  ## the shape of the product code beside that of another commit [BASE=<commit>]
	@$(BIN)/python -m tests.structure --base $(BASE)

FUZZ_S ?= 300
FUZZ_ONLY ?=

fuzz: $(STAMP)  ## damaged input to everything that reads, for FUZZ_S seconds [FUZZ_S=300 FUZZ_ONLY=catalog]
	@$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_S) --only "$(FUZZ_ONLY)"

NIGHTS ?= 7
SEED ?= 1

PART ?= gateway
SOAK_S ?= 1200

soak: $(STAMP)  ## a part of what takes long, drawn afresh, for SOAK_S seconds [PART=gateway|collection|stageout|engine|airflow|cases SOAK_S=1200]
	@$(BIN)/python -m tests.soak.run --part $(PART) --seconds $(SOAK_S)

soak-status: $(STAMP)  ## the last result of each part of the soak; fails if one failed, is missing or older than 14 days
	@$(BIN)/python -m tests.soak.status

week: $(STAMP)  ## a simulated week under the real Airflow, with failures; where links lead is watched all the time [NIGHTS=7 SEED=1]
	@$(BIN)/python -m tests.week.run --nights $(NIGHTS) --seed $(SEED)

month: NIGHTS = 30
month: $(STAMP)  ## a simulated month of two slots under retention, collected every night: the size of the store [NIGHTS=30 SEED=1]
	@$(BIN)/python -m tests.month.run --nights $(NIGHTS) --seed $(SEED)

FULL ?=
FILES ?= $(if $(FULL),250000,25000)
FOLDERS ?= $(if $(FULL),250,25)
STORE ?= weed
ROUNDS ?= 5
PAST ?= 1

bench-publish: $(STAMP)  ## publish against its own floor [FILES= FOLDERS= STORE=weed|radosgw|file|file:///… (also by each fsync) ROUNDS= PAST=1 FULL=1]
	@$(BIN)/python bench/publish.py --files $(FILES) --folders $(FOLDERS) --store $(STORE) --rounds $(ROUNDS) --past $(PAST)

bench-publish-curves: FILES = 5000
bench-publish-curves: FOLDERS = 5
bench-publish-curves: $(STAMP)  ## plots against connections and publishers, into bench/results [FILES= FOLDERS= STORE=]
	@$(BIN)/python bench/publish_curves.py --files $(FILES) --folders $(FOLDERS) --store $(STORE)

ENTRIES ?= 1000000

bench-million: STORE = file
bench-million: $(STAMP)  ## a tree of ENTRIES entries within bounded memory [ENTRIES=1000000 STORE=file]
	@$(BIN)/python bench/million.py --entries $(ENTRIES) --store $(STORE)

SECONDS ?= 60
PUBLISHERS ?= 64
CURVE ?= 1

bench-gateway: STORE = file
bench-gateway: $(STAMP)  ## many publishers through the gateway [SECONDS=60 PUBLISHERS=64 STORE=file|weed|file:///… CURVE=1]
	@$(BIN)/python bench/gateway.py --publishers $(PUBLISHERS) --seconds $(SECONDS) --store $(STORE) --curve $(CURVE)

ARTIFACTS ?= 1500

bench-night: $(STAMP)  ## a night of very many small artifacts under the real Airflow [ARTIFACTS=1500]
	@$(BIN)/python bench/night.py --artifacts $(ARTIFACTS)

ORDER ?= ABBA

bench-backfill: ARTIFACTS = 24
bench-backfill: $(STAMP)  ## a night alone and beside a backfill of five dates; `latest` meanwhile [ARTIFACTS=24 ORDER=ABBA]
	@$(BIN)/python bench/backfill.py --artifacts $(ARTIFACTS) --order $(ORDER)

OBJECTS ?= $(if $(FULL),4000000,400000)
GARBAGE ?= $(if $(FULL),1000000,100000)

bench-gc: CURVE = 0
bench-gc: $(STAMP)  ## collections against plain deletions, and beside publishers [STORE=weed|radosgw|file|file:///… OBJECTS= GARBAGE= FULL=1 CURVE=1 (sizes, plots)]
	@$(BIN)/python bench/gc.py --objects $(OBJECTS) --garbage $(GARBAGE) --store $(STORE) --curve $(CURVE)

PUBLICATIONS ?= 1000000
TRANSFERS ?= 5000000
LEDGER ?= sqlite

bench-pages: $(STAMP)  ## response times of the pages over a large ledger [PUBLICATIONS=1000000 TRANSFERS=5000000 LEDGER=sqlite|mariadb]
	@$(BIN)/python bench/pages.py --publications $(PUBLICATIONS) --transfers $(TRANSFERS) --ledger $(LEDGER)

SERVERS ?= weed,radosgw

bench-harness: ROUNDS = 6
bench-harness: FOLDER = /dev/shm
bench-harness: $(STAMP)  ## what the harness of storage benchmarks costs [SERVERS=weed,radosgw ROUNDS=6 FOLDER=/dev/shm]
	@$(BIN)/python bench/harness.py --servers $(SERVERS) --rounds $(ROUNDS) --folder $(FOLDER)

TRIALS ?= 20

bench-verdict: $(STAMP)  ## verdicts on targets that are slowed by 20 % and on unchanged ones [TRIALS=20]
	@$(BIN)/python bench/verdict.py --trials $(TRIALS)

bench-readers: $(STAMP)  ## own readers of archives against tarfile and zipfile: speed, memory, hostile archives; a large build index
	@PYTHONPATH=$(CURDIR) $(BIN)/python bench/readers.py

PRESETS ?=

bench-ceph: $(STAMP) servers  ## all presets hlt2-* on a real Ceph cluster, with OSDs stopped, in about 20 minutes [PRESETS=hlt2-degraded-osd]
	@$(BIN)/python bench/ceph.py --only $(PRESETS)

MINUTES ?= 15
# Files a second that users request, of which 0.8 % fail for good.
RATE ?= 310
HISTORY ?= $(if $(FULL),50000000,5000000)
# GB: 50 M rows take 40 GB on the disk; their unique index of destinations, read in random order, has to fit into memory.
MEMORY ?= $(if $(FULL),10,1)

AIRFLOW ?=

bench-stageout: $(STAMP) servers  ## stage-out under the load of its source, over HISTORY finished rows, and by its DAGs [MINUTES=15 RATE=310 HISTORY=5000000 MEMORY=1 (GB) FULL=1 AIRFLOW=1]
	@$(BIN)/python bench/stageout.py --minutes $(MINUTES) --rate $(RATE) --history $(HISTORY) --memory $(MEMORY) $(if $(AIRFLOW),--airflow-rate 150)

bench-together: ARTIFACTS = 400
bench-together: RATE = 140
bench-together: PREPARE = 1
bench-together: PUBLISH = 1
bench-together: SHARDS = 1
bench-together: $(STAMP) servers  ## a night alone, and beside stage-out and a collection [ARTIFACTS=400 RATE=140 ORDER=ABBA SHARDS=1, slots PREPARE=1 PUBLISH=1; 0: the usual ones]
	@$(BIN)/python bench/together.py --artifacts $(ARTIFACTS) --rate $(RATE) --order $(ORDER) --prepare $(PREPARE) --publish $(PUBLISH) --shards $(SHARDS)

bench-heartbeats: $(STAMP) servers  ## heartbeats of tasks beside users' bulk requests, with one API server and with two
	@$(BIN)/python bench/heartbeats.py

LATENCY ?= 10

bench-workers: ARTIFACTS = 48
bench-workers: ROUNDS = 2
bench-workers: $(STAMP) servers  ## a night on one Celery worker and on three, as root [ARTIFACTS=48 LATENCY=10 ROUNDS=2 CORES=0.25 CHOICE=4x16]
	@$(BIN)/python bench/workers.py --artifacts $(ARTIFACTS) --latency $(LATENCY) --rounds $(ROUNDS) \
		--cores $(or $(CORES),0) $(addprefix --choice ,$(CHOICE))

clean:  ## stop the services; remove the environment, state and caches
	@if [ -x $(BIN)/nightshift ]; then $(BIN)/nightshift lab down; fi
	@rm -rf $(VENV) var .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
