"""Command lines for a node, and what comes back from looking at it."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.errors import FormatError
from include.publishers.server.commands import HELD, MISPLACED, Commands, NodeTag, Record, SeenNode
from include.publishers.server.errors import INPUT_REFUSED
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
