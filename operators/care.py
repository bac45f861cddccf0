"""Look after repositories: each operator is mapped over them, so that each fails alone."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from hooks.task import require_wanted
from include.cvmfs.errors import CollectionBusy
from include.errors import NightshiftError
from include.nightlies.errors import COLLECTION_RUN_REFUSED
from operators.base import NightshiftOperator, attempt_of, clock, holder_name
from operators.lease_task import Killed, WaitedTooLong, WritingOperator, quietly
from operators.links import CollectionLogLink
from triggers.checks import CHECKS, Observation
from triggers.poll import PollTrigger
from triggers.replicas import ReplicaJobTrigger

if TYPE_CHECKING:
    from include.cvmfs.collect.report import NotDue
    from include.nightlies.steps.care import Collected
    from include.site.site import Site

LINES = 20  # of a job's output, that are logged and returned
SKIPPED, COLLECTED = "skipped", "collected"
"""Keys under which a collection leaves why it was skipped and when it is due, and its figures even if it fails."""


class _CareOperator(NightshiftOperator):
    """Base of operators that look after one repository.

    Args:
        repository: Its name in the site configuration. Skipped if the run's parameter `repositories` names others only.
        **kwargs: Those of every operator.
    """

    template_fields: Sequence[str] = ("repository",)

    def __init__(self, *, repository: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repository = repository

    def require_wanted(self, context: Context) -> None:
        require_wanted(context, self.repository)


class CheckWhitelistOperator(_CareOperator):
    """Fails when the whitelist ends within the days that the repository's settings say. It signs nothing."""

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> float:
        from include.nightlies.steps.care import look_at_whitelist

        self.require_wanted(context)
        return round(look_at_whitelist(self.site(), attempt_of(context), self.repository), 2)


class PruneTagsOperator(WritingOperator, _CareOperator):
    """Takes tags away by the repository's rule, or reports which would go; skipped where there is no rule.

    Waits in the triggerer while it is frozen. The run's parameter `dry_run` overrides the rule. Returns the names.

    Args:
        only_by_rule: Whether `dry_run` *false* leaves it to the repository's rule whether tags are removed.
        **kwargs: `repository`, `deferrable`, and those of every operator.
    """

    ui_color = "#fee2e2"

    def __init__(self, *, only_by_rule: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.only_by_rule = only_by_rule

    def execute(self, context: Context) -> list[str]:
        from include.nightlies.steps.care import prune_tags

        self.require_wanted(context)
        attempt, dry_run = attempt_of(context), context["params"].get("dry_run")
        if self.only_by_rule:
            dry_run = dry_run or None
        site = self.site()
        pruned = self.unless_frozen(site, lambda: prune_tags(site, attempt, self.repository, dry_run=dry_run))
        if pruned is None:
            raise AirflowSkipException(f"{self.repository} has no rule for its tags: care.tags in the configuration")
        verb = "removed" if pruned.done else "dry run, would be removed"
        self.log.info("%s: %s", verb, ", ".join(pruned.names) or "none")
        return list(pruned.names)


class RemoveUnfinishedWritesOperator(_CareOperator):
    """Removes files of killed writers that are older than a day, where the store is a folder.

    The run's parameter `dry_run` only names them. Returns how many there were.
    """

    ui_color = "#fef9c3"

    def execute(self, context: Context) -> int:
        from include.nightlies.steps.care import remove_unfinished

        self.require_wanted(context)
        dry_run = bool(context["params"].get("dry_run"))
        return len(remove_unfinished(self.site(), attempt_of(context), self.repository, dry_run=dry_run))


class CheckRepositoryOperator(_CareOperator):
    """Checks manifest, tags, reflog and all catalogs; damage is noted in the ledger and fails the task."""

    ui_color = "#f3e8ff"

    def execute(self, context: Context) -> dict[str, Any]:
        from include.nightlies.steps.care import check_quickly

        self.require_wanted(context)
        report = check_quickly(self.site(), attempt_of(context), self.repository)
        return {"revision": report.revision, "catalogs": report.catalogs, "warnings": report.warning_count}


class CheckReplicasOperator(_CareOperator):
    """Notes in the ledger how far each replica is; fails when one lags too long, or shows what readers must not trust.

    Skipped for a repository without replicas. Returns their looks.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.care import check_replicas

        self.require_wanted(context)
        looks = check_replicas(self.site(), attempt_of(context), self.repository)
        if not looks:
            raise AirflowSkipException(f"{self.repository} has no replicas in the configuration")
        return [look.to_json() for look in looks]


class CvmfsCollectOperator(WritingOperator, _CareOperator):
    """Collects the garbage of a repository while others publish, and writes a report (docs/operations.md, collection).

    Waits in the triggerer while another collection is at work: until it ends, or until it counts as dead. Skipped if
    nothing became deletable. Fails after the report if something was not deleted, or is lost. A user who stops the task
    ends it: before its sweep the claim is given back, a sweep is finished by the next collection.

    Args:
        grace_days: Days that a revision stays after it was superseded; None: as the settings say.
        all_orphans: Whether to look for orphans in the whole store, not in a seventh of it.
        accept: The reason to go on in spite of the brakes; empty: they stop the collection.
        audited: How many preserved objects are read back; None: as the settings say.
        dry_run: Report what would be deleted; delete nothing.
        wait_limit_s: Seconds to wait for other collections in total.
        **kwargs: `repository`, `deferrable`, and those of every operator.
    """

    template_fields = ("repository", "grace_days", "all_orphans", "accept", "audited", "dry_run")
    operator_extra_links = (CollectionLogLink(),)
    ui_color = "#fee2e2"

    def __init__(
        self,
        *,
        grace_days: float | str | None = None,
        all_orphans: bool | str = False,
        accept: str | None = "",
        audited: int | str | None = None,
        dry_run: bool | str = False,
        wait_limit_s: float = 6 * 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.grace_days = grace_days
        self.all_orphans = all_orphans
        self.accept = accept
        self.audited = audited
        # Airflow's own method of this name renders templates only
        self.dry_run = dry_run  # type: ignore[method-assign,assignment]
        self.wait_limit_s = wait_limit_s
        self._at_work = False

    def execute(self, context: Context) -> dict[str, Any]:
        return self._work(context, clock())

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """The other collection ended, or counts as dead unless it made progress."""
        self.log.info("back from waiting: %s", event["reason"])
        return self._work(context, datetime.fromisoformat(event["since"]))

    def on_kill(self) -> None:
        if self._at_work:
            raise Killed(f"{self.task_id} was killed; a sweep that had begun is finished by the next collection")

    def _work(self, context: Context, since: datetime) -> dict[str, Any]:
        self.require_wanted(context)
        site = self.site()
        while True:
            self._at_work = True
            try:
                done = self.outlasting(site, lambda: self.unless_frozen(site, lambda: self._collect(context, site)))
                return self._judged(context, done)
            except CollectionBusy as busy:
                self._wait(site, busy, since)
            finally:
                self._at_work = False

    def _collect(self, context: Context, site: Site) -> Collected | NotDue:
        from include.nightlies.steps.care import collect_garbage

        names = ("grace_days", "audited", "accept", "all_orphans", "dry_run")
        given = {name: getattr(self, name) for name in names}
        return collect_garbage(site, attempt_of(context), self.repository, given)

    def _judged(self, context: Context, done: Collected | NotDue) -> dict[str, Any]:
        from include.cvmfs.collect.report import NotDue

        if isinstance(done, NotDue):
            due = f"{done.due:%Y-%m-%d %H:%M} UTC"
            context["ti"].xcom_push(key=SKIPPED, value={"reason": done.reason, "next_due": done.due.isoformat()})
            raise AirflowSkipException(f"{self.repository}: {done.reason}; next due at {due}")
        told = done.to_json()
        context["ti"].xcom_push(key=COLLECTED, value=told)
        done.require_whole()
        return told

    def _wait(self, site: Site, busy: CollectionBusy, since: datetime) -> None:
        from include.cvmfs.coordination.generation import look

        if clock() - since >= timedelta(seconds=self.wait_limit_s):
            raise busy
        generation = look(site.repository_store(self.repository)).generation
        what = {"repository": self.repository, "number": generation.number if generation else 0, "shards": []}
        end = max(busy.until, clock() + timedelta(seconds=1))
        self.log.info("%s. Waiting for its end, until %s at most", busy, end.isoformat(" ", "seconds"))
        trigger = PollTrigger("collection", what, end.isoformat(), since=since.isoformat())
        if self.deferrable:
            timeout = end - clock() + timedelta(seconds=2 * trigger.poll_s + 60)
            self.defer(trigger=trigger, method_name="resume", timeout=timeout)
        while clock() < end and not CHECKS[trigger.check].look(lambda: site, **what).ready:
            time.sleep(min(trigger.poll_s, max(0.0, (end - clock()).total_seconds())))


class BeginCollectionsOperator(NightshiftOperator):
    """Refuses what no run of collections can be: one of a backfill. Returns the repositories of this run.

    Args:
        repositories: The names of all repositories that are collected.
        **kwargs: Those of every operator.
    """

    ui_color = "#e6f1f2"

    def __init__(self, *, repositories: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repositories = repositories

    def execute(self, context: Context) -> list[str]:
        from airflow.sdk.api.datamodels._generated import DagRunType

        if context["dag_run"].run_type == DagRunType.BACKFILL:
            what = "a backfill would collect once for each date; what is deletable depends on the time of the run alone"
            raise COLLECTION_RUN_REFUSED(f"{what}. Nothing was changed. Trigger one run by hand instead.")
        chosen = context["params"].get("repositories") or self.repositories
        return [repository for repository in self.repositories if repository in chosen]


class ReportCollectionOperator(_CareOperator):
    """Puts together what became of a repository in a run of collections, in the log and as the returned mapping.

    Args:
        tasks: The ids of the tasks, by what they did: *replicas*, *tags*, *builds*, *collection*, *check*.
        **kwargs: `repository`, and those of every operator.
    """

    ui_color = "#e6f1f2"

    def __init__(self, *, tasks: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tasks = tasks

    def execute(self, context: Context) -> dict[str, Any]:
        self.require_wanted(context)
        ti = context["ti"]
        results = {name: ti.xcom_pull(task_ids=task, key="return_value") for name, task in self.tasks.items()}
        if results["collection"] is None:
            results["collection"] = ti.xcom_pull(task_ids=self.tasks["collection"], key=SKIPPED)
        for name, value in results.items():
            self.log.info("%s: %s: %s", self.repository, name, "skipped" if value is None else value)
        return {"repository": self.repository, **results}


class _ReplicaJobOperator(NightshiftOperator):
    """Base of what runs `cvmfs_server` on the machine of a replica, which has a `node:` in the configuration.

    A job that runs there already is joined. A lost connection ends nothing: the job is checked again. When a user
    stops the task, a job that it started is ended. Returns the last lines of the job's output.

    Args:
        repository: The repository's name in the site configuration.
        replica: The replica's name there.
        limit_minutes: Minutes that the job is watched; it then goes on without us, and the next try joins it.
        poll_interval: Most seconds between two checks of the job.
        deferrable: Whether to watch in the triggerer; otherwise the task does it.
        **kwargs: Those of every operator.
    """

    template_fields = ("repository", "replica")
    verb: ClassVar[str]

    def __init__(
        self,
        *,
        repository: str,
        replica: str,
        limit_minutes: float | None = None,
        poll_interval: float | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.repository = repository
        self.replica = replica
        self.limit_minutes = limit_minutes
        self.poll_interval = poll_interval
        self.deferrable = deferrable
        self._drop: Callable[[], object] | None = None

    def execute(self, context: Context) -> list[str]:
        from include.replicas.look import job_on

        site, token = self.site(), _task_token(context)
        job = job_on(site, self.repository, self.replica, self.verb)
        self._drop = partial(job.end, token)
        ours = self.outlasting(site, lambda: job.start(token))
        self.log.info("%s of %s on %s: %s", self.verb, self.repository, self.replica, "started" if ours else "joined")
        if not ours:
            self._drop = None
        end = clock() + timedelta(minutes=self._limit_minutes(site))
        trigger = ReplicaJobTrigger(
            self.repository, self.replica, self.verb, token if ours else None, end.isoformat(), self.poll_interval
        )
        if self.deferrable:
            timeout = end - clock() + timedelta(seconds=2 * trigger.poll_s + 60)
            self.defer(trigger=trigger, method_name="ended", timeout=timeout)
        return self.ended(context, trigger.event(self._watch(site, trigger, end)))

    def ended(self, context: Context, event: dict[str, Any]) -> list[str]:  # noqa: ARG002
        """Judge what the watch saw last. Raises NodeError for a job that failed, WaitedTooLong for one that runs."""
        from include.publishers.server.maintenance import JobLook
        from include.replicas.look import job_on

        self._drop = None
        if not event["found"]:
            raise WaitedTooLong(f"replica {self.replica} of {self.repository}", event["reason"])
        site, job = self.site(), JobLook.from_json(event["result"])
        for line in job.lines[-LINES:]:
            self.log.info("%s: %s", self.replica, line)
        job_on(site, self.repository, self.replica, self.verb).require_success(job)
        self._note(site)
        return list(job.lines[-LINES:])

    def on_kill(self) -> None:
        if self._drop is not None:
            # in a thread of its own: the interrupted one may be in the middle of a connection
            thread = threading.Thread(target=quietly, args=(self._drop,), daemon=True)
            thread.start()
            thread.join(20)
            raise Killed(f"{self.task_id} was killed; the job that it started on {self.replica} is ended")

    def _watch(self, site: Site, trigger: ReplicaJobTrigger, end: datetime) -> Observation:
        while True:
            try:
                answer = CHECKS[trigger.check].look(lambda: site, **trigger.arguments)
            except NightshiftError as error:
                if not error.retryable:
                    raise
                answer = Observation(False, str(error))
                self.log.warning("%s", error)
            left_s = (end - clock()).total_seconds()
            if answer.ready or left_s <= 0:
                return answer
            time.sleep(min(trigger.poll_s, left_s))

    def _limit_minutes(self, site: Site) -> float:  # noqa: ARG002
        return 720.0 if self.limit_minutes is None else self.limit_minutes

    def _note(self, site: Site) -> None:
        """Note the job in the ledger."""


class SnapshotReplicaOperator(_ReplicaJobOperator):
    """Runs `cvmfs_server snapshot` on a stratum 1, for `longest_snapshot_minutes`; the ledger has how far it is."""

    ui_color = "#dcfce7"
    verb = "snapshot"

    def _limit_minutes(self, site: Site) -> float:
        from include.settings.services import chosen

        if self.limit_minutes is not None:
            return self.limit_minutes
        (replica,) = chosen(self.repository, site.settings.repository(self.repository).replicas, [self.replica])
        return replica.longest_snapshot_minutes

    def _note(self, site: Site) -> None:
        from include.replicas.look import look_at_replicas, record

        try:
            looks = look_at_replicas(site, self.repository, clock(), [self.replica])
            record(site.ledger, looks)
        except NightshiftError as error:
            self.log.warning("the snapshot is done; how far the replica is now is not noted: %s", error)
        else:
            self.log.info("%s", looks[0])


class CollectReplicaOperator(_ReplicaJobOperator):
    """Runs `cvmfs_server gc -f` on a stratum 1, for 12 hours unless `limit_minutes` is given."""

    ui_color = "#fee2e2"
    verb = "gc"


def _task_token(context: Context) -> str:
    """Return the name of a job's owner: the task of this run, in any of its tries."""
    name = holder_name(context).rpartition(" try ")[0]
    return hashlib.sha256(name.encode()).hexdigest()[:16]
