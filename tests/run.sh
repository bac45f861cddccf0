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

# The folders of tests are in memory where there is enough: on a disk each fsync waits for what all other tests wrote.
memory=/dev/shm made=
if [ -z "${TMPDIR:-}" ] && [ -w "$memory" ] &&
    [ "$(df -Pk "$memory" | awk 'END {print $4}')" -gt 8000000 ] &&
    awk '/^MemAvailable/ {enough = $2 > 12000000} END {exit !enough}' /proc/meminfo; then
    made=$(mktemp -d "$memory/XXXXXX")
    chmod 1777 "$made"  # some servers are of users of their own
    printf '#!/bin/sh\n' > "$made/program"
    chmod +x "$made/program"
    if "$made/program" 2> /dev/null; then export TMPDIR="$made"; else rm -r "$made"; made=; fi
fi

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
trap 'kill "$beside" 2> /dev/null; wait "$beside"; rm -rf ${made:+"$made"}; exit 130' INT TERM
code=0
$pytest tests --ignore=tests/unit --ignore=tests/e2e -n 3 --dist loadfile --no-loadscope-reorder || code=$?
wait "$beside" || code=$?
cat "$reports/e2e.log" "$reports/unit.log"
if [ "$code" = 0 ]; then rm -rf ${made:+"$made"}; else echo "folders of the tests: ${made:-${TMPDIR:-/tmp}}"; fi
exit "$code"
