#!/bin/sh
# Installs a Rucio server (PyPI rucio) and its clients into .venv/rucio-server, for tests of the catalogue: its packages do
# not fit beside ours. If it cannot be installed, those tests are skipped and named.
set -eu

cd "$(dirname "$0")/.."
home=.venv/rucio-server
[ ! -e "$home/.installed" ] || exit 0

echo "installing a Rucio server"
if .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$home" &&
    .venv/bin/uv pip sync --quiet --compile-bytecode --python "$home/bin/python" --require-hashes tests/rucio.txt
then
    touch "$home/.installed"
else
    echo "could not install a Rucio server; the tests that need it say so" >&2
fi
