"""Collections, publications, tags and rollbacks in any order, with deaths, two collectors and clocks that step.

What readers of a preserved revision read never changes: of the current one, of those that a tag names, and of those
that were superseded within the grace. Nothing is deleted that the list that is out does not name. ``make soak
PART=collection`` draws afresh.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from include.cvmfs.collect import sweep
from include.cvmfs.collect.collect import GarbageCollection
from include.cvmfs.collect.report import CollectionRules
from include.cvmfs.commit.commit import NewTag, SwitchStep, load_history, read_head
from include.cvmfs.commit.tags import add_tag, plan_rollback, rollback
from include.cvmfs.coordination.condemned import read_list
from include.cvmfs.coordination.generation import look
from include.cvmfs.errors import CollectionBusy, CollectionRefused, CvmfsError
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.ingest.changeset import Changeset
from tests.fakes.collecting import FQRN, ClockedStore, Place, signer
from tests.fakes.process import Died
from tests.fakes.publishing import Judged, Publisher

pytestmark = pytest.mark.timeout(600)
GRACE = timedelta(hours=3)
"""Less than a changeset lives, so that what one relies on may be collected."""
PATHS = ("/a", "/b", "/c")
CONTENTS = tuple(b"content %d" % number for number in range(10))
STEPS_OF_CLOCK = {
    "minutes": timedelta(minutes=10), "takeover": timedelta(minutes=21), "back": -timedelta(minutes=20),
    "grace": timedelta(hours=3, minutes=1), "day": timedelta(days=1),
}  # fmt: skip
DEATHS = (SwitchStep.CATALOGS_STORED, SwitchStep.REFLOG_WRITTEN, SwitchStep.SWITCHED)
STEPS = ("mark", "condemn", "spare", "sweep")
paths = st.sampled_from(PATHS)
happenings = st.lists(st.sampled_from(["publish", "commit", "judge", "tag", "back", "again", "again"]), max_size=2)
picks = st.integers(0, 7)
trees = st.lists(st.sampled_from(CONTENTS), min_size=1, max_size=3, unique=True)


class AtOnce:
    """Runs each job where it is submitted, so that an example does the same each time."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Callable[..., Any], *arguments: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **more))
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            done.set_exception(error)
        return done


class WatchedStore(ClockedStore):
    """Fails a deletion of what the list that is out does not name. ``at_delete`` is called when one is under way."""

    at_delete: Callable[[], None] = staticmethod(lambda: None)

    def delete(self, keys: Iterable[str]) -> int:
        wanted = [key for key in keys if key.startswith("data/")]
        if wanted:
            name = look(self).running_list
            assert name is not None, "something is deleted while no list is out"
            listed = {one.key for one in read_list(self, name)}
            assert not set(wanted) - listed, "something is deleted that the list does not name"
            self.at_delete()
        return super().delete(keys)


@dataclass
class Published:
    """A revision that readers may be on: its objects, and since when it is superseded."""

    root: ObjectHash
    contents: Mapping[str, bytes]
    superseded: datetime | None = None


class CollectionsBesidePublications(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="machine-"))
        self.threads, self.group = sweep.ThreadPoolExecutor, sweep.GROUP
        sweep.ThreadPoolExecutor, sweep.GROUP = AtOnce, 1  # type: ignore[misc, assignment]
        self.place = Place(self.folder)
        self.place.store.__class__ = WatchedStore
        assert isinstance(self.place.store, WatchedStore)
        self.store: WatchedStore = self.place.store
        self.publisher: Publisher = self.place.publisher()
        self.changesets: list[Changeset] = []
        self.judged: list[Judged] = []
        self.collectors: list[tuple[GarbageCollection, str] | None] = [None, None]
        self.revisions: list[Published] = []
        self.stepped_back = False
        self.seen(self.place.manifest())
        for path in PATHS:
            self.seen(self.publisher.publish(self.publisher.prepare(path, {"f": path.encode()})))

    def teardown(self) -> None:
        try:
            self.nothing_is_left()
        finally:
            sweep.ThreadPoolExecutor, sweep.GROUP = self.threads, self.group  # type: ignore[misc]
            shutil.rmtree(self.folder)

    # -- the model

    def seen(self, manifest: Manifest) -> None:
        """A manifest that readers see now."""
        last = self.revisions[-1] if self.revisions else None
        if last is None or last.root != manifest.root:
            if last is not None:
                last.superseded = self.place.now
            self.revisions.append(Published(manifest.root, self.place.contents(manifest.root)))

    def look_around(self) -> None:
        self.seen(self.place.manifest())

    @invariant()
    def preserved_revisions_are_whole(self) -> None:
        tagged = {tag.hash.digest for tag in load_history(self.store, self.place.manifest()).tags()}
        # a second less: the reflog has whole seconds
        limit = self.place.now - GRACE + timedelta(seconds=1)
        self.revisions = [
            one for one in self.revisions
            if one.superseded is None or one.superseded > limit or one.root.digest in tagged
        ]  # fmt: skip
        known = {one.root.digest for one in self.revisions}
        assert tagged <= known, "a tag names what was not preserved"
        for one in self.revisions:
            for key, data in one.contents.items():
                assert self.store.objects.get(key) == data, f"{key} of {one.root}"

    # -- publishers

    @rule(path=paths, files=trees, known=paths)
    def prepare(self, path: str, files: list[bytes], known: str) -> None:
        self.place.pass_time(seconds=2)
        named = {f"f{number}": content for number, content in enumerate(files)}
        self.changesets = [*self.changesets[-7:], self.publisher.prepare(path, named, known_from=[known])]

    @rule(pick=picks, tag=st.sampled_from([None, None, "t1"]))
    def publish(self, pick: int, tag: str | None) -> None:
        if self.changesets:
            self.place.pass_time(seconds=1)
            with suppress(CvmfsError):
                changeset = self.changesets[pick % len(self.changesets)]
                self.publisher.publish(changeset, NewTag(tag) if tag else None)
            self.look_around()

    @rule(pick=picks)
    def judge(self, pick: int) -> None:
        if self.changesets:
            with suppress(CvmfsError):
                judged = self.publisher.judge(self.changesets[pick % len(self.changesets)])
                self.judged = [*self.judged[-3:], judged]

    @rule(pick=picks, death=st.sampled_from([None, None, *DEATHS]))
    def commit(self, pick: int, death: SwitchStep | None) -> None:
        if not self.judged:
            return
        self.place.pass_time(seconds=1)

        def die(step: SwitchStep) -> None:
            if step is death:
                raise Died

        with suppress(CvmfsError, Died):
            self.publisher.commit(self.judged.pop(pick % len(self.judged)), die)
        self.look_around()

    @rule(path=paths)
    def remove(self, path: str) -> None:
        self.place.pass_time(seconds=1)
        with suppress(CvmfsError):
            self.publisher.commit(self.publisher.change(path, lambda edit: edit.remove(path)))
        self.look_around()

    @rule(pick=picks, name=st.sampled_from(["t1", "t2"]))
    def tag(self, pick: int, name: str) -> None:
        root = self.revisions[pick % len(self.revisions)].root
        with suppress(CvmfsError):
            add_tag(self.store, FQRN, name, str(root), signer=signer(), now=self.place.seconds, move=True)

    @rule(name=st.sampled_from(["t1", "t2"]))
    def untag(self, name: str) -> None:
        self.place.untag(name)

    @rule(back=st.integers(1, 6), by_tag=st.booleans())
    def go_back(self, back: int, by_tag: bool) -> None:
        self.place.pass_time(seconds=1)
        manifest = read_head(self.store, FQRN).manifest
        with suppress(CvmfsError):
            plan = plan_rollback(self.store, FQRN, "t1" if by_tag else manifest.revision - back)
            rollback(self.store, plan, signer=signer(), now=self.place.seconds)
        self.look_around()

    # -- collectors

    @rule(
        who=st.integers(0, 1), careful=st.sampled_from([False, False, True]), everywhere=st.booleans(),
        passed=st.sampled_from([timedelta(), GRACE, GRACE, timedelta(days=2, hours=1)]),
        beside=st.lists(happenings, min_size=4, max_size=4), pick=picks, far=st.sampled_from([*STEPS, "end", "end"]),
    )  # fmt: skip
    def collect(
        self, who: int, careful: bool, everywhere: bool, passed: timedelta, beside: list[list[str]], pick: int, far: str
    ) -> None:
        """A collection, with others at work between its steps; it stands still before the step ``far``."""
        self.place.now += passed
        self.leave(who)
        collection = self.place.collection(CollectionRules(GRACE, careful=careful, all_orphans=everywhere))
        with self.collecting(who):
            self.collectors[who] = collection, "mark" if collection.begin() else "sweep"
        for meanwhile in beside:
            if (held := self.collectors[who]) is None or held[1] == far:
                return
            self.happen(meanwhile, pick)
            self.step(who)
        self.step(who)

    @rule(who=st.integers(0, 1), steps=st.integers(1, 5))
    def go_on(self, who: int, steps: int) -> None:
        for _ in range(steps):
            self.step(who)

    @rule(pick=picks, who=st.integers(0, 1), steps=st.integers(1, 4))
    def commit_that_stands_still(self, pick: int, who: int, steps: int) -> None:
        """Right before its switch, while a collection goes on."""
        if not self.judged:
            self.judge(pick)
        if not self.judged:
            return

        def stand(step: SwitchStep) -> None:
            if step is SwitchStep.FENCED:
                standing.append(True)
                if len(standing) == 1:
                    self.go_on(who, steps)

        standing: list[bool] = []
        with suppress(CvmfsError):
            self.publisher.commit(self.judged.pop(pick % len(self.judged)), stand)
        self.look_around()

    @rule(
        who=st.integers(0, 1), at=st.integers(0, 8), within=st.booleans(), die=st.booleans(),
        happening=happenings, pick=picks,
    )  # fmt: skip
    def sweep_while_much_happens(
        self, who: int, at: int, within: bool, die: bool, happening: list[str], pick: int
    ) -> None:
        """Before a group of a sweep, or while its objects are being deleted; then perhaps the process dies."""
        while (held := self.collectors[who]) is not None and held[1] not in ("sweep", "end"):
            self.step(who)
        if held is None or held[1] != "sweep":
            return
        groups = 0

        def come_by() -> None:
            nonlocal groups
            groups += 1
            if groups == at + 1:
                self.happen(happening, pick)
                if die:
                    raise Died

        if within:
            self.store.at_delete = come_by
        else:
            held[0]._rules = replace(held[0]._rules, pause=come_by)
        try:
            self.step(who)
        except Died:
            self.leave(who)
        finally:
            self.store.at_delete = lambda: None

    def happen(self, what: list[str], pick: int) -> None:
        for one in what:
            {
                "publish": lambda: self.publish(pick, None), "commit": lambda: self.commit(pick, None),
                "judge": lambda: self.judge(pick), "tag": lambda: self.tag(pick, "t1"),
                "back": lambda: self.go_back(1 + pick % 3, by_tag=False), "again": lambda: self.again(pick),
            }[one]()  # fmt: skip

    @rule(pick=picks)
    def again(self, pick: int) -> None:
        """Some contents, whatever became of them, sent and published at once."""
        self.prepare(PATHS[pick % len(PATHS)], list(CONTENTS[pick : pick + 3]), PATHS[pick // 2 % len(PATHS)])
        self.publish(len(self.changesets) - 1, None)

    @rule(pick=picks, files=trees)
    def two_publications(self, pick: int, files: list[bytes]) -> None:
        """After the second, no automatic tag protects the revision from before the first."""
        for content in (files, [b"%d" % self.place.seconds]):
            self.prepare(PATHS[pick % len(PATHS)], content, "/a")
            self.publish(len(self.changesets) - 1, None)

    @rule(who=st.integers(0, 1))
    def leave(self, who: int) -> None:
        """The process of a collector is gone."""
        held, self.collectors[who] = self.collectors[who], None
        if held is not None:
            held[0].__exit__()

    @rule(step=st.sampled_from(list(STEPS_OF_CLOCK)))
    def clock(self, step: str) -> None:
        self.place.now += STEPS_OF_CLOCK[step]
        self.stepped_back |= step == "back"

    def step(self, who: int) -> None:
        held = self.collectors[who]
        if held is None:
            return
        collection, step = held
        with self.collecting(who):
            match step:
                case "mark":
                    collection.mark()
                    then = "condemn"
                case "condemn":
                    then = "spare" if collection.condemn() else "end"
                case "spare":
                    collection.spare()
                    then = "sweep"
                case "sweep":
                    collection.sweep()
                    then = "end"
                case _:
                    collection.end()
                    assert collection.report.lost == []
                    self.leave(who)
                    return
            self.collectors[who] = collection, then

    def collecting(self, who: int) -> Stops:
        return Stops(self, who)

    def nothing_is_left(self) -> None:
        """Later collections leave only what is needed."""
        for who in (0, 1):
            self.leave(who)
        self.place.now += timedelta(hours=2)
        rules = CollectionRules(GRACE, careful=False, all_orphans=True)
        while self.place.collect(rules).resumed:
            self.place.now += timedelta(minutes=1)
        self.preserved_revisions_are_whole()
        for _ in range(3):
            self.place.supersede()
            self.look_around()
        for _ in range(4):
            self.place.now += timedelta(days=4)
            if not self.place.collect(rules).deleted:
                break
        self.preserved_revisions_are_whole()
        assert self.place.problems() == []
        assert self.place.objects() == self.place.needed()


class Stops:
    """A collection that stops as it may is gone; for a clock that stepped back it may also be refused."""

    def __init__(self, machine: CollectionsBesidePublications, who: int) -> None:
        self._machine = machine
        self._who = who

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, CollectionBusy) or (isinstance(error, CollectionRefused) and self._machine.stepped_back):
            self._machine.leave(self._who)
            return True
        return False


CollectionsBesidePublications.TestCase.settings = settings(
    max_examples=12, stateful_step_count=30, derandomize=True, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
test_collections_beside_publications = CollectionsBesidePublications.TestCase
