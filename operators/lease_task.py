"""Tasks that wait in the triggerer, where they hold no worker: for a busy path, and for the end of a freeze."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import Context

from include.cvmfs.errors import CollectionRunning, RepositoryFrozen
from include.errors import NightshiftError
from include.gateway.errors import PathBusy, RepositoryDisabled
from include.nightlies.errors import DependencyPending
from operators.base import NightshiftOperator
from triggers.checks import unfrozen
from triggers.poll import PollTrigger

if TYPE_CHECKING:
    from include.site.site import Site

    Busy = PathBusy | DependencyPending | CollectionRunning


T = TypeVar("T")


class WritingOperator(NightshiftOperator):
    """Base of every operator that changes a repository. Its work is what `unless_frozen` is given.

    Args:
        deferrable: Whether to wait for a thaw in the triggerer; otherwise the task fails, and its retries wait.
        **kwargs: Those of every operator.
    """

    def __init__(self, *, deferrable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    def unless_frozen(self, site: Site, work: Callable[[], T]) -> T:
        """Do what changes a repository, unless it is frozen.

        Args:
            site: The site, with clients of its services.
            work: What to do; called again from the start after a thaw.

        Returns:
            What `work` returns.

        Raises:
            TaskDeferred: The repository is frozen; the task begins again by `thawed`.
            RepositoryFrozen: It is frozen, and the task is not deferrable.
        """
        try:
            return work()
        except (RepositoryFrozen, RepositoryDisabled) as stopped:
            repository = stopped.fqrn if isinstance(stopped, RepositoryFrozen) else stopped.repository
            # one that an administrator disabled at its gateway has no document to watch: retries wait for that
            if repository is None or not self.deferrable or unfrozen(lambda: site, repository).ready:
                raise
            self.log.info("%s; waiting in the triggerer", stopped)
            self.defer(trigger=PollTrigger("thaw", {"repository": repository}), method_name="thawed")

    def thawed(self, context: Context, event: dict[str, Any]) -> Any:
        """The repository is thawed, or its state is unknown: the work is tried, which shows it."""
        self.log.info("back from waiting: %s", event["reason"])
        return self.execute(context)


MARGIN_S = 60.0
PATIENCE_S = 6.0
"""Seconds that the task itself looks again: less than what deferring and coming back costs would be a waste."""
POLL_S = 1.0
NODE_PAUSE_S = 20.0
"""Seconds between two looks at a publisher node: each is a connection."""


class Killed(BaseException):
    """Airflow ended the task; not an Exception, so that nothing on the way takes it for a failed artifact."""


class WaitedTooLong(NightshiftError):
    """A path was busy for longer than any lease should last; a further try waits again."""

    code = "waited-too-long"
    retryable = True

    def __init__(self, artifact: str, why: str) -> None:
        self.artifact = artifact
        super().__init__(f"{artifact}: {why}")


@dataclass(frozen=True, slots=True)
class Done:
    """An attempt that came to its end, and what the task returns."""

    result: Any


@dataclass(frozen=True, slots=True)
class Waiting:
    """An attempt that has to be repeated: what is busy, by artifact or step, or waits for a collection.

    `give_up` records of each, by its name, why it was given up.
    """

    busy: Mapping[str, Busy]
    give_up: Callable[[str, str], object] = lambda name, why: None  # noqa: ARG005

    def first(self) -> tuple[str, Busy]:
        """The path that is watched and named; other busy ones are tried again with it."""
        return next(iter(self.busy.items()))

    def trigger(self, since: datetime, deadline: datetime) -> PollTrigger:
        """Watches the gateway's leases, or the collection; where neither shows it, it ends after a pause."""
        _, error = self.first()
        if isinstance(error, CollectionRunning) and error.repository:
            what = {"repository": error.repository, "number": error.number, "shards": list(error.shards)}
            return PollTrigger("collection", what, deadline.isoformat(), since=since.isoformat())
        if error.listed:
            where = {"repository": error.repository or "", "path": error.path or ""}
            return PollTrigger("lease-free", where, deadline.isoformat(), since=since.isoformat())
        end = min(deadline, datetime.now(UTC) + timedelta(seconds=NODE_PAUSE_S))
        return PollTrigger("pause", {}, end.isoformat(), since=since.isoformat())

    def given_up(self, waited_s: float) -> WaitedTooLong:
        """The error with which the task fails, once it is recorded."""
        name, error = self.first()
        why = error.why_given_up(waited_s)
        for each in self.busy:
            self.give_up(each, why)
        return WaitedTooLong(name, why)


class LeaseTaskOperator(WritingOperator):
    """A task that takes, uses and gives back leases within `attempt`, and waits while their paths are busy and while a
    collection is about to delete what it needs.

    Args:
        patience_s: Seconds to try again within the task before it is deferred.
        wait_limit_s: Seconds to wait in total; by default the longest that a lease may last at this gateway, and a
            minute more.
        **kwargs: `deferrable` (whether to wait in the triggerer; otherwise the task waits itself), and those of every
            operator.

    Raises:
        WaitedTooLong: A path was busy for longer than `wait_limit_s`.

    Attributes:
        kept: What `attempt` left for the next one of this try, as JSON; also over a wait for a path in the triggerer.
    """

    def __init__(self, *, patience_s: float = PATIENCE_S, wait_limit_s: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patience_s = patience_s
        self.wait_limit_s = wait_limit_s
        self.kept: dict[str, Any] = {}
        self._stop: threading.Event | None = None
        self._drop: Callable[[], object] | None = None

    @abstractmethod
    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        """Do all that can be done now.

        Args:
            context: The context of the task.
            site: The site, with clients of its services.

        Returns:
            What the task returns, or what it has to wait for before the next attempt.

        Raises:
            PathBusy, CollectionRunning: The whole attempt has to wait, and is repeated.
            NightshiftError: What failed for good; whether a further try may help is its `retryable`.
        """

    def execute(self, context: Context) -> Any:
        return self._work(context, None)

    def resume(self, context: Context, event: dict[str, Any], kept: dict[str, Any] | None = None) -> Any:
        """The trigger saw the path free, or the deadline pass; either way the path is tried, which is what counts."""
        self.kept = kept or {}
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
            thread = threading.Thread(target=quietly, args=(drop,), daemon=True)
            thread.start()
            thread.join(10)
        raise Killed(f"{self.task_id} was killed; its lease, if it held one, is given back")

    def on_lease(self, drop: Callable[[], object]) -> None:
        """Keep how the lease at hand is given back, for `on_kill`.

        Args:
            drop: Gives the lease back; called in a thread of its own.
        """
        self._drop = drop

    def _work(self, context: Context, since: datetime | None) -> Any:
        self._stop = threading.Event()
        try:
            site = self.site()
            patience = time.monotonic() + self.patience_s
            while True:
                outcome = self.outlasting(site, lambda: self.unless_frozen(site, lambda: self._tried(context, site)))
                self._drop = None
                if isinstance(outcome, Done):
                    return outcome.result
                now = datetime.now(UTC)
                since = since or now
                waited_s = (now - since).total_seconds()
                left_s = self._limit_s(site, outcome) - waited_s
                if left_s <= 0:
                    raise outcome.given_up(waited_s)
                if time.monotonic() + POLL_S > patience and self.deferrable:
                    self._defer(outcome, since, now + timedelta(seconds=left_s))
                self._stop.wait(min(POLL_S, left_s))
        finally:
            self._stop = self._drop = None

    def _tried(self, context: Context, site: Site) -> Done | Waiting:
        try:
            return self.attempt(context, site)
        except (PathBusy, CollectionRunning) as busy:
            return Waiting({self.task_id: busy})

    def _limit_s(self, site: Site, waiting: Waiting) -> float:
        if self.wait_limit_s is not None:
            return self.wait_limit_s
        _, error = waiting.first()
        longest = max(error.time_remaining_s for error in waiting.busy.values())
        return max(lease_lifetime_s(site, error.repository), longest) + MARGIN_S

    def _defer(self, waiting: Waiting, since: datetime, deadline: datetime) -> None:
        name, error = waiting.first()
        self.log.info(
            "%s: %s; waiting in the triggerer until %s at most", name, error, deadline.isoformat("T", "seconds")
        )
        # the trigger ends by itself at the deadline, and then reports who holds the path; the time-out is for its loss
        timeout = deadline - datetime.now(UTC) + timedelta(seconds=MARGIN_S)
        kept = {"kept": self.kept} if self.kept else {}
        self.defer(trigger=waiting.trigger(since, deadline), method_name="resume", kwargs=kept, timeout=timeout)


def lease_lifetime_s(site: Site, repository: str | None) -> float:
    """The longest that a lease lasts at a repository's gateway: that of its connection, else the embedded one's."""
    settings = site.settings
    if repository is not None and repository in settings.repositories:
        from hooks.secrets import AirflowSecrets

        given = AirflowSecrets().get(settings.repository(repository).gateway).extra.get("max_lease_time_s")
        if given:
            return float(given)
    return float(settings.gateway.max_lease_time_s)


def quietly(drop: Callable[[], object]) -> None:
    """Give back what a task holds that is on its way out; a lease that cannot be given back ends by expiry."""
    with contextlib.suppress(Exception):
        drop()
