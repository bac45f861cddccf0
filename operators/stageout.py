"""Stage-out as tasks: the passes that run every minute, the census, the figures of a day, and old runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context, Param
from airflow.sdk.exceptions import AirflowSkipException

from hooks.task import RetryByKind
from include.settings.model import SiteSettings
from include.settings.scheduling import STAGEOUT
from include.settings.stageout import PASS_S
from include.stageout.errors import STAGEOUT_RUN_REFUSED
from operators.base import NightshiftOperator, clock, holder_name, log_folder
from operators.lease_task import Killed
from operators.prepare import yielding
from operators.publishing import dag_defaults

if TYPE_CHECKING:
    from pathlib import Path

    from include.airflow_api import AirflowApi

MOST = 2000
"""Runs of one DAG that are deleted at a time: more than a day has."""
FAILED_STAY = 7
"""Factor by which failed runs stay longer."""


class DeleteOldRunsOperator(NightshiftOperator):
    """Deletes scheduled runs that have ended, by Airflow's REST API, and their logs where they are on this machine.

    The user of the connection `stageout.runs_connection` needs the right to delete runs; skipped without it. Returns
    how many went, by DAG.

    Args:
        dag_ids: The DAGs.
        **kwargs: Those of every operator.
    """

    ui_color = "#fee2e2"

    def __init__(self, *, dag_ids: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dag_ids = dag_ids

    def execute(self, context: Context) -> dict[str, int]:
        from include.airflow_api import site_api

        require_no_backfill(context)
        site = self.site()
        settings = site.settings.stageout
        if settings.runs_connection is None:
            raise AirflowSkipException("no `stageout.runs_connection` in the configuration: old runs stay")
        api = site_api(site.settings, site.secrets, settings.runs_connection)
        keep, logs = timedelta(hours=settings.keep_run_hours), log_folder()
        gone = {}
        for dag_id in self.dag_ids:
            gone[dag_id] = self._delete(api, dag_id, "success", keep, logs)
            gone[dag_id] += self._delete(api, dag_id, "failed", FAILED_STAY * keep, logs)
            self.log.info("%s: %d runs deleted", dag_id, gone[dag_id])
        return gone

    def _delete(self, api: AirflowApi, dag_id: str, state: str, keep: timedelta, logs: Path) -> int:
        gone = 0
        while gone < MOST:
            runs = api.old_runs(dag_id, state=state, before=clock() - keep)
            for run_id in runs:
                api.delete_run(dag_id, run_id)
                folder = logs / f"dag_id={dag_id}" / f"run_id={run_id}"
                # an id is no path: one with slashes would lead elsewhere
                if folder.parent == logs / f"dag_id={dag_id}":
                    shutil.rmtree(folder, ignore_errors=True)
            gone += len(runs)
            if not runs:
                break
        return gone


PRIORITY = 1
"""Below that of every slot."""
MOST_LINKS = 50
"""Links of a day's figures; the others are added up."""
NICENESS = 19
"""After all that works for a night, preparing included: what a pass does not reach, the next one does."""
_MOST_NAME = 128
_GRACE = timedelta(minutes=5)
"""Time that a batch may take beyond the end of its pass."""


class StageoutPassOperator(NightshiftOperator):
    """Runs batches of components of stage-out in turns, until nothing is due or the time of the pass is over.

    What waits is a state in the ledger, never a task. Several such tasks work side by side: each claims what it takes.
    On its machine it steps back for all that works for a night.
    A kill loses and doubles nothing: what was claimed is due again when its claim ends. A component that fails stops no
    other, and fails the task in the end. Returns the counts of each component. Runs of a backfill are refused.

    Args:
        components: Names of `include.stageout.passes.COMPONENTS`, in the order of their turns.
        shard: Which of the tasks with the same components it is; the first one also sends messages.
        seconds: The time of a pass; None: 50 s.
        batch: Rows of one batch at most.
        **kwargs: Those of every operator.
    """

    template_fields = ("seconds", "batch")
    ui_color = "#dcfce7"

    def __init__(
        self,
        *,
        components: Sequence[str],
        shard: int = 0,
        seconds: float | str | None = "{{ params.seconds or '' }}",
        batch: int | str = "{{ params.batch }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.components = components
        self.shard = shard
        self.seconds = seconds
        self.batch = batch
        self._at_work = False

    def execute(self, context: Context) -> dict[str, Any]:
        from include.stageout.opening import open_stageout
        from include.stageout.passes import COMPONENTS, note_passes, run_pass

        require_no_backfill(context)
        site = self.site()
        end = time.monotonic() + float(self.seconds or PASS_S)
        self._at_work = True
        note_passes(site.ledger, self.components, now=clock())
        try:
            with yielding(NICENESS):
                account = run_pass(
                    open_stageout(site, claimer(context)),
                    {name: COMPONENTS[name] for name in self.components},
                    now=clock,
                    left=lambda: time.monotonic() < end,
                    limit=int(self.batch),
                    say=self._say,
                )
        finally:
            self._at_work = False
        for name, component in account.components.items():
            if component.fault is not None:
                self.log.error("%s ended early: %s", name, component.fault)
        self.log.info("pass ended: %s", account.ended.value)
        account.require_sound()
        return account.to_json()

    def on_kill(self) -> None:
        if self._at_work:
            raise Killed(f"{self.task_id} was killed; what it had claimed is due again when its claim ends")

    def _say(self, component: str, counts: Mapping[str, int]) -> None:
        self.log.info("%s: %s", component, ", ".join(f"{name} {count}" for name, count in counts.items()))


class TakeCensusOperator(NightshiftOperator):
    """Finds what is stuck or does not fit: ledger, FTS, destinations, temporary areas. Returns the counts by kind.

    What is safe is due again at once; everything else is named in the ledger. Unknown files in temporary areas are
    deleted only at sites with `clean_unknown: true`, and never if the run's parameter `dry_run` is set.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> dict[str, Any]:
        from include.stageout.components.census import take_census
        from include.stageout.opening import open_stageout

        require_no_backfill(context)
        stageout = open_stageout(self.site(), claimer(context))
        report = take_census(stageout, now=clock, deletes=not context["params"]["dry_run"])
        values: dict[str, Any] = {}
        for (kind, outcome), count in report.counts.items():
            values.setdefault(kind.value, {})[outcome.value] = count
            self.log.info("%s: %d %s", kind.value, count, outcome.value)
        return values


class CheckSitesOperator(NightshiftOperator):
    """Probes the storage sites, judges them, and tells what changed. Returns how many sites are in which state.

    The run's parameter `sites` names those that are probed; all are judged.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> dict[str, Any]:
        from include.federation.rounds import check_sites, summary_of

        require_no_backfill(context)
        report = check_sites(self.site(), now=clock, only=context["params"].get("sites") or (), say=self.log.info)
        for name, why in report.unprobed.items():
            self.log.warning("%s was not probed: %s", name, why)
        for fault in report.faults:
            self.log.warning("%s", fault)
        if report.outcome.own_network:
            self.log.error("%s turned bad together: our own network", ", ".join(report.outcome.own_network))
        for name, state in report.outcome.changed.items():
            self.log.warning("%s is %s now: %s", name, state.value, report.outcome.health[name].reason)
        return {"sites": summary_of(report.outcome.health), "unprobed": report.unprobed}


class SummariseTransfersOperator(NightshiftOperator):
    """Adds up the last day whose complete transfers are archived. Returns its figures: all, by link, by failure."""

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> dict[str, Any]:
        from include.stageout.archive import summarise
        from include.stageout.opening import open_stageout

        require_no_backfill(context)
        summary = summarise(open_stageout(self.site(), claimer(context)), now=clock, limit=MOST_LINKS)
        for (source, destination), sums in summary.links.items():
            self.log.info("%s to %s: %d files, %d bytes", source, destination, sums.files, sums.bytes)
        return {
            "day": summary.day.date().isoformat(),
            "files": summary.complete.files,
            "bytes": summary.complete.bytes,
            "failed": dict(summary.failed),
            "links": {
                f"{source} to {destination}": sums.files for (source, destination), sums in summary.links.items()
            },
        }


class RemindUsersOperator(NightshiftOperator):
    """Sends a message for each user whose transfers wait for a credential, once within the window of `notify:`.

    Returns what became of each message, by user.
    """

    ui_color = "#fef9c3"

    def execute(self, context: Context) -> dict[str, str]:
        from include.stageout.passes import remind

        require_no_backfill(context)
        return {owner: outcome.value for owner, outcome in remind(self.site(), now=clock())}


def claimer(context: Context) -> str:
    """Return the task's name in claims; the end of a long name tells tasks and tries apart."""
    return holder_name(context)[-_MOST_NAME:]


def require_no_backfill(context: Context) -> None:
    """Raise STAGEOUT_RUN_REFUSED for a run of a backfill."""
    from airflow.sdk.api.datamodels._generated import DagRunType

    if context["dag_run"].run_type == DagRunType.BACKFILL:
        what = "a pass takes what is due now, of any date: a backfill would do nothing more; nothing was changed"
        raise STAGEOUT_RUN_REFUSED(f"run {context['run_id']}", what)


def pass_params() -> dict[str, Param]:
    """Return the parameters of a run by hand."""
    return {
        "seconds": Param(
            None,
            title="Seconds",
            type=["null", "integer"],
            minimum=1,
            maximum=3600,
            description="For how long batches are begun; empty: 50.",
        ),
        "batch": Param(
            1000,
            title="Rows of a batch",
            type="integer",
            minimum=1,
            maximum=10_000,
            description="How many rows of the ledger one batch takes at most.",
        ),
    }


def dag_settings(
    cron: str, *, params: Mapping[str, Param] | None = None, longest: timedelta = timedelta(seconds=PASS_S) + _GRACE
) -> dict[str, Any]:
    """Return the arguments of the DAGs of stage-out: one run at a time, none for the past, after tasks of nights.

    Args:
        cron: When its runs begin, in UTC.
        params: Of the DAG; None: those of a pass.
        longest: What a task may take; by default the time of a pass, and what its last batch may take beyond it.

    Returns:
        Arguments of `dag`.
    """
    return {
        **dag_defaults(cron, retries=1, priority=PRIORITY, pool=STAGEOUT, execution_timeout=longest),
        "max_active_runs": 1,
        "dagrun_timeout": timedelta(hours=1) + 2 * longest,
        "params": pass_params() if params is None else dict(params),
        "tags": ["stage-out"],
    }


def passes(settings: SiteSettings, components: Sequence[str], **kwargs: Any) -> Any:
    """The tasks of one pass, one for each shard."""
    return StageoutPassOperator.partial(
        components=list(components), retry_policy=RetryByKind(), map_index_template="shard {{ task.shard }}", **kwargs
    ).expand(shard=list(range(settings.stageout.shards)))
