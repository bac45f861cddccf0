"""Reservations of which nothing came are taken away, together, and never what somebody published meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from include.gateway.errors import PathBusy
from tests.fakes.site import BUILD, DESTINATIONS
from tests.integration.conftest import AGAIN_ON_S3
from tests.integration.publishers.conftest import ThreadSite

pytestmark = AGAIN_ON_S3
NOW = datetime.now(UTC)
FILES = {"file": b"content"}


@pytest.fixture
def reserved(site: ThreadSite) -> ThreadSite:
    site.reserve()
    return site


def test_reservations_go_in_one_revision_with_the_directories_that_would_be_empty(reserved: ThreadSite) -> None:
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], FILES), holder="test", now=NOW)
    before = reserved.head().manifest.revision
    done = reserved.worker().release(DESTINATIONS, floor=BUILD, holder="test", now=NOW)
    assert done.removed == tuple(path.rpartition("/")[0] for path in DESTINATIONS[1:])
    assert done.revision == reserved.head().manifest.revision == before + 1
    names = [entry.name for entry in reserved.readers().revision.listing(BUILD)]
    assert names == [".cvmfscatalog", "alpha"]
    reserved.assert_sound()


def test_directories_that_were_created_with_the_reservations_go_with_the_last_of_them(site: ThreadSite) -> None:
    site.reserve(["/software/kept/1.0"])
    created: list[str] = []
    wanted = ["/software/lost/1.0", "/software/lost/2.0"]
    done = site.worker().reserve(wanted, nested=[], holder="test", now=NOW, on_create=created.extend)
    assert tuple(created) == done.created == ("/software/lost", *wanted)
    site.worker().publish(site.prepared(wanted[0], FILES), holder="test", now=NOW)
    assert site.worker().release(wanted, floor=None, created=created, holder="test", now=NOW).removed == (wanted[1],)
    site.worker().remove(wanted[0], holder="test", now=NOW)
    site.reserve([wanted[1]])
    gone = site.worker().release(wanted, floor=None, created=created, holder="test", now=NOW)
    assert gone.removed == ("/software/lost",)
    assert [entry.name for entry in site.readers().revision.listing("/software")] == ["kept"]
    site.assert_sound()


def test_with_nothing_to_take_away_no_lease_is_taken(reserved: ThreadSite) -> None:
    reserved.worker().publish(reserved.prepared(DESTINATIONS[0], FILES), holder="test", now=NOW)
    before = reserved.head().manifest.revision
    with reserved.client().lease("nights.example.org", BUILD, hostname="somebody else"):
        done = reserved.worker().release([DESTINATIONS[0], "/nowhere"], floor=BUILD, holder="test", now=NOW)
    assert (done.removed, done.revision) == ((), before)


def test_what_is_published_between_the_look_and_the_lease_stays(reserved: ThreadSite) -> None:
    worker = reserved.worker()
    changeset = reserved.prepared(DESTINATIONS[1], FILES)

    class Late(type(worker._client)):  # type: ignore[misc]
        def acquire(self, *args: object, **more: object) -> object:
            if self is worker._client:
                reserved.worker().publish(changeset, holder="a late publisher", now=NOW)
            return super().acquire(*args, **more)

    worker._client.__class__ = Late
    done = worker.release(DESTINATIONS[:2], floor=None, holder="test", now=NOW)
    assert done.removed == (DESTINATIONS[0],)
    assert reserved.readers().revision.read(f"{DESTINATIONS[1]}/file") == b"content"
    reserved.assert_sound()


def test_a_busy_path_leaves_everything_as_it_is(reserved: ThreadSite) -> None:
    before = reserved.head().manifest.revision
    with (
        reserved.client().lease("nights.example.org", DESTINATIONS[2], hostname="somebody else"),
        pytest.raises(PathBusy),
    ):
        reserved.worker().release(DESTINATIONS, floor=BUILD, holder="test", now=NOW)
    assert reserved.head().manifest.revision == before
