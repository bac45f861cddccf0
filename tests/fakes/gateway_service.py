"""The gateway service in a thread, a committer with knobs for failures, and a clock that is set by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from include.cvmfs.commit.commit import SwitchStep
from include.gateway.client.client import GatewayClient
from include.gateway.service.clock import Clock
from include.gateway.service.commits.points import OnPoint, pass_by
from include.gateway.service.commits.queue import CommitOrder, Fence
from include.gateway.service.config import ServiceConfig
from include.gateway.service.http.server import serve
from include.gateway.service.http.serving import ReadConfig


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
    """Counts revisions. ``fail_next`` is raised once; ``gate`` holds a commit up before its switch, ``after`` later."""

    revision: int = 0
    fail_next: Exception | None = None
    orders: list[CommitOrder] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event | None = None
    switched: threading.Event = field(default_factory=threading.Event)
    after: threading.Event | None = None

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
                self.switched.set()
                if self.after is not None and not self.after.wait(30):
                    raise TimeoutError("the test never let the commit end")
                self.revision += 1
                outcomes |= dict.fromkeys(members, self.revision)
        return [outcomes[number] for number in range(len(orders))]


@dataclass
class RunningGateway:
    """A service that runs from ``start`` to ``stop``."""

    config: ServiceConfig
    committer: FakeCommitter | None = None
    clock: Clock | None = None
    on_point: OnPoint = pass_by
    read_config: ReadConfig | None = None
    url: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _clients: list[GatewayClient] = field(default_factory=list)

    def start(self) -> RunningGateway:
        ready = threading.Event()

        def listening(url: str) -> None:
            self.url = url
            ready.set()

        def run() -> None:
            serve(
                self.config, committer=self.committer, clock=self.clock, ready=listening, stop=self._stop,
                on_point=self.on_point, read_config=self.read_config,
            )  # fmt: skip

        self._thread = threading.Thread(target=run, daemon=True, name="gateway")
        self._thread.start()
        assert ready.wait(120), "the gateway did not start"
        return self

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._stop.set()
        if self._thread is not None:
            self._thread.join(20)
            assert not self._thread.is_alive(), "the gateway did not stop"

    def client(self, key_id: str = "rootkey", secret: str | None = None, **settings: object) -> GatewayClient:
        secrets = {key.id: key.secret for key in self.config.all_keys()}
        client = GatewayClient(self.url, key_id, secret or secrets[key_id], timeout_s=20, **settings)  # type: ignore[arg-type]
        self._clients.append(client)
        return client
