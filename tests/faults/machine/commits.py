"""Changes are committed, alone, in groups and once more, and may stand at a point on the way."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from hypothesis import strategies as st
from hypothesis.stateful import rule

from include.cvmfs.coordination.generation import look
from include.gateway.service.commits.queue import Point
from include.gateway.service.leases.lease_table import digest_of
from tests.faults.machine.changes import Changes
from tests.faults.machine.ground import LEASE_NS, numbers, paths, places
from tests.faults.machine.model import INVALID, Held, Standing
from tests.faults.machine.service import HOLDS, UNFORESEEN, Answer

chosen = st.lists(paths, min_size=1, max_size=6, unique=True)


class Commits(Changes):
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
        """Which of those that stand hold their places until their switch is over."""
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


def wait_for_any(reached: object, answers: list[Future[Answer]]) -> None:
    for answer in answers:
        answer.add_done_callback(lambda _: all(one.done() for one in answers) and reached.set())
    assert reached.wait(30)
