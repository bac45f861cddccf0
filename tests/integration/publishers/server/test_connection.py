"""Who a node is, who we are there, and what becomes of a connection: with a real OpenSSH server."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from include.publishers import errors
from include.publishers.server.connection import KEPT_LINES, NodeAddress, SshConnection
from tests.fakes.node import PublisherNode
from tests.fakes.refused import refused
from tests.site import FQRN

pytestmark = pytest.mark.server("sshd")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, need: Callable[[str], str]) -> Iterator[PublisherNode]:
    need("sshd")
    made = PublisherNode(tmp_path_factory.mktemp("node"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def node(shared: PublisherNode) -> PublisherNode:
    """Repository of all tests, which publish nothing there."""
    return shared


def address(node: PublisherNode, **change: object) -> NodeAddress:
    fields: dict[str, object] = {
        "fqrn": FQRN, "host": "127.0.0.1", "port": node.ssh.port, "user": node.ssh.user,
        "known_hosts": node.ssh.known_hosts, "key": node.ssh.user_key, "passphrase": lambda: None,
        "connect_timeout_s": 20.0, "keepalive_s": 5, **change,
    }  # fmt: skip
    return NodeAddress(**fields)  # type: ignore[arg-type]


def opened(node: PublisherNode, **change: object) -> SshConnection:
    return SshConnection(address(node, **change))


def test_commands_are_lists_and_arrive_as_they_are(node: PublisherNode) -> None:
    arguments = ["a b", "$HOME", "`id`", "it's", "", "--", "é", "a\nb", "*", "; exit 3"]
    with opened(node) as connection:
        ended = connection.run(["printf", "<%s>", *arguments], limit_s=30)
    assert ended.code == 0
    assert "\n".join(ended.lines) == "".join(f"<{one}>" for one in arguments)


def test_input_goes_in_while_output_comes_out(node: PublisherNode) -> None:
    blocks = [b"%07d\n" % number * 8192 for number in range(40)]
    with opened(node) as connection:
        ended = connection.run(["cat"], limit_s=60, feed=blocks, quiet=True)
        counted = connection.run(["wc", "-c"], limit_s=60, feed=blocks)
    assert ended.lines == ("0000039",) * KEPT_LINES
    assert counted.lines == (str(sum(map(len, blocks))),)


def test_a_command_that_reads_no_more_ends_with_its_code(node: PublisherNode) -> None:
    with opened(node) as connection:
        ended = connection.run(["sh", "-c", "echo no; exit 7"], limit_s=60, feed=[bytes(1 << 20)] * 32)
    assert (ended.code, ended.lines) == (7, ("no",))


def test_a_node_that_is_not_known_is_refused_with_its_fingerprint(node: PublisherNode, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with refused(errors.HOST_KEY_UNKNOWN) as failed, opened(node, known_hosts=empty):
        pass
    assert "ssh-ed25519 SHA256:" in str(failed.value)
    assert str(empty) in str(failed.value)
    assert not failed.value.retryable
    assert empty.read_bytes() == b""


def test_a_node_whose_key_changed_is_refused(node: PublisherNode) -> None:
    node.ssh.change_host_key()
    with refused(errors.HOST_KEY_CHANGED) as failed, opened(node):
        pass
    assert str(failed.value).count("SHA256:") == 2
    assert not failed.value.retryable
    node.ssh.write_known_hosts()
    with opened(node) as connection:
        assert connection.run(["true"], limit_s=60).code == 0


def test_a_key_that_is_not_let_in_is_told_from_one_that_cannot_be_used(node: PublisherNode, tmp_path: Path) -> None:
    wrong, locked, broken = (tmp_path / name for name in ("wrong", "locked", "broken"))
    node.ssh.make_key(wrong)
    node.ssh.make_key(locked, "a secret phrase")
    broken.write_text("not a key\n")
    with refused(errors.LOGIN_REFUSED) as failed, opened(node, key=wrong):
        pass
    assert not failed.value.retryable
    for key, phrase in ((locked, None), (locked, "the wrong phrase"), (broken, None), (tmp_path / "absent", None)):
        with refused(errors.KEY_UNUSABLE) as unusable, opened(node, key=key, passphrase=lambda p=phrase: p):
            pass
        assert str(key) in str(unusable.value)
        assert "wrong phrase" not in str(unusable.value)
    authorized = node.ssh.directory / "authorized_keys"
    authorized.write_text(authorized.read_text() + locked.with_suffix(".pub").read_text())
    with opened(node, key=locked, passphrase=lambda: "a secret phrase") as connection:
        assert connection.run(["true"], limit_s=60).code == 0


def test_an_agent_lets_us_in_where_no_key_file_is_named(node: PublisherNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with refused(errors.LOGIN_REFUSED), opened(node, key=None):
        pass
    agent = node.folder / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(agent)], stdout=subprocess.DEVNULL) as process:
        try:
            monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
            for _ in range(200):  # it answers a moment after it was started
                added = subprocess.run(["ssh-add", "-q", str(node.ssh.user_key)], capture_output=True, text=True)
                if added.returncode == 0:
                    break
                threading.Event().wait(0.02)
            assert added.returncode == 0, added.stderr
            with opened(node, key=None) as connection:
                assert connection.run(["true"], limit_s=60).code == 0
        finally:
            process.terminate()


def test_without_a_known_hosts_file_nobody_is_connected_to(node: PublisherNode, tmp_path: Path) -> None:
    with refused(errors.KEY_UNUSABLE), opened(node, known_hosts=tmp_path / "absent"):
        pass


def test_a_node_that_does_not_answer_is_unreachable(node: PublisherNode) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(errors.NodeUnreachable) as gone, opened(node, port=taken.getsockname()[1]):
            pass
    assert gone.value.retryable


def test_a_port_that_is_silent_or_speaks_something_else_ends_in_time(node: PublisherNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(errors.NodeUnreachable), opened(node, port=port, connect_timeout_s=0.3):
            pass


def test_a_connection_that_ends_in_the_middle_is_lost_and_not_a_failure_of_the_command(node: PublisherNode) -> None:
    with opened(node) as connection:
        running = connection.start(["sh", "-c", "echo there; read line; cvmfs_server _cut; exec sleep 5"], limit_s=60)
        assert running.first_line(timeout_s=20) == "there"
        with pytest.raises(errors.NodeLost) as lost:
            running.finish()
        assert lost.value.retryable
        with pytest.raises(errors.NodeLost):
            connection.run(["true"], limit_s=60)


def test_a_command_that_the_node_does_not_end_is_given_up(node: PublisherNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.publishers.server.connection._GRACE_S", 0.0)
    with opened(node) as connection, refused(errors.COMMAND_HUNG):
        connection.run(["sh", "-c", "echo waiting; exec sleep 30"], limit_s=0.3)


def test_what_a_command_leaves_running_does_not_keep_us(node: PublisherNode) -> None:
    with opened(node) as connection:
        ended = connection.run(["sh", "-c", "sleep 20 & echo done"], limit_s=15)
    assert (ended.code, ended.lines) == (0, ("done",))


def test_a_program_that_is_not_there_is_told_from_one_that_fails(node: PublisherNode) -> None:
    publisher = node.publisher({"command": ["/absent/cvmfs_server"]})
    with refused(errors.COMMAND_MISSING):
        publisher.tags()


def test_without_a_spool_folder_the_node_does_not_know_the_repository(node: PublisherNode) -> None:
    publisher = node.publisher({"spool": "/absent/{fqrn}"})
    with refused(errors.UNKNOWN_REPOSITORY):
        publisher.tags()
