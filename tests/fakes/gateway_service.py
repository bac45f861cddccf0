"""A committer with knobs for failures and a clock that is set by hand, for tests of the gateway service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from include.cvmfs.commit.commit import SwitchStep
from include.gateway.service.commits.queue import CommitOrder, Fence
from include.gateway.service.config import ServiceConfig


@dataclass
class ManualClock:
    """Stands still until ``advance``."""

    boot: str = "boot-1"
    monotonic: int = 1_000_000_000_000
    wall: int = 1_795_000_000_000

    def monotonic_ns(self) -> int:
        return self.monotonic

    def wall_ms(self) -> int:
        return self.wall

    def advance(self, seconds: float) -> None:
        self.monotonic += round(seconds * 1e9)
        self.wall += round(seconds * 1e3)


@dataclass
class FakeCommitter:
    """Counts revisions. ``fail_next`` is raised once; ``gate`` holds a commit up before its switch."""

    revision: int = 0
    fail_next: Exception | None = None
    orders: list[CommitOrder] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event | None = None

    def commit(
        self, orders: Sequence[CommitOrder], *, fence: Fence, on_step: Callable[[SwitchStep], None]
    ) -> list[int | Exception]:
        self.orders.extend(orders)
        self.groups.append(len(orders))
        self.started.set()
        if self.gate is not None and not self.gate.wait(30):
            raise TimeoutError("the test never opened the gate")
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            return [error] * len(orders)
        outcomes: dict[int, int | Exception] = {}
        while len(outcomes) < len(orders):
            members = [number for number in range(len(orders)) if number not in outcomes]
            refused = fence(members)
            outcomes |= refused
            if not refused:
                on_step(SwitchStep.SWITCHED)
                self.revision += 1
                outcomes |= dict.fromkeys(members, self.revision)
        return [outcomes[number] for number in range(len(orders))]

    def reconfigure(self, config: ServiceConfig) -> None:
        """It opens nothing."""

    def close(self) -> None:
        """It holds nothing."""
