"""Waiting for a busy path in the triggerer, where it holds no worker."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from include.errors import NightshiftError
from operators.thaw import WritingOperator
from triggers.lease import LeaseFreeTrigger
from triggers.pause import PauseTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from include.gateway.errors import PathBusy
    from include.publishers.connect import Connections

MARGIN_S = 60.0
PATIENCE_S = 6.0
"""Seconds that the task itself looks again: less than what deferring and coming back costs would be a waste."""
POLL_S = 1.0
NODE_PAUSE_S = 20.0
"""Seconds between two looks at a publisher node: each is a connection."""


class Killed(BaseException):
    """Airflow ended the task; not an Exception, so that nothing on the way takes it for a failed artifact."""


class LeaseTaskOperator(WritingOperator):
    """A task that takes, uses and gives back leases within `attempt`, and waits while their paths are busy.

    :param patience_s: seconds to look again within the task before it is deferred.
    :param wait_limit_s: seconds to wait in total; by default the longest that a lease may last at this gateway, and a
        minute more.
    :param deferrable: whether to wait in the triggerer; otherwise the task waits itself.
    """

    def __init__(
        self,
        *,
        patience_s: float = PATIENCE_S,
        wait_limit_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.patience_s = patience_s
        self.wait_limit_s = wait_limit_s
        self._stop: threading.Event | None = None
        self._drop: Callable[[], object] | None = None

    @abstractmethod
    def attempt(self, context: Context, connections: Connections) -> Mapping[str, PathBusy]:
        """Do all that can be done now; the paths that are busy, by artifact. Raises what failed for good."""

    @abstractmethod
    def give_up(self, context: Context, connections: Connections, busy: Mapping[str, PathBusy], why: str) -> None:
        """Record that these stayed busy for too long; the task is failed after it."""

    @abstractmethod
    def result(self, context: Context, connections: Connections) -> Any:
        """What the task returns once nothing is busy any more. Raises if something failed."""

    def execute(self, context: Context) -> Any:
        return self._work(context, None)

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """The trigger saw the path free, or the deadline pass; either way the path is tried, which is what counts."""
        self.log.info("back from waiting: %s", event["reason"])
        return self._work(context, datetime.fromisoformat(event["since"]))

    def on_kill(self) -> None:
        """Give back the lease at hand and stop; called by Airflow's signal handler, on top of whatever runs."""
        stop, drop = self._stop, self._drop
        if stop is None:
            return  # not at work (any more): after a time-out everything was unwound already
        stop.set()
        if drop is not None:
            # in a thread of its own: the interrupted one may be holding a lock of the connection pool
            thread = threading.Thread(target=_quietly, args=(drop,), daemon=True)
            thread.start()
            thread.join(10)
        raise Killed(f"{self.task_id} was killed; its lease, if it held one, is given back")

    def on_lease(self, drop: Callable[[], object]) -> None:
        """Told by the publisher how the lease at hand is given back."""
        self._drop = drop

    def _work(self, context: Context, since: datetime | None) -> Any:
        self._stop = threading.Event()
        try:
            connections = self.connections()
            patience = time.monotonic() + self.patience_s
            while True:
                busy = self.outlasting(
                    connections, lambda: self.unless_frozen(connections, lambda: self.attempt(context, connections))
                )
                self._drop = None
                if not busy:
                    return self.result(context, connections)
                now = datetime.now(UTC)
                since = since or now
                left_s = self._limit_s(connections, busy) - (now - since).total_seconds()
                if left_s <= 0:
                    self._too_long(context, connections, busy, (now - since).total_seconds())
                if time.monotonic() + POLL_S > patience and self.deferrable:
                    self._defer(connections, busy, since, now + timedelta(seconds=left_s))
                self._stop.wait(min(POLL_S, left_s))
        finally:
            self._stop = self._drop = None

    def _limit_s(self, connections: Connections, busy: Mapping[str, PathBusy]) -> float:
        if self.wait_limit_s is not None:
            return self.wait_limit_s
        one = next(iter(busy.values()))
        longest = max(error.time_remaining_s for error in busy.values())
        return max(lease_lifetime_s(connections, one.repository), longest) + MARGIN_S

    def _defer(
        self, connections: Connections, busy: Mapping[str, PathBusy], since: datetime, deadline: datetime
    ) -> NoReturn:
        name, error = next(iter(busy.items()))
        self.log.info(
            "%s: %s; waiting in the triggerer until %s at most", name, error, deadline.isoformat("T", "seconds")
        )
        from include.nightlies.steps.errors import DependencyPending
        from include.publishers.server.errors import NodeBusy

        trigger: BaseTrigger
        # no gateway knows of it: another task of ours, or somebody at the node
        if isinstance(error, NodeBusy | DependencyPending):
            trigger = PauseTrigger(pause_s=NODE_PAUSE_S, deadline=deadline.isoformat(), since=since.isoformat())
        else:
            trigger = self._lease_trigger(connections, error, since, deadline)
        # the trigger ends by itself at the deadline, and then says who holds the path; the time-out is for its loss
        timeout = deadline - datetime.now(UTC) + timedelta(seconds=MARGIN_S)
        self.defer(trigger=trigger, method_name="resume", timeout=timeout)

    @staticmethod
    def _lease_trigger(
        connections: Connections, error: PathBusy, since: datetime, deadline: datetime
    ) -> LeaseFreeTrigger:
        return LeaseFreeTrigger(
            connection_id=connections.site.repository(error.repository or "").gateway,
            repository=error.repository or "",
            path=error.path or "",
            deadline=deadline.isoformat(),
            since=since.isoformat(),
        )

    def _too_long(
        self, context: Context, connections: Connections, busy: Mapping[str, PathBusy], waited_s: float
    ) -> NoReturn:
        from include.nightlies.steps.errors import DependencyPending

        name, error = next(iter(busy.items()))
        holder = f"{error.holder.hostname!r} with key {error.holder.key_id}" if error.holder else "somebody"
        why = (
            f"{error.repository}{error.path or '/'} stayed busy for {waited_s:.0f} s, held by {holder}. "
            "Let that holder finish, or have an administrator of the gateway end its lease; then clear this task."
        )
        if isinstance(error, DependencyPending):
            why = f"{error}; waited for {waited_s:.0f} s. See why that is so, then clear the run from its plan on."
        self.give_up(context, connections, busy, why)
        raise WaitedTooLong(name, why)


class WaitedTooLong(NightshiftError):
    """A path was busy for longer than any lease should last; a further try waits anew."""

    code = "waited-too-long"
    retryable = True

    def __init__(self, artifact: str, why: str) -> None:
        self.artifact = artifact
        super().__init__(f"{artifact}: {why}")


def lease_lifetime_s(connections: Connections, repository: str | None) -> float:
    """The longest that a lease lasts at a repository's gateway: what its connection says, else the embedded one's."""
    site = connections.site
    if repository is not None and repository in site.repositories:
        from hooks.secrets import AirflowSecrets

        given = AirflowSecrets().get(site.repository(repository).gateway).extra.get("max_lease_time_s")
        if given:
            return float(given)
    return float(site.gateway.max_lease_time_s)


def _quietly(drop: Callable[[], object]) -> None:
    # the lease then ends by expiry, and the task is on its way out
    with contextlib.suppress(Exception):
        drop()
