"""The gateway beside its model: leases, changes, commits, other writers, and the ends of the service, as rules."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from include.cvmfs.commit.commit import SwitchStep
from include.cvmfs.coordination.generation import look
from include.cvmfs.format.paths import is_below
from include.gateway.protocol import overlap
from include.gateway.service.commits.queue import Point
from include.gateway.service.leases.lease_table import digest_of
from tests.fakes.gateway_service import ManualClock
from tests.faults.machine.model import INVALID, Held, Model, Standing, is_live
from tests.faults.machine.service import HOLDS, LEASE_S, UNFORESEEN, Answer, Killed, Loop, Service
from tests.faults.machine.world import HERE, LEASES, MADE, Change, World

LEASE_NS = round(LEASE_S * 1e9)
AHEAD = [SwitchStep.HISTORY_STORED, SwitchStep.REFLOG_WRITTEN, SwitchStep.BEFORE_SWITCH]

paths = st.sampled_from(LEASES)
numbers = st.integers(0, 5)
places = st.integers(0, 30)
chosen = st.lists(paths, min_size=1, max_size=6, unique=True)


class GatewayMachine(RuleBasedStateMachine):
    loop = Loop()

    def __init__(self) -> None:
        super().__init__()
        UNFORESEEN.begin()
        self.folder = Path(tempfile.mkdtemp(dir=_fast_folder()))
        self.clock = ManualClock()
        self.world = World.fresh()
        self.model = Model(self.world)
        self.standing: list[Standing] = []
        self.disabled = self.stepped = self.reflog_may_be_ahead = False
        self.states = self.epoch = self.tag = 0
        self.orphans: list[tuple[str, Change]] = []
        self.swept: dict[int, int] = {}
        self.collector = self.world.collector()
        self.collecting = 0
        self.service = self.begun()

    def begun(self) -> Service:
        return Service(self.loop, self.world.store, self.folder / f"state-{self.states}.db", self.clock)

    @property
    def now(self) -> int:
        return self.clock.monotonic

    # -- what holds always

    @invariant()
    def the_right_leases_are_held(self) -> None:
        listed = self.service.leases()
        assert listed == {held.path for held in self.model.live(self.now)}
        ordered = sorted(listed)
        assert not [pair for place, one in enumerate(ordered) for pair in ordered[place + 1 :] if overlap(one, pair)]

    def observe(self, *possible: Change) -> None:
        """See what came into the repository; whatever it is, it passes ``check``."""
        before = self.world.revision
        self.model.observe(possible)
        if self.world.revision > before:
            problems = self.world.problems()
            if self.reflog_may_be_ahead:
                problems = [one for one in problems if not one.startswith("/: reflog: .cvmfsreflog has the hash")]
            assert not problems, problems

    def one(self, place: int) -> Held | None:
        return self.model.held[-1 - place % len(self.model.held)] if self.model.held else None

    # -- leases: taken, renewed and dropped, by their holders and by an administrator, and time passes

    @rule(path=paths)
    def acquire(self, path: str) -> None:
        self.acquired(path)

    def acquired(self, path: str) -> Held | None:
        busy = self.model.in_the_way(path, self.now, self.standing)
        members = self.service.acquire(path).members
        if busy:
            assert members["status"] == "path_busy", members
        elif self.disabled:
            assert members["reason"] == "repo_disabled"
        else:
            assert members["status"] == "ok", members
            row = self.service.table.valid(digest_of(members["session_token"]))
            assert row is not None
            assert row.epoch > self.epoch
            self.epoch = row.epoch
            self.model.held.append(Held(members["session_token"], path, self.now + LEASE_NS))
            return self.model.held[-1]
        return None

    @rule(place=places, seconds=st.none() | st.integers(1, 150))
    def renew(self, place: int, seconds: int | None) -> None:
        held = self.one(place)
        if held is None:
            return
        members = self.service.renew(held.token, seconds).members
        if is_live(held, self.now):
            assert members["status"] == "ok", members
            held.deadline = self.now + min(LEASE_NS, LEASE_NS if seconds is None else seconds * 10**9)
        else:
            assert members["reason"] == INVALID

    @rule(place=places)
    def drop(self, place: int) -> None:
        held = self.one(place)
        if held is not None:
            self.dropped(held)

    def dropped(self, held: Held) -> None:
        members = self.service.drop(held.token).members
        if is_live(held, self.now):
            assert members["status"] == "ok", members
        if members["status"] == "ok":
            held.dropped = True

    @rule(path=paths, enabled=st.sampled_from([None, None, True, False]))
    def administer(self, path: str, enabled: bool | None) -> None:
        if enabled is not None:
            assert self.service.enable(enabled).members["status"] == "ok"
            self.disabled = not enabled
            return
        assert self.service.drop_below(path).members["status"] == "ok"
        for held in self.model.held:
            held.dropped = held.dropped or (held.revision is None and is_below(held.path, path))

    @rule(seconds=st.sampled_from([1, 30, 60, 99, 101]), step=st.sampled_from([0, 0, 0, -3600, -10, 10, 3600]))
    def time_passes(self, seconds: int, step: int) -> None:
        """And perhaps the wall clock is set."""
        self.clock.advance(seconds)
        self.clock.wall += step * 1000
        self.stepped = self.stepped or step != 0

    # -- publishers upload changes under their leases, and take up those whose lease is gone

    @rule(place=places, stale=st.sampled_from([0, 0, 0, 1, 3]), name=numbers, number=numbers)
    def upload(self, place: int, stale: int, name: int, number: int) -> None:
        live = self.model.live(self.now)
        if live:
            self.uploaded(live[place % len(live)], stale, name, number)

    def uploaded(self, held: Held, stale: int, name: int, number: int) -> None:
        if any(one.held is held for one in self.standing):
            return
        base = sorted(self.world.roots)[-1 - min(stale, len(self.world.roots) - 1)]
        change = self.world.prepare(base, wanted(self.world.contents[base], held.path, name, number))
        if change is not None and change.touched:
            held.change = change
            self.swept[id(change)] = self.world.sweeps
            self.tag += 1
            held.tag = f"t{self.tag}" if number == 0 else ""

    @rule(place=places)
    def take_up(self, place: int) -> None:
        """A change whose lease was lost or spent, under a new one."""
        if not self.orphans:
            return
        path, change = self.orphans.pop(place % len(self.orphans))
        held = self.acquired(path)
        if held is not None:
            held.change = self.rejudged(change)

    def rejudged(self, change: Change) -> Change | None:
        again = self.world.judge_again(change)
        if again is not None:
            self.swept[id(again)] = self.swept[id(change)]
        return again

    # -- changes are committed, alone, in groups and once more, and may stand at a point on the way

    @rule(place=places, point=st.none() | st.sampled_from(HOLDS))
    def commit(self, place: int, point: Point | None) -> None:
        ready = [held for held in self.model.held if held.change and held.revision is None]
        if ready:
            self.let_stand(point)
            self.sent([ready[place % len(ready)]])

    @rule(chosen=chosen, name=numbers, number=numbers, stale=st.sampled_from([0, 0, 0, 1, 2]))
    def publish_together(self, chosen: list[str], name: int, number: int, stale: int) -> None:
        """Several publishers at once, each with its lease, all derived from the same revision."""
        self.let_stand(Point.TAKEN)  # the first one, so that the others gather
        held = self.ready(chosen, name, number, stale)
        self.sent(held[:1])
        self.sent(held[1:])
        if self.standing:
            self.go_on()

    def let_stand(self, point: Point | None) -> None:
        if not self.standing:
            self.service.gate.at = point

    def ready(self, chosen: list[str], name: int, number: int, stale: int = 0) -> list[Held]:
        """Publishers that have a lease each and a change stored."""
        held = [one for one in map(self.acquired, chosen) if one is not None]
        for place, one in enumerate(held):
            self.uploaded(one, stale, name + place, number + place + 1)
        return held

    def sent(self, ready: list[Held]) -> None:
        gate, was_standing = self.service.gate, bool(self.standing)
        armed = gate.at is not None
        if not was_standing:
            gate.reached = threading.Event()  # not cleared: the last call's answers may set theirs only now
        under_way = [one.held for one in self.standing]
        calls = [self.call(held) for held in ready if held.change and held not in under_way]
        self.standing += calls
        if not calls:
            return
        if was_standing:
            self.service.settle()
        elif not armed:
            self.conclude()
        else:
            wait_for_any(gate.reached, [one.answer for one in calls])
            if gate.at is None:
                self.fence_is_passed()
            else:
                self.conclude()

    def call(self, held: Held) -> Standing:
        change = held.change
        assert change is not None
        sent_at = self.world.head().revision
        answer = self.service.commit(held.token, change.base.text, change.new.hash.text, held.tag, change.generation)
        return Standing(held, change, answer, sent_at)

    def fence_is_passed(self) -> None:
        """The standing changes that hold their places until their switch is over."""
        for one in self.standing:
            row = self.service.table.finished(digest_of(one.held.token))
            if row is not None:
                one.fenced, one.held.revision = True, row.revision
                one.held.remembered = self.now + LEASE_NS
            else:
                epochs = self.service.table._switching
                lease = [row for row in self.rows() if row[0] == digest_of(one.held.token)]
                one.fenced = bool(lease) and lease[0][1] in epochs

    def rows(self) -> list[tuple[bytes, int]]:
        with self.service.table._reading:
            return self.service.table._reader.execute("SELECT digest, epoch FROM lease").fetchall()

    @rule()
    def go_on(self) -> None:
        if not self.standing:
            return
        self.service.gate.opened.set()
        self.conclude()
        self.service.gate.opened.clear()

    def conclude(self) -> None:
        """Hear all answers, and judge them against what really stands now."""
        answers = [one.answer.result(30) for one in self.standing]
        assert not UNFORESEEN.seen, UNFORESEEN.seen
        self.observe(*(one.change for one in self.standing))
        seen = look(self.world.store)
        for one, answer in zip(self.standing, answers, strict=True):
            swept = self.swept[id(one.change)] != self.world.sweeps
            try:
                moved = seen.generation is not None and not seen.generation.upholds(one.change.generation)
                self.model.judge(one, answer, now=self.now, moved=moved, swept=swept)
            except AssertionError as error:
                error.add_note(f"{one}, {answer}, collection at {seen.token}")
                error.add_note(f"points: {[f'{thread} {point.name}' for thread, point in self.service.gate.passed]}")
                raise
            if one.held.revision is not None:
                one.held.remembered = one.held.remembered or self.now + LEASE_NS
                self.orphans.append((one.held.path, one.change))
            elif answer.members.get("reason") == "generation_moved":
                one.held.change = self.rejudged(one.change)
        self.standing = []
        self.reflog_may_be_ahead = False

    @rule(place=places)
    def repeat(self, place: int) -> None:
        """A commit that was acknowledged is sent again, under the same token."""
        spent = [held for held in self.model.held if held.revision is not None and held.change is not None]
        if not spent or any(one.held in spent for one in self.standing):
            return
        held = spent[place % len(spent)]
        members = self.call(held).answer.result(30).members
        if held.remembered > self.now:
            assert members == {"status": "ok", "final_revision": held.revision}
        else:
            assert members["reason"] == INVALID

    # -- others write into the same store: a publisher without a gateway, and collections

    @rule(number=numbers, step=st.none() | st.sampled_from(AHEAD))
    def a_foreign_writer_publishes(self, number: int, step: SwitchStep | None) -> None:
        """And perhaps dies on the way."""

        def die(at: SwitchStep) -> None:
            if at is step:
                raise Killed

        try:
            self.foreign(number, on_step=die)
        except Killed:
            # A commit that stands behind its own reflog may still switch: then the dead one's reflog is ahead of it,
            # until the next commit.
            self.reflog_may_be_ahead = bool(self.standing)
            self.observe()

    def foreign(self, number: int, **options: object) -> None:
        self.observe(*(one.change for one in self.standing))
        newest = self.world.contents[self.world.revision]
        change = self.world.prepare(self.world.revision, {**newest, "/foreign/f": number})
        if change is not None and change.touched:
            self.world.foreign(change, **options)
            self.observe(change)

    @rule(steps=st.sampled_from([1, 1, 2, 5]))
    def collect(self, steps: int) -> None:
        """The next steps of a collection."""
        self.observe(*(one.change for one in self.standing))
        one = self.collector
        for _ in range(steps):
            (one.begin, one.mark, one.condemn, one.sweep, one.end)[self.collecting]()
            self.world.sweeps += self.collecting == 3
            self.collecting = (self.collecting + 1) % 5

    # -- the service ends and begins again: stopped, killed, on a machine that was started again, or elsewhere

    @rule(how=st.sampled_from(["kill", "restart", "reboot", "elsewhere"]), seconds=st.sampled_from([0, 0, -3600, 3600]))
    def end(self, how: str, seconds: int) -> None:
        if how == "restart" and not self.standing:
            self.service.stop()
            self.service = self.begun()
            self.take_over_deadlines()
        elif how == "reboot":
            self.reboot(seconds)
        elif how == "elsewhere":
            self.start_elsewhere()
        else:
            self.kill()

    def kill(self) -> None:
        """Kill it with -9; calls that waited get no answer."""
        self.service.die([one.answer for one in self.standing])
        self.service = self.begun()
        self.forget_answers()
        self.take_over_deadlines()

    def forget_answers(self) -> None:
        self.observe(*(one.change for one in self.standing))
        for one in self.standing:
            row = self.service.table.finished(digest_of(one.held.token))
            if row is not None:
                one.held.revision = row.revision
                assert row.revision in self.world.contents
        self.standing = []
        self.reflog_may_be_ahead = False

    def reboot(self, seconds: int) -> None:
        """Start the machine again, its wall clock perhaps set meanwhile."""
        self.service.table.notice_clock().result()
        self.service.die([one.answer for one in self.standing])
        was, self.clock.monotonic = self.clock.monotonic, 10**9
        self.clock.boot += "'"
        self.clock.wall += seconds * 1000
        self.stepped = self.stepped or seconds != 0
        for held in self.model.held:
            held.deadline += self.clock.monotonic - was
            if held.revision is not None:  # 0 stands for what was not committed yet
                held.remembered += self.clock.monotonic - was
        self.service = self.begun()
        self.forget_answers()
        self.take_over_deadlines(exactly=False)

    def take_over_deadlines(self, *, exactly: bool = True) -> None:
        """After a restart a lease lasts as long as before; if the wall clock was set, perhaps less, never longer."""
        listed = {row.path: row.deadline_ns for row in self.service.table.listed()}
        for held in self.model.live(self.now):
            deadline = listed.get(held.path, 0)
            assert deadline <= held.deadline + (0 if exactly else 1_000_000)
            if not self.stepped:
                assert deadline == held.deadline if exactly else held.deadline - deadline <= 2_000_000
            held.deadline = deadline
        for held in self.model.held:
            if held.revision is not None and self.stepped:
                kept = self.service.table.finished(digest_of(held.token)) is not None
                held.remembered = held.remembered if kept else 0
        self.stepped = False

    def start_elsewhere(self) -> None:
        """From configuration and store alone: only leases are lost."""
        self.service.die([one.answer for one in self.standing])
        self.states += 1
        self.epoch, self.disabled = 0, False
        self.service = self.begun()
        self.forget_answers()
        for held in self.model.held:
            assert self.service.renew(held.token, None).members["reason"] == INVALID
            if held.change is not None:
                self.orphans.append((held.path, held.change))
        self.model.held = []
        assert self.service.leases() == set()


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def wanted(content: dict[str, int], path: str, name: int, number: int) -> dict[str, int]:
    """The change of a publisher with a lease on ``path``."""
    made = dict(content)
    if path in MADE:
        if number == 0 and path in made:
            return {one: value for one, value in made.items() if not is_below(one, path)}
        made[path] = HERE
    file = f"{path}/f{name % 3}"
    if made.get(file) == number:
        del made[file]
    else:
        made[file] = number
    return made


def wait_for_any(reached: object, answers: list[Future[Answer]]) -> None:
    for answer in answers:
        answer.add_done_callback(lambda _: all(one.done() for one in answers) and reached.set())
    assert reached.wait(30)
