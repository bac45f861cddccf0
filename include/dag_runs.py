"""Reasons for which a run of a DAG never begins, or does not do what was asked for. Pure.

Airflow leaves a run of a paused DAG queued, lets one with a logical date in the future wait while it counts as active,
and ends one from before the DAG's start date as a success without a task. It takes any key in a run's conf. Pages,
commands, tasks and the scheduler's listener ask here, and say the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches

from include.errors import NightshiftError

OWNER = "nightshift"
"""The owner of all tasks of our DAGs: these rules are for their runs, and not for those of a user's own DAGs."""
CLOCKS_DIFFER = timedelta(minutes=5)
"""Limit of a logical date in the future: Airflow begins the run when it has come."""
PASS = "pass"  # noqa: S105 - no password
"""The key under which a task hands the next pass of a night on to the run that it starts."""
_OTHERS_KEYS = ("airflow/", "openlineage")
"""Beginnings of the keys that Airflow and its providers put into a run's conf."""
UNPAUSE = "nightshift dags on"


class RunRefused(NightshiftError):
    """A run with keys in its conf, `unknown`, that its DAG has no parameters for."""

    code = "run-refused"

    def __init__(self, dag_id: str, unknown: Iterable[str], params: Iterable[str]) -> None:
        self.unknown = tuple(unknown)
        names = sorted(params)
        has = f"It has: {', '.join(names)}." if names else "It has none."
        super().__init__(
            f"DAG {dag_id} has no parameter {', '.join(_with_nearest(key, names) for key in self.unknown)}. {has} "
            "Nothing was changed. Start a new run with the right name."
        )


@dataclass(frozen=True, slots=True)
class DagState:
    """A DAG as the person who asks may use it.

    Attributes:
        dag_id: Its id.
        allowed: Whether the person may start runs of it.
        paused: Whether it is paused; None: Airflow has not read it, or the person may not know.
    """

    dag_id: str
    allowed: bool = True
    paused: bool | None = False


def why_not_startable(dag: DagState) -> str | None:
    """Return why a run of a DAG that is started now would not begin; None if nothing keeps it."""
    if not dag.allowed:
        return f"Your role may not start the DAG {dag.dag_id}."
    if dag.paused is None:
        return f"Airflow has no DAG {dag.dag_id}. See *Dag Import Errors* on Airflow's home page."
    if dag.paused:
        return (
            f"The DAG {dag.dag_id} is paused, and a run of it would stay queued. Unpause it on its page in Airflow, or "
            f"run: {UNPAUSE} {dag.dag_id}"
        )
    return None


def why_no_such_date(
    dag_id: str, logical_date: datetime | None, *, now: datetime, start: datetime | None
) -> str | None:
    """Return why no task of a run with this logical date would ever begin, or only much later; None if all is well.

    Args:
        dag_id: The DAG of the run.
        logical_date: That of the run; None: it has none, and nothing is wrong with that.
        now: The time, with zone.
        start: The DAG's start date; None: not asked about, as for a run of a backfill, which may be from before it.
    """
    if logical_date is None:
        return None
    if logical_date > now + CLOCKS_DIFFER:
        return (
            f"Logical date {logical_date:%Y-%m-%d %H:%M %Z} of a run of {dag_id} is in the future: Airflow would begin "
            "no task of it before then. Start the run without a logical date."
        )
    if start is not None and logical_date < start:
        return (
            f"Logical date {logical_date:%Y-%m-%d %H:%M %Z} of a run of {dag_id} is before the DAG's start date, "
            f"{start:%Y-%m-%d %H:%M %Z}: Airflow would begin no task of it. Start the run without a logical date and "
            "give the build date as a parameter; or set `start` of the slot to an earlier date."
        )
    return None


def require_known_keys(dag_id: str, given: Iterable[str], params: Iterable[str]) -> None:
    """Raise RunRefused if a run's conf has a key that the DAG has no parameter for.

    Args:
        dag_id: The DAG of the run.
        given: The keys of the run's conf.
        params: The names of the DAG's parameters.
    """
    names = set(params)
    unknown = [key for key in given if key not in names and key != PASS and not key.startswith(_OTHERS_KEYS)]
    if unknown:
        raise RunRefused(dag_id, unknown, names)


def _with_nearest(key: str, names: list[str]) -> str:
    nearest = get_close_matches(key.lower().replace("-", "_"), names, 1)
    return f"{key!r} (did you mean {nearest[0]!r}?)" if nearest else repr(key)
