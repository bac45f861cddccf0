"""What changes a repository waits in the triggerer while it is frozen, and goes on once it is thawed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from operators.base import NightshiftOperator
from triggers.checks import unfrozen
from triggers.poll import PollTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.site.site import Site

T = TypeVar("T")


class WritingOperator(NightshiftOperator):
    """Base of every operator that changes a repository. Its work is what `unless_frozen` is given.

    :param deferrable: whether to wait for a thaw in the triggerer; otherwise the task fails, and its retries wait.
    """

    def __init__(self, *, deferrable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    def unless_frozen(self, site: Site, work: Callable[[], T]) -> T:
        """What `work` returns; a freeze that it meets defers the task, which begins again by `thawed`."""
        from include.cvmfs.errors import RepositoryFrozen
        from include.gateway.errors import RepositoryDisabled

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
