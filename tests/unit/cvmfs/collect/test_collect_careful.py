"""Careful mode: what one collection condemned goes when another condemns it again, a day later."""

from __future__ import annotations

import pytest

from include.cvmfs.collect.record import CollectionRules, read_record
from include.cvmfs.commit.metadata_objects import REFLOG_KEY
from include.cvmfs.coordination import condemned
from include.cvmfs.coordination.condemned import PREFIX, key_of, read_index
from include.cvmfs.format.database import Reflog
from tests.fakes.collecting import CAREFUL, Place


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are read from the store each time, as by other processes."""
    monkeypatch.setattr(condemned, "_cache", condemned._Cache(0))


def test_careful_mode_deletes_what_was_condemned_twice_a_day_apart(place: Place) -> None:
    old = place.publish("/a", {"f": b"old"})
    orphan = place.keep(b"orphan")
    place.publish("/a", {"f": b"new"})
    place.supersede()
    place.pass_time(days=4)
    rules = CollectionRules(all_orphans=True)
    first = place.collect(rules)
    assert first.careful
    assert first.deleted == 0
    assert first.once > 0
    place.pass_time(hours=3)
    assert place.collect(rules).deleted == 0
    assert place.store.exists(old.root.key)
    place.pass_time(hours=21)
    second = place.collect(rules)
    assert second.deleted == first.once
    assert not place.store.exists(old.root.key)
    assert not place.store.exists(orphan.key)
    place.pass_time(days=1)
    assert place.collect(rules).deleted == 0
    assert not Reflog.load(place.store.get(REFLOG_KEY)).contains(old.root)
    assert place.problems() == []


def test_an_orphan_that_was_condemned_once_and_sent_again_stays(place: Place) -> None:
    orphan = place.keep(b"orphan")
    place.pass_time(days=4)
    place.collect(CollectionRules(all_orphans=True))
    place.pass_time(hours=23)
    place.keep(b"orphan")
    place.pass_time(hours=2)
    place.collect(CAREFUL)
    assert place.store.exists(orphan.key)


def test_the_first_fourteen_collections_are_careful(place: Place) -> None:
    for _ in range(14):
        assert place.collect(CAREFUL).careful
        place.pass_time(days=1)
    assert not place.collect(CAREFUL).careful


def test_what_was_condemned_once_on_a_list_that_is_lost_waits_a_whole_day_again(place: Place, uncached: None) -> None:
    """A backup of the store may be without the lists: no collection fails for that, and none deletes too early."""
    old = place.publish("/a", {"f": b"old"})
    place.publish("/a", {"f": b"new"})
    place.supersede()
    place.pass_time(days=4)
    once = place.collect(CAREFUL).once
    place.store.delete([found.key for found in place.store.list(PREFIX)])
    place.pass_time(hours=20)
    second = place.collect(CAREFUL)
    assert (second.deleted, second.once) == (0, once)
    assert any("wait from the start again" in note for note in second.notes)
    place.pass_time(hours=20)
    assert place.collect(CAREFUL).deleted == 0
    assert place.store.exists(old.root.key)
    place.pass_time(hours=4)
    assert place.collect(CAREFUL).deleted >= once
    assert not place.store.exists(old.root.key)


def test_a_shard_of_that_list_that_is_lost_delays_its_objects_only(place: Place, uncached: None) -> None:
    place.publish("/a", {f"f{number}": b"old %d" % number for number in range(20)})
    place.publish("/a", {"f": b"new"})
    place.supersede()
    place.pass_time(days=4)
    once = place.collect(CAREFUL).once
    index = read_index(place.store, str(read_record(place.store)[0].once))
    number = next(number for number, name in enumerate(index.names) if name is not None)
    place.store.delete([key_of(str(index.names[number]))])
    place.pass_time(days=1)
    second = place.collect(CAREFUL)
    assert second.deleted == once - index.counts[number]
    place.pass_time(days=1)
    assert place.collect(CAREFUL).deleted >= index.counts[number]
    assert place.problems() == []
