#!/bin/sh
# All tests: the pure ones, then files in parallel, more than there are cores, since they wait for a part of their time.
# The end-to-end tests share a whole deployment, which waits for half of its time: they run beside the others, and their
# output follows.
set -u
# `make coverage` runs pytest below another program.
pytest=${PYTEST:-.venv/bin/pytest}
cd "$(dirname "$0")/.."
reports=build/reports
mkdir -p "$reports"

$pytest tests/e2e > "$reports/e2e.log" 2>&1 &
e2e=$!
trap 'kill "$e2e" 2> /dev/null; wait "$e2e"; exit 130' INT TERM
if ! $pytest tests/unit -n auto --dist worksteal; then
    kill "$e2e"
    wait "$e2e"
    exit 1
fi
code=0
$pytest tests --ignore=tests/unit --ignore=tests/e2e -n 4 --dist loadfile --no-loadscope-reorder || code=$?
wait "$e2e" || code=$?
cat "$reports/e2e.log"
exit "$code"
