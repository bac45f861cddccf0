"""Publications by a node, from the reserve to what readers see."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.cvmfs.collect.report import CollectionReport
from include.cvmfs.commit.commit import NewTag
from include.cvmfs.errors import BaseChanged, DestinationError, NotReserved
from include.cvmfs.sources.artifact import DirectorySource
from include.publishers.errors import PACKED_MISSING, TransactionOpen
from include.publishers.server.publisher import ServerPublisher
from include.site.changes import TreeToPrepare, publish_tree
from include.site.collecting import collect, options_of
from include.site.site import Site
from tests.fakes.node import PublisherNode, packed
from tests.fakes.refused import refused
from tests.site import BUILD, DESTINATIONS, FQRN, NESTED, now

pytestmark = pytest.mark.server("sshd")
FILES = {"bin/tool": b"#!/bin/sh\n", "lib/common.so": b"\x7fELF" * 4000, "share/é x": b"doc"}
ALPHA = DESTINATIONS[0]


def reserved(node: PublisherNode) -> tuple[Site, ServerPublisher]:
    """The site, and its publisher, with a destination."""
    site = node.site()
    publisher = site.server(FQRN)
    publisher.reserve([ALPHA], nested=[], holder="night", now=now())
    return site, publisher


@pytest.mark.parametrize("install", ["transaction", "ingest"])
def test_a_build_is_reserved_published_and_read_back(node: PublisherNode, install: str) -> None:
    site = node.site({"install": install})
    publisher = site.server(FQRN)
    told: list[str] = []
    reserved = publisher.reserve(DESTINATIONS, nested=NESTED, holder="night", now=now(), on_create=told.extend)
    assert list(reserved.created) == told
    assert set(DESTINATIONS) <= set(told)
    assert all(node.head().revision.nested_at(path) for path in [*DESTINATIONS, *NESTED])
    assert publisher.reserve(DESTINATIONS, nested=NESTED, holder="night", now=now()).created == ()
    changeset = packed(site, ALPHA, FILES)
    done = publisher.publish(changeset, holder="night", now=now(), replace=False)
    assert not done.unchanged
    assert done.revision == done.revision_before + 1 == node.head().manifest.revision
    assert done.nested_hash == node.head().revision.nested_at(ALPHA).hash
    assert node.contents(ALPHA) == FILES
    assert {path: node.head().revision.read(f"{ALPHA}/{path}") for path in FILES} == FILES
    assert changeset.files == len(FILES) + 1  # and the marker
    assert len(node.calls("ingest")) == (install == "ingest")
    node.assert_sound()


def test_the_same_tree_again_makes_no_revision(node: PublisherNode) -> None:
    site, publisher = reserved(node)
    publisher.publish(packed(site, ALPHA, FILES), holder="night", now=now())
    before = node.revisions
    done = publisher.publish(packed(site, ALPHA, FILES), holder="night", now=now())
    assert done.unchanged
    assert node.revisions == before
    assert not node.in_transaction
    publisher.publish(packed(site, ALPHA, {"a": b"one"}), holder="night", now=now())
    other = publisher.publish(packed(site, ALPHA, {"a": b"two"}), holder="night", now=now())
    assert not other.unchanged, "a file of the same size and time has another content"
    assert node.contents(ALPHA) == {"a": b"two"}


def test_a_tree_takes_the_place_of_another_and_nothing_of_it_stays(node: PublisherNode) -> None:
    site = node.site({"install": "ingest"})
    publisher = site.server(FQRN)
    publisher.reserve([ALPHA, DESTINATIONS[1]], nested=[], holder="night", now=now())
    publisher.publish(packed(site, DESTINATIONS[1], FILES), holder="night", now=now())
    publisher.publish(packed(site, ALPHA, FILES), holder="night", now=now())
    changeset = packed(site, ALPHA, {"new": b"tree"})
    with refused(DestinationError, path=ALPHA):
        publisher.publish(changeset, holder="night", now=now(), replace=False)
    publisher.publish(changeset, holder="night", now=now())
    assert node.contents(ALPHA) == {"new": b"tree"}
    assert node.contents(DESTINATIONS[1]) == FILES
    node.assert_sound()


def test_what_somebody_published_meanwhile_is_not_replaced(node: PublisherNode) -> None:
    site, publisher = reserved(node)
    stale = packed(site, ALPHA, {"mine": b"1"})
    publisher.publish(packed(site, ALPHA, {"theirs": b"2"}), holder="other", now=now())
    with refused(BaseChanged, path=ALPHA):
        publisher.publish(stale, holder="night", now=now())
    assert node.contents(ALPHA) == {"theirs": b"2"}
    assert not node.in_transaction


def test_a_publication_with_a_tag_names_its_revision_and_is_found_again(node: PublisherNode) -> None:
    site, publisher = reserved(node)
    tag = NewTag("release-1", "the 'first' $(one)")
    done = publisher.publish(packed(site, ALPHA, FILES), holder="night", now=now(), tag=tag)
    (found,) = [one for one in node.head().tags() if one.name == "release-1"]
    assert (found.revision, found.description) == (done.revision, "the 'first' $(one)")
    assert publisher.publish(packed(site, ALPHA, FILES), holder="night", now=now(), tag=tag).unchanged
    assert [one.name for one in publisher.tags()] == ["release-1"]


def test_a_tree_is_refused_without_a_directory_above_it_or_if_it_was_packed_elsewhere(node: PublisherNode) -> None:
    site = node.site()
    changeset = packed(site, ALPHA, FILES)
    with refused(NotReserved, path=ALPHA):
        site.server(FQRN).publish(changeset, holder="night", now=now())
    assert node.calls() == []
    for one in (node.folder / "var" / "packed" / FQRN).iterdir():
        one.unlink()
    with refused(PACKED_MISSING) as missing:
        site.server(FQRN).publish(changeset, holder="night", now=now())
    assert missing.value.retryable


def test_what_is_removed_is_gone_and_its_neighbours_stay(node: PublisherNode) -> None:
    site = node.site()
    publisher = site.server(FQRN)
    names = [f"{BUILD}/a", f"{BUILD}/b:c", f"{BUILD}/-rf"]
    publisher.reserve(names, nested=[], holder="night", now=now())
    for name in names:
        publisher.publish(packed(site, name, {"file": name.encode()}), holder="night", now=now())
    for gone in names[:2]:
        done = publisher.remove(gone, holder="night", now=now())
        assert node.head().revision.lookup(gone) is None
        assert done.nested_hash is None
    assert len(node.calls("ingest")) == 1
    assert node.contents(names[2]) == {"file": names[2].encode()}
    with refused(DestinationError, path=names[0]):
        publisher.remove(names[0], holder="night", now=now())
    node.assert_sound()


def test_only_empty_reservations_are_released(node: PublisherNode) -> None:
    site = node.site()
    publisher = site.server(FQRN)
    created = publisher.reserve(DESTINATIONS, nested=NESTED, holder="night", now=now()).created
    publisher.publish(packed(site, ALPHA, FILES), holder="night", now=now())
    done = publisher.release(DESTINATIONS, floor=BUILD, created=created, holder="night", now=now())
    assert done.removed == tuple(sorted(path.rpartition("/")[0] for path in DESTINATIONS[1:]))
    assert node.contents(ALPHA) == FILES
    assert publisher.release(DESTINATIONS, floor=BUILD, created=created, holder="night", now=now()).removed == ()
    node.assert_sound()


def test_names_that_a_shell_would_take_for_something_else_are_only_names(node: PublisherNode) -> None:
    site = node.site()
    publisher = site.server(FQRN)
    strange = ["$(touch pwned)", "-exec", "*", "x'; touch pwned; `touch pwned`'"]
    names = [f"/{one}" for one in strange]
    publisher.reserve(names, nested=[], holder="night $(touch pwned)", now=now())
    for name in names[::3]:
        files = {f"{name[1:]}/{name[1:]}": b"content"}
        publisher.publish(packed(site, name, files), holder="night", now=now(), tag=None)
        assert node.contents(name) == files
    assert not list(node.folder.rglob("pwned"))
    node.assert_sound()


def test_a_tree_is_published_by_hand_in_the_same_way(node: PublisherNode) -> None:
    site = node.site()
    folder = node.folder / "by-hand"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "a").write_bytes(b"content")
    tree = TreeToPrepare("/tools/x", DirectorySource(folder), now())
    dry = publish_tree(site, FQRN, replace(tree, dry_run=True), holder="me")
    assert (dry.created, dry.published) == (("/tools", "/tools/x"), None)
    assert node.calls() == []
    done = publish_tree(site, FQRN, replace(tree, source=DirectorySource(folder)), holder="me")
    assert done.published is not None
    assert done.created == ("/tools", "/tools/x")
    assert node.contents("/tools/x") == {"lib/a": b"content"}
    again = publish_tree(site, FQRN, replace(tree, source=DirectorySource(folder)), holder="me", replaces=True)
    assert again.published is not None
    assert again.published.unchanged
    node.assert_sound()


# -- collections on a node without a gateway: `cvmfs_server gc` is asked, and what it prints becomes the same report


ALONE = pytest.mark.parametrize("node", ["none"], indirect=True)
GARBAGE = """\
  --> marking unreferenced objects [now]
Preserving Revision 3 (now / added @ now)
  --> sweeping unreferenced objects [now]
Sweeping Revision 1 (then)
Sweep: 5798f7f4ca7585d850eea64610a1f73d8f8de7a3
Sweep: e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78C
  --> done garbage collecting [now]
"""


def run(node: PublisherNode, **more: Any) -> CollectionReport:
    site = node.site()
    report = collect(site, FQRN, options_of(site, FQRN, "collector", **more))
    assert isinstance(report, CollectionReport)
    return report


@ALONE
def test_what_the_node_collected_or_would_collect_is_reported(node: PublisherNode) -> None:
    (node.root / "garbage").write_text(GARBAGE)
    report = run(node)
    assert (report.deleted, report.roots_kept, report.roots_condemned, report.notes) == (2, 1, 1, [])
    (call,) = node.calls("gc")
    assert call[:3] == ["gc", "-f", "-t"]
    assert call[4:] == ["-l", FQRN]
    kept_since = datetime.fromisoformat(call[3])
    assert abs(datetime.now(UTC) - timedelta(days=3) - kept_since) < timedelta(minutes=2)
    report = run(node, dry_run=True)
    assert (report.condemned, report.deleted) == (2, 0)
    assert node.calls("gc")[1][4:] == ["-l", "-d", FQRN]
    # and nothing while another user has a transaction open
    assert node.somebody("transaction", FQRN).returncode == 0
    with pytest.raises(TransactionOpen):
        run(node)
