"""The service ends and begins anew: stopped, killed, on a machine that was started again, or elsewhere."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from include.gateway.service.leases.lease_table import digest_of
from tests.faults.machine.model import INVALID
from tests.faults.machine.writers import Writers


class Ends(Writers):
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
        """kill -9; whoever waited for an answer gets none."""
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
        """The machine starts anew, its wall clock perhaps set meanwhile."""
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
