"""Tags on a node: what the node lists is compared by digest, whatever the algorithm of the repository."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from include.cvmfs.errors import TagError
from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from include.publishers.capabilities import PublishRoute
from include.publishers.errors import NAME_REFUSED
from include.publishers.server.commands import Commands
from include.publishers.server.maintenance import NodeUpkeep
from tests.fakes.refused import refused

FQRN = "n.example.org"


class Node:
    """Keeps tags and lists them as ``cvmfs_server tag -l -x`` does: a hash with its algorithm id."""

    commands = Commands(FQRN, f"/cvmfs/{FQRN}", f"/var/spool/cvmfs/{FQRN}")

    def __init__(self, newest: ObjectHash) -> None:
        self.newest = newest
        self.lines: list[str] = []

    @contextmanager
    def work(self, _place: str, *, holder: str) -> Iterator[Node]:
        yield self

    def run(self, _verb: object, command: list[str], **_: object) -> Any:
        if "-a" in command:
            name = command[command.index("-a") + 1]
            root = command[command.index("-h") + 1] if "-h" in command else str(self.newest)
            self.lines.append(f"{name} {root} 1024 7 1700000000 (default) ")
        return SimpleNamespace(lines=list(self.lines))


def upkeep(newest: ObjectHash) -> NodeUpkeep:
    repository: Any = SimpleNamespace(manifest=SimpleNamespace(root=newest))
    node: Any = Node(newest)
    return NodeUpkeep(fqrn=FQRN, way=PublishRoute.SERVER_LOCAL, node=node, read=lambda: repository)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_tag_of_any_algorithm_is_made_and_is_no_error_again(algorithm: Algorithm) -> None:
    newest, older = hash_bytes(b"new", algorithm, "C"), hash_bytes(b"old", algorithm, "C")
    node = upkeep(newest)
    assert node.add_tag("t").hash == str(newest)
    assert node.add_tag("t").hash == str(newest)
    assert node.add_tag("u", root=str(older)).hash == str(older)
    with refused(NAME_REFUSED):
        node.add_tag("t", root=str(older))


def test_a_tag_whose_line_could_not_be_read_is_refused() -> None:
    node = upkeep(hash_bytes(b"new", suffix="C"))
    for name, description in (("t", "two\nlines"), ("t\nu", ""), ("t u", "")):
        with pytest.raises(TagError):
            node.add_tag(name, description=description)
    assert node.tags() == []
