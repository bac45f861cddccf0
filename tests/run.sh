#!/bin/sh
# All tests in three runs at once, which keep two cores busy: the pure ones, which compute; those on real servers, by file
# in more processes than there are cores, as they wait for a part of their time; and those of one whole deployment, which
# wait for half of it. The pure ones take what the others leave. The output of the second is on the screen; that of the
# others follows at its end.
set -u
# `make coverage` runs pytest below another program.
pytest=${PYTEST:-.venv/bin/pytest}
cd "$(dirname "$0")/.."
reports=build/reports
mkdir -p "$reports"

$pytest tests/e2e > "$reports/e2e.log" 2>&1 &
e2e=$!
nice -n 10 $pytest tests/unit > "$reports/unit.log" 2>&1 &
unit=$!
trap 'kill "$e2e" "$unit" 2> /dev/null; wait "$e2e" "$unit"; exit 130' INT TERM
code=0
$pytest tests --ignore=tests/unit --ignore=tests/e2e -n 3 --dist loadfile --no-loadscope-reorder || code=$?
wait "$unit" || code=$?
cat "$reports/unit.log"
wait "$e2e" || code=$?
cat "$reports/e2e.log"
exit "$code"
