"""Freezes: what changes a repository waits in the triggerer for a thaw; a run by hand freezes and thaws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.exceptions import AirflowFailException

from operators.base import NightshiftOperator, clock
from triggers.checks import unfrozen
from triggers.poll import PollTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.site.site import Site

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


class InterveneOperator(NightshiftOperator):
    """Freezes or thaws a repository, or lets a night install again what was undone, by the run's parameters.

    The ledger and the freeze name the user who started the run. Returns what was done, in words.
    """

    ui_color = "#fef9c3"

    def execute(self, context: Context) -> str:
        params, site = context["params"], self.site()
        done = _ACTIONS[params["action"]](site, params, f"{_user(context)}@airflow")
        self.log.info("%s", done)
        return done


def _freeze(site: Site, params: Mapping[str, Any], who: str) -> str:
    from include.care.freezes.freezes import BadFreeze, freeze

    now, hours, fqrn = clock().replace(microsecond=0), params.get("hours"), _required(params, "repository")
    if not params.get("reason"):
        raise BadFreeze(fqrn, "a freeze needs a reason; fill in the field Reason")
    until = now + timedelta(hours=hours) if hours else None
    done = freeze(site, fqrn, reason=params["reason"], who=who, until=until, now=now)
    return f"{fqrn} is {'' if done.changed else 'already '}{done.after}"


def _thaw(site: Site, params: Mapping[str, Any], who: str) -> str:
    from include.care.freezes.freezes import thaw

    fqrn = _required(params, "repository")
    done = thaw(site, fqrn, who=who, now=clock().replace(microsecond=0))
    return f"{fqrn} is thawed; it was {done.before}" if done.changed else f"{fqrn} is not frozen"


def _redo(site: Site, params: Mapping[str, Any], who: str) -> str:
    from include.nightlies.undo.plan import Wish
    from include.nightlies.undo.undo import redo

    projects, platforms = (tuple(params.get(name) or ()) for name in ("projects", "platforms"))
    slot, build_id = _required(params, "slot"), _required(params, "build_id")
    count = redo(site, Wish(slot, build_id, params.get("reason") or "", projects, platforms), now=clock())
    return f"{count} artifacts of build {build_id} may be installed again, by {who}; run nightly_install for its date"


_ACTIONS = {
    "freeze": _freeze,
    "thaw": _thaw,
    "redo": _redo,
}


def _required(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not value:
        raise AirflowFailException(f"the action {params['action']} needs the parameter {name}; start a run with it")
    return str(value)


def _user(context: Context) -> str:
    """Who started the run, as Airflow names them."""
    return str(getattr(context["dag_run"], "triggering_user_name", None) or "unknown")
