"""What the machine stands on: the world, the service before it, the model of both, and what holds always."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from include.gateway.protocol import overlap
from tests.fakes.gateway_service import ManualClock
from tests.faults.machine.model import Held, Model, Standing
from tests.faults.machine.service import LEASE_S, UNFORESEEN, Loop, Service
from tests.faults.machine.world import LEASES, Change, World

LEASE_NS = round(LEASE_S * 1e9)

paths = st.sampled_from(LEASES)
numbers = st.integers(0, 5)
places = st.integers(0, 30)


class Ground(RuleBasedStateMachine):
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
        self.largest_group = 0
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


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
