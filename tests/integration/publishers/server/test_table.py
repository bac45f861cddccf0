"""Each cell of the table for a publisher on a node: what is supported works there, what is refused names its cure."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.sources.source import unpack_xattrs
from include.publishers.capabilities import Operation, OperationOutcome, PublishRoute, cell
from include.publishers.errors import Lossy, NodeBusy, NotSupported
from include.publishers.server.publisher import ServerPublisher
from tests.fakes.archives import Member, archive, file, hardlink
from tests.fakes.node import PublisherNode, packed
from tests.fakes.refused import refused
from tests.servers.sshd import SshServer
from tests.site import DESTINATIONS, FQRN, now

pytestmark = [
    pytest.mark.server("sshd"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a node that keeps owners is root's"),
]
ALPHA, BETA, _ = DESTINATIONS
WAYS = {PublishRoute.SERVER_STOCK: "stock", PublishRoute.SERVER_OURS: "nightshift", PublishRoute.SERVER_LOCAL: "none"}
ROOT = {"keep_owners": True}
KEPT = {"specials": "keep", "xattrs": ["user."]}


def opened(node: PublisherNode, **more: Any) -> ServerPublisher:
    return node.site(ROOT, prepare=KEPT, **more).server(FQRN)


def put(node: PublisherNode, members: list[Member] | bytes, **more: Any) -> ServerPublisher:
    """Publish these members at ALPHA."""
    site = node.site(ROOT, prepare=KEPT, **more)
    publisher = site.server(FQRN)
    publisher.reserve([ALPHA], nested=[], holder="test", now=now())
    data = members if isinstance(members, bytes) else archive(members)
    publisher.publish(packed(site, ALPHA, data), holder="test", now=now())
    return publisher


def reserve(node: PublisherNode, **more: Any) -> None:
    opened(node).reserve([ALPHA], nested=[], holder="test", now=now())
    assert node.head().revision.nested_at(ALPHA) is not None


def publish(node: PublisherNode, **more: Any) -> None:
    put(node, [file("a", b"1")])
    assert node.contents(ALPHA) == {"a": b"1"}


def replace(node: PublisherNode, **more: Any) -> None:
    put(node, [file("a", b"1")])
    put(node, [file("b", b"2")])
    assert node.contents(ALPHA) == {"b": b"2"}


def remove(node: PublisherNode, **more: Any) -> None:
    put(node, [file("a", b"1")]).remove(ALPHA, holder="test", now=now())
    assert node.head().revision.lookup(ALPHA) is None


def release(node: PublisherNode, **more: Any) -> None:
    reserve(node)
    assert opened(node).release([ALPHA], floor=None, holder="test", now=now()).removed == (ALPHA,)


def change(node: PublisherNode, **more: Any) -> None:
    opened(node, **more).change(ALPHA, lambda edit: None, holder="test", now=now())


def parallel(node: PublisherNode, **more: Any) -> None:
    publisher = opened(node)
    with publisher.node.work(BETA, holder="other"):
        publisher.reserve([ALPHA], nested=[], holder="test", now=now())


def tagged(node: PublisherNode, **more: Any) -> None:
    site = node.site(ROOT)
    publisher = site.server(FQRN)
    publisher.reserve([ALPHA], nested=[], holder="test", now=now())
    publisher.publish(packed(site, ALPHA, {"a": b"1"}), holder="test", now=now(), tag=NewTag("t", ""))
    assert "t" in {one.name for one in node.head().tags()}


def tag_add(node: PublisherNode, **more: Any) -> None:
    assert opened(node).add_tag("t").name == "t"


def tag_remove(node: PublisherNode, **more: Any) -> None:
    publisher = opened(node)
    if node.root.is_dir():
        (node.root / "tags").write_text("t 00 1 1 1 (default) \n")
    assert publisher.remove_tags(["t"]) == ("t",)


def tag_list(node: PublisherNode, **more: Any) -> None:
    (node.root / "tags").write_text("t 00 1 1 1 (default) two words\n")
    (found,) = opened(node).tags()
    assert (found.name, found.branch, found.description) == ("t", "", "two words")


def collect(node: PublisherNode, **more: Any) -> None:
    if node.behind == "none":
        assert opened(node).collect()
        return
    with pytest.raises(NotSupported):  # the gateway collects, and the node is not asked
        opened(node).collect()
    assert node.calls("gc") == []


def check(node: PublisherNode, **more: Any) -> None:
    assert opened(node).check()


def hard_links(node: PublisherNode, **more: Any) -> None:
    put(node, [file("a", b"1"), hardlink("b", "a")], **more)
    assert node.contents(ALPHA) == {"a": b"1", "b": b"1"}
    assert (node.root / "mount" / ALPHA[1:] / "a").stat().st_nlink in (1, 2)


def specials(node: PublisherNode, **more: Any) -> None:
    put(node, [file("a", b"1"), Member(b"pipe", type=b"6")], **more)
    assert node.contents(ALPHA) == {"a": b"1"}


def owners(node: PublisherNode, **more: Any) -> None:
    put(node, [file("a", b"1", uid=1234, gid=5)], **more)
    put(node, [file("a", b"1", uid=4321, gid=5)], **more)
    entry = node.head().revision.entry(f"{ALPHA}/a")
    assert (entry.uid, entry.gid) == (4321, 5)


def attributes(value: str) -> bytes:
    info = tarfile.TarInfo("a")
    info.size, info.mtime = 1, 1_700_000_000
    info.pax_headers = {"SCHILY.xattr.user.note": value}
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + b"1" + bytes(511) + bytes(1024)


def xattrs(node: PublisherNode, **more: Any) -> None:
    put(node, [file("b", b"2")])
    put(node, attributes("one"), **more)
    put(node, attributes("two"), **more)
    assert unpack_xattrs(node.head().revision.entry(f"{ALPHA}/a").xattr) == {b"user.note": b"two"}


ACTIONS: dict[Operation, Callable[..., None]] = {
    Operation.RESERVE: reserve,
    Operation.PUBLISH: publish,
    Operation.REPLACE: replace,
    Operation.REMOVE: remove,
    Operation.RELEASE: release,
    Operation.CHANGE: change,
    Operation.RENAME: change,
    Operation.LINK: change,
    Operation.PARALLEL: parallel,
    Operation.PUBLISH_TAGGED: tagged,
    Operation.TAG_ADD: tag_add,
    Operation.TAG_REMOVE: tag_remove,
    Operation.TAG_LIST: tag_list,
    Operation.COLLECT: collect,
    Operation.CHECK: check,
    Operation.TREE_HARD_LINKS: hard_links,
    Operation.TREE_SPECIALS: specials,
    Operation.TREE_OWNERS: owners,
    Operation.TREE_XATTRS: xattrs,
    Operation.ENTRY_HARD_LINKS: change,
    Operation.ENTRY_SPECIALS: change,
    Operation.ENTRY_OWNERS: change,
    Operation.ENTRY_XATTRS: change,
}
FIRST, ALWAYS = PublishRoute.SERVER_STOCK, {Operation.PUBLISH, Operation.REMOVE}
NOT_OFFERED = {Operation.RENEW, Operation.ROLLBACK, Operation.REPAIR, Operation.RECOUNT, Operation.TREE_MTIME_NS}
"""The interface has no such call, or the settings refuse it; for these the table only says what to do instead."""


REFUSED = [
    pytest.param(WAYS[way], operation, cell(way, operation), id=f"{way.name}-{operation.name}")
    for operation in set(ACTIONS) - {Operation.PARALLEL}
    for way in WAYS
    if cell(way, operation).outcome is OperationOutcome.REFUSED
]


def test_every_row_is_tried_or_refused_everywhere() -> None:
    assert set(ACTIONS) | NOT_OFFERED == set(Operation)
    assert all(cell(way, operation).outcome is OperationOutcome.REFUSED for way in WAYS for operation in NOT_OFFERED)


@pytest.mark.parametrize(("node", "way"), [(behind, way) for way, behind in WAYS.items()], indirect=["node"])
def test_what_is_not_refused_works_or_is_refused_for_its_loss_until_that_is_allowed(
    node: PublisherNode, way: PublishRoute
) -> None:
    for operation, action in ACTIONS.items():
        found = cell(way, operation)
        if way is not FIRST and operation not in ALWAYS and found == cell(FIRST, operation):
            continue
        if operation is Operation.PARALLEL:
            with pytest.raises(NodeBusy):
                action(node)
        elif found.outcome is OperationOutcome.SUPPORTED:
            action(node)
        elif found.loss is not None:
            put(node, [file("b", b"2")])
            before = node.revisions
            with refused(Lossy, loss=found.loss) as lossy:
                action(node)
            assert lossy.value.path.startswith(ALPHA)
            assert node.revisions - before <= 1, "no tree with a loss was published"
            action(node, allow_lossy=[found.loss.value])
        node.assert_sound()


@pytest.mark.parametrize(("behind", "operation", "found"), sorted(REFUSED, key=lambda one: str(one.id)))
def test_what_is_refused_is_refused_before_anybody_is_asked(
    tmp_path: Path, behind: str, operation: Operation, found: Any
) -> None:
    nowhere = PublisherNode(tmp_path, behind)
    nowhere.ssh = SshServer(tmp_path / "never-started", port=1)
    with refused(NotSupported) as unsupported:
        ACTIONS[operation](nowhere)
    assert found.cure in str(unsupported.value)
    assert nowhere.calls() == []
    nowhere.close()
