"""Command lines for a node, and what comes back from looking at it."""

from __future__ import annotations

import inspect
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.errors import FormatError
from include.errors import kinds_in
from include.gateway.errors import PathBusy
from include.publishers import errors
from include.publishers.errors import INPUT_REFUSED, NodeBusy, NodeError, TransactionOpen
from include.publishers.server.commands import (
    CODES,
    HELD,
    MESSAGES,
    MISPLACED,
    Commands,
    Kind,
    NodeTag,
    Record,
    SeenNode,
    Verb,
    failure,
)
from tests.fakes.airflowhome import ROOT
from tests.fakes.refused import refused

FQRN = "nights.example.org"
RECORD = Record("t0ken", "dag/run 'x'", "/a b", datetime(2026, 11, 21, tzinfo=UTC))
COMMANDS = Commands(FQRN, f"/cvmfs/{FQRN}", f"/var/spool/cvmfs/{FQRN}", limit_s=60)


def local(folder: Path, program: str = "true") -> Commands:
    """Commands for this machine, with another program in the place of `cvmfs_server`."""
    (folder / "mount").mkdir()
    (folder / "spool").mkdir()
    return Commands(FQRN, str(folder / "mount"), str(folder / "spool"), (program,), limit_s=10)


def run(command: list[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=given, capture_output=True, timeout=30)


def test_a_lease_is_on_the_path_behind_a_gateway_and_on_nothing_without() -> None:
    assert COMMANDS.transaction("/a b", 30, RECORD)[-4:] == ["transaction", "-t", "30", f"{FQRN}/a b"]
    alone = Commands(FQRN, "/m", "/s", gateway=False)
    assert alone.transaction("/a b", 30, RECORD)[-4:] == ["transaction", "-t", "30", FQRN]


def test_publications_carry_their_tag() -> None:
    assert COMMANDS.publish()[-2:] == ["publish", FQRN]
    assert COMMANDS.publish("t", "a 'message'")[-6:] == ["publish", "-a", "t", "-m", "a 'message'", FQRN]
    assert COMMANDS.abort()[-3:] == ["abort", "-f", FQRN]


def test_ingest_names_places_from_the_root_and_whose_they_are() -> None:
    assert COMMANDS.ingest("/a/b", create=True)[-7:] == ["ingest", "-t", "-", "-b", "a/b", "-c", FQRN]
    owned = Commands(FQRN, "/m", "/s", owner=(1, 2), keep_owners=True)
    assert owned.ingest("/a", create=False)[-5:] == ["-u", "1", "-g", "2", FQRN]
    kept = Commands(FQRN, "/m", "/s", keep_owners=True)
    assert kept.ingest("/a", create=False)[-2:] == ["-k", FQRN]
    assert COMMANDS.delete("/a/b")[-4:] == ["ingest", "-d", "a/b", FQRN]
    with refused(INPUT_REFUSED):
        COMMANDS.delete("/a:b")


def test_waiting_for_a_lock_has_its_own_exit_code(tmp_path: Path) -> None:
    commands = local(tmp_path)
    with subprocess.Popen(commands.hold(0), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        assert run(commands.hold(0)).returncode == HELD
        holder.stdin.close()
    assert run(commands.hold(0)).stdout == b"held\n"
    assert run(commands.settle(0)).returncode == 0


def test_a_transaction_is_ours_only_while_the_very_same_one_is_open(tmp_path: Path) -> None:
    marker = tmp_path / "spool" / "in_transaction.lock"
    opener = tmp_path / "open"
    opener.write_text(f"#!/bin/sh\n: >{marker}\n")
    opener.chmod(0o755)
    commands = local(tmp_path, str(opener))
    look = lambda: SeenNode.parse(run(commands.look()).stdout.decode().split("\n")[:-1])  # noqa: E731
    assert look() == SeenNode(open=False)
    assert run(commands.transaction("/a b", 0, RECORD)).returncode == 0
    assert look() == SeenNode(open=True, record=RECORD)
    marker.unlink()
    assert look() == SeenNode(open=False, stale=True)
    (tmp_path / "spool" / "keeps-the-inode").touch()
    marker.touch()
    assert look() == SeenNode(open=True, stale=True)
    run(commands.forget())
    assert look() == SeenNode(open=True)


def test_a_transaction_that_was_not_opened_leaves_no_record(tmp_path: Path) -> None:
    commands = local(tmp_path, "false")
    assert run(commands.transaction("/a", 0, RECORD)).returncode == 1
    assert not (tmp_path / "spool" / "nightshift.transaction").exists()


def test_places_are_entered_without_following_links_and_names_are_only_names(tmp_path: Path) -> None:
    commands = local(tmp_path)
    mount, outside = tmp_path / "mount", tmp_path / "outside"
    (outside / "x").mkdir(parents=True)
    (mount / "a" / "-rf").mkdir(parents=True)
    (mount / "link").symlink_to(outside)
    assert run(commands.make("/a/-rf")).returncode == 0
    assert (mount / "a" / "-rf" / ".cvmfscatalog").stat().st_size == 0
    assert run(commands.clear("/a/-rf")).returncode == 0
    assert not (mount / "a" / "-rf").exists()
    for command in (commands.clear("/link/x"), commands.make("/link/x"), commands.unpack("/link/x")):
        done = run(command)
        assert done.returncode == MISPLACED
        assert b"leads to" in done.stderr
    assert run(commands.clear("/absent/x")).returncode == MISPLACED
    assert (outside / "x").is_dir()


@pytest.mark.parametrize("lines", [[], ["what"], ["", "open"]])
def test_a_look_of_another_form_is_an_error(lines: list[str]) -> None:
    with refused(FormatError, what="the node's state"):
        SeenNode.parse(lines)


def test_a_record_that_cannot_be_read_makes_no_transaction_ours() -> None:
    for text in ("", "{", "[]", '{"token": "x"}', '{"token": "x", "owner": "y", "path": "z", "began": "soon"}'):
        assert SeenNode.parse(["open", "1 2", "1 2", text]) == SeenNode(open=True, stale=True)
    assert SeenNode.parse(["open", "1 2", "1 2", RECORD.format()]) == SeenNode(open=True, record=RECORD)


def test_tags_are_read_as_the_node_lists_them() -> None:
    found = NodeTag.parse("v1 " + "ab" * 20 + " 1024 7 1700000000 (default) two words")
    assert (found.name, found.revision, found.branch, found.description) == ("v1", 7, "", "two words")
    for line in ("", "v1", "v1 x y z 1 (default)"):
        with refused(FormatError, what="list of tags"):
            NodeTag.parse(line)


# -- exit codes and messages become errors (docs/publishers.md, exit codes and messages)


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
