"""A collection dies at each of its writes: before it, after it, and within a request that deletes.

Whatever is preserved is read back whole, publications go on, and later collections leave nothing that is needed by
nothing. A collector that only slept awakes after another took over, and deletes nothing more.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from include.cvmfs.collect import sweep
from include.cvmfs.collect.report import CollectionRules
from include.cvmfs.coordination.condemned import PREFIX
from include.cvmfs.coordination.generation import TAKEOVER, CollectionPhase, look
from include.cvmfs.errors import CollectionBusy, CollectionRunning
from include.storage.file import FileStore
from tests.fakes.collecting import Place
from tests.fakes.process import Died, ProcessStore

RULES = CollectionRules(careful=False, all_orphans=True)
ORPHANS = 40
"""More than one shard of a list, whatever the digests."""
POINTS = (
    "generation marking", "list: shard", "list: index", "generation condemned",
    "fence: reflog", "fence: manifest", "shorter list: shard", "shorter list: index",
    "generation sweeping", "delete objects", "renew sweeping",
    "record", "prune: reflog", "prune: manifest", "generation idle", "status file", "delete lists",
)  # fmt: skip
"""Every write of a collection that finds work of all kinds, in the order of their first time."""
REPEATED = ("list: shard", "shorter list: shard")
"""Of these, one of many is the same as another."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Callable[[], None]]:
    """A repository with garbage of every kind; and how to go back to it."""
    place = Place(tmp_path_factory.mktemp("collected"))
    place.publish("/first", {"f": b"collected by the first"})
    place.publish("/first", {"f": b"first"})
    place.supersede()
    place.pass_time(days=4)
    place.collect(RULES)  # its list is not needed any more by the second
    place.publish("/t", {"f": b"tagged", "both": b"both"}, tag="kept")
    place.publish("/t", {"f": b"later", "both": b"both"})
    place.publish("/a", {"f": b"old", "g": b"both", "h": b"taken off the list"})
    place.publish("/a", {"f": b"new"})
    for number in range(ORPHANS):
        place.keep(b"orphan %d" % number)
    place.supersede()
    place.pass_time(days=4)
    place.publish("/b", {"f": b"superseded within the grace"})
    place.publish("/b", {"f": b"newer"})
    place.supersede()
    place.pass_time(hours=1)
    return place, place.snapshot()


@pytest.fixture
def place(world: tuple[Place, Callable[[], None]]) -> Place:
    place, restore = world
    restore()
    return place


def preserved(place: Place) -> Mapping[str, Mapping[str, bytes]]:
    """What readers of each preserved revision read, by root."""
    with place.collection(RULES, dry_run=True) as collection:
        collection.mark()
        return {str(root): place.contents(root) for root in collection._plan.kept}


def collect(place: Place, store: ProcessStore, rules: CollectionRules = RULES) -> None:
    """A collection, during which content is published that it is about to condemn."""
    with place.collection(rules, store=store) as collection:
        if collection.begin():
            collection.mark()
            publisher = place.publisher()
            publisher.publish(publisher.prepare("/again", {"h": b"taken off the list"}))
            if collection.condemn():
                collection.spare()
                collection.sweep()
        else:
            collection.sweep()
        collection.end()


def points_of(place: Place) -> list[str]:
    reached: list[str] = []
    collect(place, ProcessStore(place.store, reached.append))
    return reached


def at(point: str, number: int, do: Callable[[], None]) -> Callable[[str], None]:
    """``do``, when a point is reached for this time."""
    times = 0

    def reached(other: str) -> None:
        nonlocal times
        if other == point:
            times += 1
            if times == number:
                do()

    return reached


def die() -> None:
    raise Died


def test_these_are_all_the_writes_of_a_collection(place: Place) -> None:
    reached = points_of(place)
    assert tuple(dict.fromkeys(one.removeprefix("before ") for one in reached if one.startswith("before "))) == POINTS


MOMENTS = [f"before {point}" for point in POINTS] + ["within delete objects", f"after {POINTS[-1]}"]
# the store is as before the next point
MOMENTS += [pytest.param(f"after {point}", marks=pytest.mark.thorough) for point in POINTS[:-1]]


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_that_dies_loses_nothing_and_leaves_nothing(
    place: Place, world: tuple[Place, Callable[[], None]], moment: str
) -> None:
    times = points_of(place).count(moment)
    assert times
    for number in {1, times} if moment.endswith(REPEATED) else range(1, times + 1):
        world[1]()
        before = preserved(place)
        with pytest.raises(Died):
            collect(place, ProcessStore(place.store, at(moment, number, die)))
        goes_on(place, before)


def goes_on(place: Place, before: Mapping[str, Mapping[str, bytes]]) -> None:
    """Publish beside what is left of a dead collection, then collect until nothing is left to collect."""

    def whole() -> None:
        for root, contents in before.items():
            assert {key: place.store.objects.get(key) for key in contents} == contents, root
        assert place.problems() == []

    whole()
    publisher = place.publisher()
    publisher.publish(publisher.prepare("/other", {"f": b"something else"}))
    condemned = {"f": b"old", "o": b"orphan 1"}
    try:
        publisher.publish(publisher.prepare("/back", condemned, known_from=["/a", "/again"]))
    except CollectionRunning:
        document = look(place.store).generation
        assert document is not None
        assert document.phase.has_list
    place.pass_time(seconds=TAKEOVER.total_seconds())
    while place.collect(RULES).resumed:
        place.pass_time(minutes=1)
    whole()
    publisher.publish(publisher.prepare("/back", condemned, known_from=["/a"]))
    whole()
    document = look(place.store).generation
    assert document is not None
    assert document.phase is CollectionPhase.IDLE
    place.supersede()
    place.supersede()
    for _ in range(4):
        place.pass_time(days=4)
        contents = place.contents()
        if not place.collect(RULES).deleted:
            break
    else:
        raise AssertionError("a collection finds something after each other")
    assert place.contents() == contents
    assert place.problems() == []
    assert place.objects() == place.needed()
    assert not [key for key in place.store.objects if key.startswith(PREFIX)], "lists that nobody needs"


# -- a real process, a real store


KILLED_AT = ["before fence: manifest", "within delete objects"]
KILLED_AT += [
    pytest.param(moment, marks=pytest.mark.thorough)
    for moment in ("before generation condemned", "before renew sweeping", "before prune: manifest")
]


def killed(folder: Path, store: FileStore, moment: str, now: datetime) -> None:
    """What the process does: collects, and kills itself as kill -9 does."""
    place = Place(folder, store)
    place.now = now
    collect(place, ProcessStore(store, at(moment, 1, lambda: os.kill(os.getpid(), signal.SIGKILL))))


@pytest.mark.parametrize("moment", KILLED_AT)
def test_a_process_that_is_killed_loses_nothing_and_leaves_nothing(
    world: tuple[Place, Callable[[], None]], tmp_path: Path, moment: str
) -> None:
    world[1]()
    store = FileStore(tmp_path / "store")
    for key, data in world[0].store.objects.items():
        store.put(key, data)
        stored = world[0].store.times[key].timestamp()
        os.utime(store.root / key, (stored, stored))
    place = Place(tmp_path / "collector", store)
    place.now = world[0].now
    before = preserved(place)
    process = multiprocessing.get_context("fork").Process(
        target=killed, args=(tmp_path / "collector", store, moment, place.now)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    for found in store.list():  # as old as its clock said
        if found.modified > place.now:
            os.utime(store.root / found.key, (place.now.timestamp(),) * 2)
    while place.collect(RULES).resumed:
        place.pass_time(minutes=1)
    for contents in before.values():
        assert {key: store.get(key) for key in contents} == contents
    assert place.problems() == []
    place.supersede()
    place.supersede()
    for _ in range(4):
        place.pass_time(days=4)
        if not place.collect(RULES).deleted:
            break
    assert place.problems() == []
    assert place.objects() == place.needed()


# -- one that only slept; a request that was sent to the store already cannot be called back, and is not tried here


SLEEPS = [
    "before generation sweeping",
    "pause",
    "before renew sweeping",
    "before record",
    "before prune: manifest",
    "before generation idle",
]
SLEEPS += [
    pytest.param(moment, marks=pytest.mark.thorough)
    for moment in (
        "after generation condemned", "after generation sweeping", "after delete objects", "after renew sweeping",
        "before prune: reflog",
    )
]  # fmt: skip


@pytest.mark.parametrize("moment", SLEEPS)
def test_one_that_awakes_after_another_took_over_and_content_was_sent_again_deletes_nothing(
    place: Place, world: tuple[Place, Callable[[], None]], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "GROUP", 1)  # each shard is a group, and a request
    reached = points_of(place)
    times = reached.count("after delete objects" if moment == "pause" else moment)
    assert times
    for number in sorted({1, times // 2 or 1, times}):
        world[1]()
        asleep(place, moment, number)


def asleep(place: Place, moment: str, number: int) -> None:
    awake: dict[str, bytes] = {}

    def sleep() -> None:
        place.pass_time(seconds=TAKEOVER.total_seconds() * 1.5)
        while place.collect(RULES).resumed:
            place.pass_time(minutes=1)
        publisher = place.publisher()
        publisher.publish(publisher.prepare("/back", {"f": b"old", "o": b"orphan 1"}))
        awake.update({key: data for key, data in place.store.objects.items() if key.startswith("data/")})

    reach = at(moment, number, sleep)
    store = ProcessStore(place.store, reach)
    with pytest.raises(CollectionBusy):
        collect(place, store, replace(RULES, pause=lambda: store.reach("pause")))
    assert awake
    assert not awake.keys() - place.store.objects.keys(), "it deleted what was sent again"
    assert place.problems() == []
    place.pass_time(hours=2)
    before = preserved(place)
    while place.collect(RULES).resumed:
        place.pass_time(minutes=1)
    assert before == preserved(place)
    assert place.problems() == []
