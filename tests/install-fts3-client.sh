#!/bin/sh
# Installs the public client of FTS3 (PyPI fts3) into .venv/fts3, for the test that runs it: it needs a C compiler and
# OpenSSL's headers (Debian: gcc libssl-dev). If it cannot be installed, that test is skipped and named.
set -eu

cd "$(dirname "$0")/.."
home=.venv/fts3
[ ! -e "$home/.installed" ] || exit 0

pip() {
    .venv/bin/uv pip install --quiet --python "$home/bin/python" --require-hashes "$@"
}

# The program itself: the script of the package swig does not run while another package is built.
with_swig() {
    data=$(echo "$PWD/$home"/lib/python3*/site-packages/swig/data)
    SWIG_LIB=$(echo "$data"/share/swig/*) PATH="$data/bin:$PATH" "$@"
}

echo "installing the client of FTS3"
if .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$home" &&
    awk '/^swig==/ {on = 1} on {print} on && !/\\$/ {exit}' tests/fts3-client.txt > "$home/swig.txt" &&
    pip -r "$home/swig.txt" &&
    with_swig pip -r tests/fts3-client.txt &&
    "$home/bin/python" -c 'import fts3.rest.client.easy'
then
    touch "$home/.installed"
else
    echo "could not install the client of FTS3; the test that needs it says so" >&2
fi
