#!/bin/sh
# All tests, such that two cores are busy to the end: those on real servers, by file in more processes than there are
# cores, as they wait for a part of their time; beside them first those of one whole deployment, which wait for half of
# it, and then the pure ones, which compute. The output of the first is on the screen; that of the others follows at its
# end.
set -u
# `make coverage` runs pytest below another program.
pytest=${PYTEST:-.venv/bin/pytest}
cd "$(dirname "$0")/.."
reports=build/reports
mkdir -p "$reports"

beside() {
    result=0 running=
    trap 'kill "$running"; wait "$running"; exit 130' INT TERM
    for part in e2e unit; do
        $pytest "tests/$part" > "$reports/$part.log" 2>&1 &
        running=$!
        wait "$running" || result=$?
    done
    exit "$result"
}
beside &
beside=$!
trap 'kill "$beside" 2> /dev/null; wait "$beside"; exit 130' INT TERM
code=0
$pytest tests --ignore=tests/unit --ignore=tests/e2e -n 3 --dist loadfile --no-loadscope-reorder || code=$?
wait "$beside" || code=$?
cat "$reports/e2e.log" "$reports/unit.log"
exit "$code"
