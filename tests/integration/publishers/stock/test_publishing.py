"""The native publisher before a stock gateway: the tree is swapped and not walked, and whatever that gateway does, no
acknowledged work is lost and nothing of others is reverted."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from include.cvmfs.commit.commit import NewTag, read_head, switch
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.layout import Layout
from include.cvmfs.ingest.prepare import Base, PrepareOptions, prepare
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.source import Entry, EntryKind
from include.gateway.client.client import GatewayClient
from include.gateway.errors import RECEIVER_FAILED, REFLOG_MISSING, CommitUnclear, GatewayError, PathBusy, TagRefused
from include.publishers.capabilities import Loss
from include.publishers.errors import Lossy, NotSupported, WorkReverted
from include.site.changes import cutting
from tests.fakes.refused import refused
from tests.fakes.stocksite import StockSite
from tests.fakes.together import together
from tests.fakes.trees import ListedSource, a_file, a_hard_link
from tests.site import BUILD, DESTINATIONS, FQRN, NESTED, SIGNER

NOW = datetime.now(UTC)
FILES = {"bin/run": b"#!/bin/sh\n", "lib/a": b"a" * 1000, "lib/.cvmfscatalog": b""}
PANIC = "runtime error: PANIC: /build/cvmfs/x.cc : 5\nfailed"
CRASH = "worker 'commit' call failed: possible that the receiver crashed: EOF"
DIRECTORY = Dirent("", 0o40755, size=4096, linkcount=2)


def publish(site: StockSite, place: str = DESTINATIONS[0], files: Any = FILES, **more: Any) -> Any:
    return site.worker().publish(site.prepared(place, files), holder="test", now=NOW, **more)


# -- the way of a build


def test_a_build_is_reserved_under_the_topmost_missing_directory_without_a_closing_slash(stock_site: StockSite) -> None:
    done = stock_site.worker().reserve([*DESTINATIONS, "/other/place"], nested=NESTED, holder="test", now=NOW)
    assert stock_site.gateway.leased == ["/nightlies", "/other"]
    assert done.revision == 2
    assert set(done.created) >= {"/nightlies", BUILD, *DESTINATIONS, "/other", "/other/place"}
    again = stock_site.worker().reserve(DESTINATIONS, nested=NESTED, holder="test", now=NOW)
    assert (again.created, again.revision) == ((), 2)
    more = stock_site.worker().reserve([f"{BUILD}/delta/x86_64"], nested=NESTED, holder="test", now=NOW)
    assert stock_site.gateway.leased[2:] == [f"{BUILD}/delta"]
    assert more.revision == 3
    stock_site.assert_sound()


def test_a_tree_of_any_size_is_swapped_by_its_hash_and_not_walked(reserved: StockSite) -> None:
    files = {f"d{number}/f": b"x" for number in range(200)}
    changeset = reserved.prepared(DESTINATIONS[0], files)
    done = reserved.worker().publish(changeset, holder="test", now=NOW)
    receiver = reserved.gateway.receiver
    assert receiver.swapped == [DESTINATIONS[0]]
    assert receiver.walked < 20
    assert done.nested_hash == changeset.root
    assert reserved.gateway.commits[-1]["path"] == DESTINATIONS[0]
    assert reserved.readers().revision.read(f"{DESTINATIONS[0]}/d7/f") == b"x"
    reserved.assert_sound()


def test_hard_links_fifos_owners_and_attributes_of_a_tree_arrive_since_it_is_swapped(reserved: StockSite) -> None:
    head = reserved.head()
    members = [a_file("one", b"1", uid=7), a_hard_link("two", "one"), (Entry("pipe", EntryKind.FIFO, 0o644, 1), None)]
    changeset = prepare(
        ListedSource(members), store=reserved.store, fqrn=FQRN, destination=DESTINATIONS[0], now=NOW,
        base=Base(head.manifest.root, head.manifest.revision), options=PrepareOptions(mtime=1, specials=Specials.KEEP),
    )  # fmt: skip
    reserved.worker().publish(changeset, holder="test", now=NOW)
    found = {one.name: one for one in reserved.readers().revision.listing(DESTINATIONS[0])}
    assert found["one"].linkcount == found["two"].linkcount == 2
    assert found["one"].uid == 7
    assert found["pipe"].is_special
    reserved.assert_sound()


def test_three_publishers_at_once_lose_nothing(reserved: StockSite) -> None:
    base = reserved.head()
    changesets = [reserved.prepared(place, {"f": place.encode()}, base) for place in DESTINATIONS]
    done = together(
        partial(reserved.worker().publish, changeset, holder=changeset.destination, now=NOW) for changeset in changesets
    )
    revisions = sorted(publication.revision for publication in done)
    assert revisions[-1] == reserved.readers().manifest.revision == 4
    assert [reserved.readers().revision.read(f"{place}/f") for place in DESTINATIONS] == [
        one.encode() for one in DESTINATIONS
    ]
    reserved.assert_sound()


def test_a_sibling_that_begins_alike_is_busy_and_says_who_holds_what(reserved: StockSite) -> None:
    reserved.worker().reserve([f"{BUILD}/alpha/x86"], nested=NESTED, holder="test", now=NOW)
    with reserved.client().lease(FQRN, f"{BUILD}/alpha/x86", hostname="other"), pytest.raises(PathBusy) as busy:
        publish(reserved, f"{BUILD}/alpha/x86_64")
    assert 7100 < busy.value.time_remaining_s <= 7200
    publish(reserved, f"{BUILD}/alpha/x86_64")
    reserved.assert_sound()


def test_removing_and_releasing_give_the_counters_back(reserved: StockSite) -> None:
    publish(reserved)
    reserved.worker().remove(DESTINATIONS[0], holder="test", now=NOW)
    done = reserved.worker().release(DESTINATIONS[1:], floor=None, holder="test", now=NOW)
    assert set(done.removed) == set(DESTINATIONS[1:])
    reserved.assert_sound()


def test_a_link_moves_forward_and_nothing_to_do_makes_no_empty_revision(reserved: StockSite) -> None:
    link = f"{BUILD}/latest"

    def lead(target: str) -> Any:
        return reserved.worker().change(
            link, lambda edit: edit.symlink(link, target, now=1), holder="test", now=NOW
        )  # fmt: skip

    first = lead("alpha")
    assert lead("alpha").unchanged
    assert reserved.readers().manifest.revision == first.revision
    lead("beta")
    assert reserved.readers().revision.entry(link).symlink == "beta"
    reserved.assert_sound()


def test_the_rules_of_a_repository_are_replaced_under_a_lease_on_their_file_alone(reserved: StockSite) -> None:
    for rules in (b"/sw/*\n", b"/sw/*\n/other\n"):
        change = cutting(rules, "rules", now=NOW)
        with reserved.client().lease(FQRN, BUILD, hostname="another"):
            done = reserved.worker().change(change.lease, change.apply, holder="test", now=NOW)
        assert (done.revision, reserved.readers().revision.read("/.cvmfsdirtab")) == (done.revision_before + 1, rules)
        assert reserved.worker().change(change.lease, change.apply, holder="test", now=NOW).unchanged
        reserved.assert_sound()


def test_a_tree_moves_within_a_nested_catalog_that_is_swapped_or_entry_by_entry(reserved: StockSite) -> None:
    publish(reserved)
    moved = reserved.worker().change(
        BUILD, lambda edit: edit.move(DESTINATIONS[0], f"{BUILD}/moved"), holder="test", now=NOW
    )
    assert reserved.gateway.receiver.swapped == [BUILD]
    assert reserved.readers().revision.read(f"{BUILD}/moved/lib/a") == b"a" * 1000
    reserved.worker().reserve(["/plain/one"], nested=[], holder="test", now=NOW)
    publish(reserved, "/plain/one")
    again = reserved.worker().change(
        "/plain", lambda edit: edit.move("/plain/one", "/plain/two"), holder="test", now=NOW
    )  # fmt: skip
    assert again.revision == moved.revision + 3
    assert reserved.gateway.receiver.swapped == []
    assert reserved.readers().revision.read("/plain/two/lib/a") == b"a" * 1000
    reserved.assert_sound()


# -- failures


def also(*reasons: str) -> list[Any]:
    """Reasons that show again what another one shows."""
    return [pytest.param(reason, marks=pytest.mark.thorough) for reason in reasons]


@pytest.mark.parametrize("reason", [PANIC, *also(CRASH, "miscellaneous", "merge_error"), "unheard of"])
def test_a_commit_that_failed_gets_a_new_lease_since_it_cannot_be_repeated_under_its_own(
    reserved: StockSite, reason: str
) -> None:
    reserved.gateway.fail.append(reason)
    if reason == "unheard of":
        with refused(GatewayError, reason="unheard of"):
            publish(reserved)
        return
    before = len(reserved.gateway.leased)
    done = publish(reserved)
    assert done.revision == 2
    assert reserved.gateway.leased[before:] == [DESTINATIONS[0]] * 2
    assert len(reserved.pauses) == 1
    reserved.assert_sound()


@pytest.mark.parametrize("reason", [CRASH, *also(PANIC, "miscellaneous"), "unheard of"])
def test_a_failure_after_the_switch_is_found_published_by_looking(reserved: StockSite, reason: str) -> None:
    reserved.gateway.fail_after.append(reason)
    done = publish(reserved, tag=NewTag("night"))
    assert (done.revision, done.unchanged) == (2, False)
    assert reserved.readers().manifest.revision == 2
    assert reserved.readers().tag("night").revision == 2
    reserved.assert_sound()


def test_a_reservation_whose_commit_said_nothing_is_found_with_its_new_catalogs(stock_site: StockSite) -> None:
    stock_site.gateway.fail_after.append(CRASH)
    done = stock_site.worker().reserve(DESTINATIONS, nested=NESTED, holder="test", now=NOW)
    assert done.revision == 1
    assert stock_site.readers().manifest.revision == 1
    assert len(stock_site.gateway.commits) == 1
    stock_site.assert_sound()


def test_a_lost_reply_is_settled_by_looking_and_publishes_once(reserved: StockSite) -> None:
    reserved.gateway.lose_replies = 1
    done = publish(reserved)
    assert (done.revision, done.unchanged) == (2, False)
    assert reserved.readers().manifest.revision == 2
    reserved.assert_sound()


def test_what_is_still_unclear_after_looking_is_said(reserved: StockSite, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> int:
        raise CommitUnclear("its reply was lost")

    changeset = reserved.prepared(DESTINATIONS[0], FILES)
    monkeypatch.setattr(GatewayClient, "commit", lost)
    with pytest.raises(CommitUnclear):
        reserved.worker().publish(changeset, holder="test", now=NOW)
    assert reserved.readers().manifest.revision == 1
    reserved.assert_sound()


@pytest.mark.parametrize("harm", ["restart", "expire_all"])
def test_a_new_lease_cures_one_that_expired_and_counters_that_a_restart_lost(reserved: StockSite, harm: str) -> None:
    changeset = reserved.prepared(DESTINATIONS[0], FILES)
    harms = [getattr(reserved.gateway, harm)]
    done = reserved.worker().publish(
        changeset, holder="test", now=NOW, on_lease=lambda _: harms.pop()() if harms else None
    )
    assert done.revision == 2
    assert len(reserved.pauses) == 1
    reserved.assert_sound()


def test_failures_that_a_new_lease_does_not_cure_end_at_once_and_others_after_a_few(reserved: StockSite) -> None:
    reserved.gateway.fail.append("missing_reflog")
    with refused(REFLOG_MISSING):
        publish(reserved)
    assert reserved.pauses == []
    reserved.gateway.fail += [PANIC] * 10
    with refused(RECEIVER_FAILED):
        publish(reserved, DESTINATIONS[1])
    assert len(reserved.pauses) == 4
    assert reserved.readers().manifest.revision == 1
    reserved.gateway.fail.clear()
    reserved.assert_sound()


def test_a_tag_that_is_taken_is_refused_before_the_commit(reserved: StockSite) -> None:
    publish(reserved, tag=NewTag("night"))
    commits = len(reserved.gateway.commits)
    with refused(TagRefused, path=DESTINATIONS[1]):
        publish(reserved, DESTINATIONS[1], tag=NewTag("night"))
    assert len(reserved.gateway.commits) == commits
    reserved.assert_sound()


def test_a_published_tree_is_tagged_later_by_a_revision_of_its_own(reserved: StockSite) -> None:
    changeset = reserved.prepared(DESTINATIONS[0], FILES)
    reserved.worker().publish(changeset, holder="test", now=NOW)
    assert reserved.worker().publish(changeset, holder="test", now=NOW).unchanged
    tagged = reserved.worker().publish(changeset, holder="test", now=NOW, tag=NewTag("night"))
    assert reserved.readers().tag("night").revision == tagged.revision == 3
    reserved.assert_sound()


# -- others' work


def test_a_commit_with_a_wrong_base_would_revert_and_ours_names_the_one_it_was_derived_from(
    reserved: StockSite,
) -> None:
    stale = reserved.head().manifest
    publish(reserved, DESTINATIONS[1], {"other": b"work"})
    publish(reserved, DESTINATIONS[0])
    sent = reserved.gateway.commits[-1]
    view = Revision(reserved.head().catalogs, stale.root)
    assert sent["old_root_hash"] != f"{stale.root}C"
    assert view.nested_at(DESTINATIONS[1]) is not None
    assert reserved.readers().revision.read(f"{DESTINATIONS[1]}/other") == b"work"
    reserved.assert_sound()


def test_work_that_a_commit_reverted_outside_of_its_lease_is_noticed_and_named(
    reserved: StockSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(reserved, DESTINATIONS[1], {"other": b"work"})
    receiver = reserved.gateway.receiver
    merge = type(receiver)._merge

    def reverting(self: Any, old: Revision, new: Revision, edit: Edit, lease: str) -> None:
        merge(self, old, new, edit, lease)
        edit.remove(DESTINATIONS[1])

    monkeypatch.setattr(type(receiver), "_merge", reverting)
    with pytest.raises(WorkReverted, match=f"revision 3.*{DESTINATIONS[1]}.*nightshift repo diff") as caught:
        publish(reserved, DESTINATIONS[0])
    assert (caught.value.path, caught.value.revision) == (DESTINATIONS[0], 3)
    assert not caught.value.retryable


def test_a_change_of_counters_without_a_change_of_entries_is_noticed_too(
    reserved: StockSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = reserved.gateway.receiver
    merge = type(receiver)._merge

    def adding(self: Any, old: Revision, new: Revision, edit: Edit, lease: str) -> None:
        merge(self, old, new, edit, lease)
        edit.add("/nightlies/main/stray", DIRECTORY)

    monkeypatch.setattr(type(receiver), "_merge", adding)
    with refused(WorkReverted, path=DESTINATIONS[0], revision=2):
        publish(reserved, DESTINATIONS[0])


# -- what a stock receiver would lose on the way is refused before it is sent


@pytest.fixture
def plain(reserved: StockSite) -> StockSite:
    """With single entries below a directory that is no nested catalog of its own."""

    def fill(edit: Edit) -> None:
        content = edit.nested_at(DESTINATIONS[0])
        assert content is not None
        edit.add(f"{BUILD}/plain", DIRECTORY)
        edit.add(f"{BUILD}/plain/f", Dirent("", 0o100644, size=0, mtime=5, hash=_empty(edit)))

    reserved.worker().change(f"{BUILD}/plain", fill, holder="test", now=NOW)
    return reserved


def _empty(edit: Edit) -> Any:
    marker = edit.lookup(f"{DESTINATIONS[0]}/.cvmfscatalog")
    assert marker is not None
    return marker.hash


def _chown(edit: Edit) -> None:
    entry = edit.lookup(f"{BUILD}/plain")
    assert entry is not None
    edit.touch(f"{BUILD}/plain", entry.changed(uid=1000))


def _fifo(edit: Edit) -> None:
    edit.add(f"{BUILD}/plain/pipe", Dirent("", 0o010644, mtime=5))


def _hard_links(edit: Edit) -> None:
    one = Dirent("", 0o100644, mtime=5, hash=_empty(edit), linkcount=2, hardlink_group=9)
    edit.add(f"{BUILD}/plain/a", one)
    edit.add(f"{BUILD}/plain/b", one)


@pytest.mark.parametrize(
    ("change", "loss", "path"),
    [
        (_chown, Loss.OWNERS, f"{BUILD}/plain"),
        (_fifo, Loss.SPECIALS, f"{BUILD}/plain/pipe"),
        (_hard_links, Loss.HARD_LINKS, f"{BUILD}/plain/a"),
    ],
)
def test_what_the_receiver_would_drop_is_refused_by_name_unless_the_settings_allow_it(
    plain: StockSite, change: Any, loss: Loss, path: str
) -> None:
    before, commits = plain.head().manifest, len(plain.gateway.commits)
    with refused(Lossy, path=path, loss=loss):
        plain.worker().change(f"{BUILD}/plain", change, holder="test", now=NOW)
    assert plain.head().manifest == before
    assert len(plain.gateway.commits) == commits
    done = plain.worker(allow_lossy=[loss.value]).change(f"{BUILD}/plain", change, holder="test", now=NOW)
    assert done.revision == before.revision + 1
    after = plain.readers()
    assert after.revision.entry(f"{BUILD}/plain").uid == 0, "the receiver lost it, as was allowed"
    assert after.revision.lookup(f"{BUILD}/plain/pipe") is None
    plain.assert_sound()


def test_a_tree_with_nanoseconds_is_refused_before_it_is_leased(reserved: StockSite) -> None:
    changeset = reserved.prepared(DESTINATIONS[0], FILES, layout=Layout.MTIME_NS, mtime_ns=True)
    leased = len(reserved.gateway.leased)
    with refused(NotSupported, path=DESTINATIONS[0]):
        reserved.worker(allow_lossy=[loss.value for loss in Loss]).publish(changeset, holder="test", now=NOW)
    assert len(reserved.gateway.leased) == leased
    reserved.assert_sound()


def test_changed_hard_links_break_a_receiver_and_are_refused_whatever_is_allowed(plain: StockSite) -> None:
    # they came by other ways than this gateway
    head = read_head(plain.store, FQRN)
    edit = Edit(CatalogCache(plain.store), head.manifest.root)
    _hard_links(edit)
    switch(plain.store, head, edit.finish(int(NOW.timestamp())), signer=SIGNER, now=int(NOW.timestamp()))
    with refused(NotSupported, path=f"{BUILD}/plain/a"):
        plain.worker(allow_lossy=[loss.value for loss in Loss]).remove(f"{BUILD}/plain/a", holder="test", now=NOW)
    plain.assert_sound()


def test_a_change_of_everything_is_refused_since_its_lease_would_end_in_a_slash(reserved: StockSite) -> None:
    with refused(NotSupported, path="/"):
        reserved.worker().change("", lambda edit: edit.remove(BUILD), holder="test", now=NOW)
    assert "/" not in reserved.gateway.leased
    reserved.assert_sound()
