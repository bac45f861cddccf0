"""Leases are taken, renewed and dropped, by their holders and by an administrator, and time passes."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from include.cvmfs.format.paths import is_below
from include.gateway.service.leases.lease_table import digest_of
from tests.faults.machine.ground import LEASE_NS, Ground, paths, places
from tests.faults.machine.model import INVALID, Held, is_live


class Leases(Ground):
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
