"""Others write into the same store: a publisher without a gateway, and collections."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from include.cvmfs.commit.commit import SwitchStep
from tests.faults.machine.commits import Commits
from tests.faults.machine.ground import numbers
from tests.faults.machine.service import Killed

AHEAD = [SwitchStep.HISTORY_STORED, SwitchStep.REFLOG_WRITTEN, SwitchStep.BEFORE_SWITCH]


class Writers(Commits):
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
