"""The exit codes and messages of a node become errors (docs/publishers.md, exit codes and messages)."""

from __future__ import annotations

import inspect
import re

import pytest

from include.errors import kinds_in
from include.gateway.errors import PathBusy
from include.publishers.server import errors
from include.publishers.server.commands import CODES, MESSAGES, Kind, Verb, failure
from include.publishers.server.errors import NodeBusy, NodeError, TransactionOpen
from tests.fakes.airflowhome import ROOT

FQRN = "nights.example.org"
TRANSACTION = "CernVM-FS transaction error: "
CASES = [
    (Verb.TRANSACTION, 16, ["Path busy. Time remaining = 1m59.5s", TRANSACTION + "lease path busy"], PathBusy),
    (Verb.INGEST, 1, ["Path busy. Time remaining = 119.5s"], PathBusy),
    (Verb.TRANSACTION, 17, [TRANSACTION + "another transaction is already open"], TransactionOpen),
    (Verb.TRANSACTION, 17, ["it does not exist"], TransactionOpen),
    (Verb.TRANSACTION, 2, [TRANSACTION + "cannot open transaction on non-existing path /a"], errors.PATH_REFUSED),
    (Verb.TRANSACTION, 20, [TRANSACTION + "lease path /a is not a directory"], errors.PATH_REFUSED),
    (Verb.TRANSACTION, 22, ["unsupported layout revision"], errors.INPUT_REFUSED),
    (Verb.TRANSACTION, 22, ["Repository whitelist for x is expired!"], errors.WHITELIST_EXPIRED),
    (Verb.TRANSACTION, 5, ["construction failed"], errors.OPEN_FAILED),
    (Verb.TRANSACTION, 1, ["Error: 'invalid_hmac'", TRANSACTION + "cannot acquire lease"], errors.KEY_REFUSED),
    (Verb.TRANSACTION, 1, ["The repository x does not exist."], errors.UNKNOWN_REPOSITORY),
    (Verb.TRANSACTION, 137, [], errors.COMMAND_HUNG),
    (Verb.PUBLISH, 124, ["half way"], errors.COMMAND_HUNG),
    (Verb.PUBLISH, 127, ["timeout: failed to run command"], errors.COMMAND_MISSING),
    (Verb.PUBLISH, 75, [], NodeBusy),
    (Verb.PLACE, 91, ["/cvmfs/x/a leads to /home"], errors.PLACE_REFUSED),
    (Verb.PUBLISH, 1, ["Repository x is not in a transaction"], errors.NOT_IN_TRANSACTION),
    (Verb.PUBLISH, 1, ["Open writable file descriptors on x"], errors.FILES_OPEN),
    (Verb.PUBLISH, 1, ["Current working directory is in /cvmfs/x."], errors.FILES_OPEN),
    (Verb.PUBLISH, 1, ["Repository unavailable under http://x"], errors.REPOSITORY_UNAVAILABLE),
    (Verb.PUBLISH, 1, ["Another publish process is active for x"], errors.ANOTHER_PUBLISH),
    (Verb.PUBLISH, 1, ["Tag name 'a' is already in use."], errors.NAME_REFUSED),
    (Verb.PUBLISH, 1, ["Spaces are not allowed in tag names"], errors.NAME_REFUSED),
    (Verb.PUBLISH, 1, ["Synchronization failed", "", "Executed Command:"], errors.SYNC_FAILED),
    (Verb.PUBLISH, 1, ["Manifest creation failed"], errors.SYNC_FAILED),
    (Verb.PUBLISH, 1, ["Signing failed"], errors.SIGNING_FAILED),
    (Verb.PUBLISH, 1, ["error reply: invalid lease", "Synchronization failed"], errors.LEASE_LOST),
    (Verb.PUBLISH, 1, ["Lease end request - error reply: x", "Synchronization failed"], errors.COMMIT_REFUSED),
    (Verb.PUBLISH, 1, ["SessionContext: could not commit session. Aborting."], errors.COMMIT_REFUSED),
    (Verb.PUBLISH, 1, ["write: No space left on device", "Synchronization failed"], errors.NODE_FULL),
    (Verb.UNPACK, 2, ["tar: a: Cannot write: No space left on device"], errors.NODE_FULL),
    (Verb.UNPACK, 2, ["tar: a file that does not exist"], errors.COMMAND_FAILED),
    (Verb.ABORT, 5, ["cannot drop lease"], errors.LEASE_NOT_DROPPED),
    (Verb.ABORT, 6, [], errors.LEASE_NOT_DROPPED),
    (Verb.ABORT, 4, [], errors.FILES_OPEN),
    (Verb.COLLECT, 1, ["Cannot run garbage collection while in a transaction"], TransactionOpen),
    (Verb.CHECK, 1, ["12 problems"], errors.COMMAND_FAILED),
    (Verb.LOCK, 66, ["flock: cannot open lock file"], errors.UNKNOWN_REPOSITORY),
]


@pytest.mark.parametrize(("verb", "code", "lines", "kind"), CASES)
def test_a_failure_has_its_kind_and_the_last_words(verb: Verb, code: int, lines: list[str], kind: Kind) -> None:
    found = failure(FQRN, verb, code, lines, path="/a/b", limit_s=60)
    assert found.code == kind.code
    assert found.path == "/a/b"
    assert "/a/b" in str(found) or isinstance(found, NodeBusy)
    assert FQRN in str(found)
    if isinstance(found, NodeError):
        assert not lines or lines[-1] in str(found)
        assert found.hint in str(found)


def test_a_busy_path_tells_the_seconds_that_remain_in_the_gateways_notation() -> None:
    for text, seconds in (("1m59.988300055s", 119.988300055), ("90", 90.0), ("soon", 0.0)):
        found = failure(FQRN, Verb.TRANSACTION, 16, [f"Path busy. Time remaining = {text}"], path="/a")
        assert isinstance(found, PathBusy)
        assert found.time_remaining_s == pytest.approx(seconds)


def test_a_busy_node_lasts_no_longer_than_a_command_may() -> None:
    found = failure(FQRN, Verb.LOCK, 75, [], path="/a", limit_s=7200)
    assert isinstance(found, NodeBusy)
    assert found.time_remaining_s == 7200


def test_only_so_much_of_the_output_gets_into_a_message() -> None:
    found = failure(FQRN, Verb.PUBLISH, 1, ["x" * 100_000] * 200, path="/a")
    assert len(str(found)) < 4000


def test_every_class_is_drawn_in_the_tree_with_its_retry() -> None:
    classes = {
        name: one for name, one in inspect.getmembers(errors, inspect.isclass) if one.__module__ == errors.__name__
    }
    drawn = {found[1]: bool(found[2]) for found in re.finditer(r"── (\w+)[^\n]*?(retryable)?\n", f"{errors.__doc__}")}
    assert {name: kind.retryable for name, kind in classes.items()} == drawn


def test_every_message_of_a_node_has_an_error_of_the_table() -> None:
    known = kinds_in(errors).keys()
    assert {kind.code for kind in [*CODES.values(), *(kind for _, kind in MESSAGES)]} <= known


def test_the_table_of_the_manual_says_which_errors_are_tried_again() -> None:
    text = (ROOT / "docs" / "publishers.md").read_text().partition("### Exit codes and messages")[2]
    table = dict(re.findall(r"^\|[^|]*\| `([a-z-]+)`[^|]*\| (no|yes|when)\b", text, re.MULTILINE))
    assert len(table) > 10
    assert {code: kinds_in(errors)[code].retryable for code in table} == {
        code: word != "no" for code, word in table.items()
    }
