"""The configured site in a task, for operators and sensors alike: its clients, and the run's name in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Context, conf
from airflow.sdk.exceptions import AirflowSkipException

from hooks.cause import reason_kept
from hooks.shares import give_way
from include.dag_runs import OWNER, require_known_keys
from include.settings.load import load

if TYPE_CHECKING:
    from include.settings.secrets import Secrets
    from include.site.site import Site


class OnSite:
    """The base of operators and sensors. Heavy imports are made when a task runs, never when a DAG is parsed."""

    def pre_execute(self, context: Context) -> None:
        """Airflow calls this in the process of the task, before anything of it is done."""
        super().pre_execute(context)  # type: ignore[misc]
        give_way(context["run_id"])
        if self.owner == OWNER and not self.upstream_task_ids:  # type: ignore[attr-defined]
            require_known_params(context)

    def site(self) -> Site:
        """Clients of the configured site, with Airflow's connections as secrets."""
        from hooks.secrets import AirflowSecrets

        return open_site(AirflowSecrets())


def open_site(secrets: Secrets) -> Site:
    """Clients of the configured site."""
    from include.site.site import Site

    return Site(load(), secrets)


def default_deferrable() -> bool:
    """Tell whether tasks wait in the triggerer by default: `default_deferrable` of `[operators]`."""
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def require_known_params(context: Context) -> None:
    """Refuse a run with a key in its conf that the DAG has no parameter for; Airflow would ignore it.

    Args:
        context: The context of a first task of the run.

    Raises:
        RunRefused: There is one; the tasks that run in any case are left the reason.
    """
    dag = context["dag"]
    with reason_kept(context):
        require_known_keys(dag.dag_id, context["dag_run"].conf or {}, dag.params)


def run_name(context: Context) -> str:
    """Return the name of this run in the ledger: unique among the DAGs that share it."""
    return f"{context['dag'].dag_id}/{context['run_id']}"


def require_wanted(context: Context, repository: str) -> None:
    """Skip a task whose repository is left out by the run's parameter `repositories`; empty means all of them.

    Args:
        context: The context of the task.
        repository: The repository's name in the site configuration.

    Raises:
        AirflowSkipException: The parameter names others only.
    """
    chosen = context["params"].get("repositories")
    if chosen and repository not in chosen:
        raise AirflowSkipException(f"{repository} is not among the repositories of this run")
