"""The common parts of operators and sensors: clients of the site, names of runs, reasons of failures, and retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context, RetryDecision, RetryPolicy, conf
from airflow.sdk.exceptions import AirflowSkipException

from hooks.shares import give_way
from include.dag_runs import OWNER, require_known_keys
from include.errors import NightshiftError
from include.settings.load import load

if TYPE_CHECKING:
    from include.settings.secrets import Secrets
    from include.site.site import Site

FIND_BUILD, CHECK_INDEX, PLAN = "find_build", "check_index", "plan"
"""The tasks that find, judge and plan what a run publishes, in every DAG that has them."""
REASON = "reason"
"""The key under which they leave why they failed; Airflow takes it away when the task is tried again."""

MOST = 4000
"""Characters of a reason."""


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


@contextmanager
def reason_kept(context: Context) -> Iterator[None]:
    """Leave the reason of a failure of what is done within, and let it go on."""
    try:
        yield
    except AirflowSkipException:
        raise
    except Exception as error:
        context["ti"].xcom_push(key=REASON, value=str(error)[:MOST])
        raise


def first_cause(context: Context) -> str | None:
    """Return the first task of the run that failed, and why; None if none left a reason."""
    for task in (FIND_BUILD, CHECK_INDEX, PLAN):
        reason = context["ti"].xcom_pull(task_ids=task, key=REASON)
        if reason:
            return f"task {task} failed: {reason}"
    return None


def why_no_build(context: Context) -> str:
    """Return the reason why there is no night to work on."""
    return first_cause(context) or f"task {FIND_BUILD} found no build; see its log"


def why_no_plan(context: Context) -> str:
    """Return the reason why there is nothing to work on."""
    return first_cause(context) or f"task {PLAN} planned nothing; see its log"


class RetryByKind(RetryPolicy):
    """An error with `retryable = False` fails the task at once; with `True` it is retried as the task is configured.

    Others, of which nothing is known, are tried again too. The policy logs what it decides.
    """

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002
        max_tries: int,  # noqa: ARG002
        context: Context | None = None,  # noqa: ARG002
    ) -> RetryDecision:
        """Airflow asks this in the task's process, with the error itself."""
        if not isinstance(exception, NightshiftError):
            return RetryDecision.default()
        if exception.retryable:
            return RetryDecision.retry(reason=f"{exception.code} may pass by itself")
        return RetryDecision.fail(f"{exception.code} will not pass by itself")

    def serialize(self) -> dict[str, Any]:
        return {"__type": "RetryByKind"}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> RetryByKind:  # noqa: ARG003
        return cls()
