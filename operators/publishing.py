"""The tasks of every publishing DAG, after its plan and before its gate: reserve, prepare, inherit, publish, verify."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context, CronTriggerTimetable, TaskGroup, TriggerRule, task_group
from airflow.sdk.exceptions import AirflowSkipException

from hooks.priority import NightFirst
from hooks.task import PLAN, RetryByKind
from include.cvmfs.errors import CollectionRunning
from include.dag_runs import OWNER
from include.gateway.errors import PathBusy
from include.nightlies.errors import BatchFailed
from include.nightlies.rules.passes import FIRST_DAY
from include.nightlies.steps.values import Batch
from operators.approve import AskApprovalOperator, approve_each
from operators.base import NightshiftOperator, alert_failed_run, attempt_of, batches_of, note_failure
from operators.lease_task import Done, LeaseTaskOperator, Waiting, WritingOperator
from operators.links import RepositoryLink
from operators.night import CheckCompletenessOperator, PlanPublicationOperator
from operators.prepare import PrepareArtifactsOperator

if TYPE_CHECKING:
    from include.ledger.engine import Bind
    from include.nightlies.steps.publish import PublishOutcome
    from include.nightlies.steps.values import Attempt
    from include.site.site import Site


ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
"""The states that a task does not leave by itself."""


class BatchTaskOperator(LeaseTaskOperator):
    """A task that publishes a batch. One that fails is recorded with its reason and stops no other.

    Args:
        batch: One batch of a plan, as its task returned it.
        **kwargs: Those of `LeaseTaskOperator`.

    Raises:
        BatchFailed: Several artifacts failed, or one beside others that were published; a single one raises its own
            error.
    """

    template_fields = ("batch",)
    operator_extra_links = (RepositoryLink(),)

    def __init__(self, *, batch: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self._failures: dict[str, Exception] = {}

    def settled(self, ledger: Bind, attempt: Attempt, batch: Batch, outcome: PublishOutcome) -> Done | Waiting:
        """Return the result of an attempt with this outcome.

        Args:
            ledger: Where artifacts that are given up are recorded.
            attempt: The try that runs now.
            batch: The batch of the task.
            outcome: What was published, failed or is busy in this attempt.

        Returns:
            The wait for what is busy; else the task's result.

        Raises:
            BatchFailed: Several artifacts failed, and nothing is busy any more; a single one raises its own error.
        """
        from include.nightlies.steps.publish import give_up

        # an artifact that failed in an earlier attempt of this try keeps the error itself
        self._failures = outcome.failures | self._failures
        if outcome.busy:
            return Waiting(outcome.busy, partial(give_up, ledger, attempt, batch, outcome.busy))
        failures = self._failures
        if failures:
            several = len(failures) > 1 or outcome.done
            raise BatchFailed(failures) if several else next(iter(failures.values()))
        return Done(outcome.to_json())


class PublishArtifactsOperator(BatchTaskOperator):
    """Publishes what `PrepareArtifactsOperator` prepared.

    Waits for busy paths in the triggerer, publishing the others first.

    A try that finds its tree at the destination, because an earlier one had published it before it died, reports so and
    makes no new revision. No token leaves the task: what is deferred, returned or logged names paths and digests only.
    """

    ui_color = "#dcfce7"

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.nightlies.steps.publish import publish_batch

        (batch,) = batches_of(self.batch)
        attempt = attempt_of(context, outlast=self.outlasts(site), on_lease=self.on_lease)
        needed = {name for item in batch.items for name in item.needs}
        outcome = publish_batch(site, attempt, batch, ended=ended_tasks(context, needed))
        return self.settled(site.ledger, attempt, batch, outcome)


def ended_tasks(context: Context, artifacts: Collection[str]) -> dict[str, str]:
    """Return those of these artifacts that no task will publish any more.

    Args:
        context: The context of a task that publishes one batch of the run's plan.
        artifacts: Names of artifacts, each `project/platform`.

    Returns:
        By artifact, the task of its batch and the state in which it ended.
    """
    if not artifacts:
        return {}
    ti: Any = context["ti"]
    plan: list[dict[str, Any]] = ti.xcom_pull(task_ids=PLAN, key="return_value") or []
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id]).get(ti.run_id, {})
    failed: dict[str, str] = {}
    for index, batch in enumerate(plan):
        state = states.get(f"{ti.task_id}_{index}")
        if state in ENDED:
            of_batch = {item.name for item in batches_of(batch)[0].items} & {*artifacts}
            failed |= dict.fromkeys(of_batch, f"task {ti.task_id}[{index}] is {state}")
    return failed


class PrepareInheritedOperator(NightshiftOperator):
    """Stores catalogs for the new places of a partial build's inheritance, before a person is asked.

    Skipped for builds that list all they have. One that fails is recorded with its reason and stops no other.

    Args:
        batch: What the plan left under the key `inherited`; empty: the build lists all it has.
        **kwargs: Those of every operator.
    """

    template_fields = ("batch",)
    ui_color = "#cffafe"

    def __init__(self, *, batch: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.inherit import prepare_inherited

        if not self.batch:
            raise AirflowSkipException("the build takes nothing from another one")
        (batch,) = batches_of(self.batch)
        site = self.site()
        this_try = attempt_of(context, outlast=self.outlasts(site))
        outcome = self.outlasting(site, lambda: prepare_inherited(site, this_try, batch))
        if outcome.failures:
            raise BatchFailed(outcome.failures)
        return outcome.to_json()


class InheritArtifactsOperator(BatchTaskOperator):
    """Each tree that a partial build takes from another one, by its catalogs alone or as a link; no data is sent.

    Skipped for builds that list all they have. Waits for busy paths in the triggerer. Returns state and reason of each.

    Args:
        prepared: Whether `PrepareInheritedOperator` stored the catalogs before.
        **kwargs: Those of `BatchTaskOperator`; its `batch` is what the plan left under the key `inherited`.
    """

    ui_color = "#cffafe"

    def __init__(self, *, prepared: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prepared = prepared

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.nightlies.steps.inherit import inherit_batch
        from include.nightlies.steps.publish import PublishOutcome

        if not self.batch:
            raise AirflowSkipException("the build takes nothing from another one")
        (batch,) = batches_of(self.batch)
        attempt = attempt_of(context, outlast=self.outlasts(site), on_lease=self.on_lease)
        try:
            outcome = inherit_batch(site, attempt, batch, prepared=self.prepared)
        except (PathBusy, CollectionRunning) as busy:  # the places cannot be reserved yet
            outcome = PublishOutcome(busy={item.name: busy for item in batch.items})
        for row in () if outcome.busy else outcome.done:
            self.log.info("inherited %s/%s: %s: %s", row.project, row.platform, row.state.value, row.reason)
        settled = self.settled(site.ledger, attempt, batch, outcome)
        if isinstance(settled, Waiting):
            return settled
        return Done([{"kind": "inherited", **row} for row in settled.result])


class ReserveDestinationsOperator(LeaseTaskOperator):
    """Every destination of a run becomes an empty nested catalog, unless it is there; then no lease is taken at all.

    Args:
        batches: All batches of a plan, as its task returned them. An obstacle at a destination fails only its artifact.
        **kwargs: Those of `LeaseTaskOperator`.
    """

    template_fields = ("batches",)
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#fef9c3"

    def __init__(self, *, batches: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batches = batches

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.nightlies.steps.publish import reserve_run

        made = reserve_run(site, attempt_of(context), batches_of(self.batches))
        return Done(
            {
                "revision": made.revision,
                "created": len(made.created),
                "refused": sorted(made.refused),
                "lease_held_s": round(made.lease_held_s, 3),
            }
        )


class VerifyArtifactsOperator(WritingOperator):
    """First takes away the empty destinations of artifacts that failed, then walks and samples what is published.

    Taking away waits in the triggerer while the repository is frozen; reading does not.

    Args:
        batches: All batches of the run's plan, for the destinations to tidy; what to verify comes from the ledger.
        **kwargs: `deferrable`, and those of every operator.
    """

    template_fields = ("batches",)
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#f3e8ff"

    def __init__(self, *, batches: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batches = batches

    def execute(self, context: Context) -> dict[str, int]:
        from include.nightlies.steps.verify import tidy_run, verify_run

        site = self.site()
        attempt, batches = attempt_of(context, outlast=self.outlasts(site)), batches_of(self.batches)

        def tidy() -> tuple[str, ...]:
            return tidy_run(site, attempt, batches)

        removed = self.outlasting(site, lambda: self.unless_frozen(site, tidy))
        read = self.outlasting(site, lambda: verify_run(site, attempt))
        return {"verified": len(read), "files": sum(tree.files for tree in read), "tidied": len(removed)}


_GROUP = "Prepare and publish"
_PREPARE: dict[str, Any] = {
    "pool": "prepare",
    "task_display_name": "Prepare artifacts",
    "map_index_template": "{{ task.batch['name'] }}",
    "doc_md": "Reads the source and stores what is new of it, without any lease.",
}
_PUBLISH: dict[str, Any] = {
    "pool": "publish",
    "task_display_name": "Publish artifacts",
    "map_index_template": "{{ task.batch['name'] }}",
    "doc_md": "Takes a lease on the destination, swaps its catalog, commits, gives the lease back.",
}


def publishing_tasks(
    batches: Any,
    *,
    group_id: str,
    prepare_timeout: timedelta,
    inherited: Any = None,
    approval: bool = False,
    night: Any = None,
) -> VerifyArtifactsOperator:
    """Chain the tasks for a plan's batches, mapped over them.

    Args:
        batches: The output of the task that plans.
        group_id: The id of the group of tasks that prepares and publishes one batch.
        prepare_timeout: How long preparing a batch may take.
        inherited: What the plan leaves of what a partial build takes from another one; None: there is no such task.
        approval: Whether a repository of the DAG asks for approval.
        night: What `BuildSensor` returned, for that question.

    Returns:
        The last task, for the gate to follow.
    """
    verify = VerifyArtifactsOperator(
        task_id="verify",
        task_display_name="Verify by reading back",
        batches=batches,
        trigger_rule=TriggerRule.ALL_DONE,
        execution_timeout=timedelta(hours=2),
        doc_md="Takes away what failed artifacts left reserved, then reads back what was published, as a reader does.",
    )
    if approval:
        reserve, published = _with_approval(batches, group_id, prepare_timeout, inherited, night)
    else:
        reserve = _reserve(batches)
        published = reserve >> _each(group_id, prepare_timeout).expand(batch=batches)
    published >> verify
    if inherited is not None:
        take = InheritArtifactsOperator(
            task_id="inherited",
            task_display_name="Take from the parent build",
            batch=inherited,
            prepared=approval,
            pool="publish",
            execution_timeout=prepare_timeout,
            doc_md="Takes what a partial build does not list from the build that it names, by catalogs or links alone.",
        )
        reserve >> take >> verify
    return verify


def publication_tasks(*, approval: bool) -> CheckCompletenessOperator:
    """Plan, publish and check one tree, in the DAG that is open.

    Args:
        approval: Whether a repository asks a person first.

    Returns:
        The last task, which fails unless the tree is published, and is skipped in a dry run.
    """
    plan = PlanPublicationOperator(
        task_id="plan",
        task_display_name="Plan the publication",
        doc_md="Checks repository, path and source, and records the plan.",
    )
    done = publishing_tasks(plan.output, group_id="tree", prepare_timeout=timedelta(hours=10), approval=approval)
    gate = CheckCompletenessOperator(
        task_id="gate",
        task_display_name="Check completeness",
        of_night=False,
        trigger_rule=TriggerRule.ALL_DONE,
        doc_md="Reads the ledger; a tree that is not published fails the run.",
    )
    done >> gate
    return gate


def _reserve(batches: Any) -> ReserveDestinationsOperator:
    return ReserveDestinationsOperator(
        task_id="reserve",
        task_display_name="Reserve destinations",
        batches=batches,
        pool="publish",
        doc_md="One lease, one commit: an empty nested catalog at every destination, and the directories above them.",
    )


def _each(group_id: str, prepare_timeout: timedelta) -> Any:
    """A group that is mapped, and not two mapped tasks: one batch that fails keeps no other from being published, and
    none waits for another."""

    @task_group(group_id=group_id, group_display_name=_GROUP)
    def group(batch: dict[str, Any]) -> None:
        """Prepare and publish one batch: a single artifact on most nights."""
        prepare = PrepareArtifactsOperator(
            task_id="prepare", batch=batch, execution_timeout=prepare_timeout, **_PREPARE
        )
        publish = PublishArtifactsOperator(task_id="publish", batch=batch, **_PUBLISH)
        prepare >> publish

    return group


def _with_approval(
    batches: Any, group_id: str, prepare_timeout: timedelta, inherited: Any, night: Any
) -> tuple[ReserveDestinationsOperator, Any]:
    """All is prepared, then a person is asked, once, and only then anything of it is in the repository.

    What to publish comes from the ledger, so that a batch that fails keeps no other from being published here either.
    """
    tooltip = "Prepare all, ask once, publish all that was approved."
    with TaskGroup(group_id, prefix_group_id=False, group_display_name=_GROUP, tooltip=tooltip):
        prepare = PrepareArtifactsOperator.partial(
            task_id=f"{group_id}.prepare", execution_timeout=prepare_timeout, retry_policy=RetryByKind(), **_PREPARE
        ).expand(batch=batches)
        ask = AskApprovalOperator(
            task_id="ask",
            task_display_name="Ask for approval",
            batches=batches,
            night=night,
            trigger_rule=TriggerRule.ALL_DONE,
            doc_md="Records what there is to approve; cleared with what follows it, it asks again.",
        )
        approve = approve_each(ask.output)
        reserve = _reserve(batches)
        publish = PublishArtifactsOperator.partial(
            task_id=f"{group_id}.publish", retry_policy=RetryByKind(), **_PUBLISH
        ).expand(batch=batches)
        prepare >> ask
        approve >> reserve >> publish
    if inherited is not None:
        before = PrepareInheritedOperator(
            task_id="prepare_inherited",
            task_display_name="Prepare what is inherited",
            batch=inherited,
            pool="prepare",
            execution_timeout=prepare_timeout,
            doc_md="Stores catalogs of what a partial build takes from another one, for its places; without a lease.",
        )
        before >> ask
    return reserve, publish


def dag_defaults(
    schedule: Any = None, *, start: datetime = FIRST_DAY, retries: int = 2, priority: int = 10, **tasks: Any
) -> dict[str, Any]:
    """Return the arguments of every DAG: no run for the past, an alert for each that fails, and those of its tasks.

    Args:
        schedule: When runs begin by themselves, as Airflow takes it, or a text for cron in UTC. None: never, and then
            the DAG is not paused when Airflow first reads it.
        start: The first day.
        retries: Those of a task, after growing pauses.
        priority: The weight of a task; a night's go first.
        **tasks: More arguments of tasks, or others in place of the usual ones.

    Returns:
        Arguments of `DAG`.
    """
    return {
        "schedule": CronTriggerTimetable(schedule, timezone="UTC") if isinstance(schedule, str) else schedule,
        "is_paused_upon_creation": False if schedule is None else None,
        "start_date": start,
        "catchup": False,
        "on_failure_callback": alert_failed_run,
        "default_args": {
            "owner": OWNER,
            "retries": retries,
            "retry_delay": timedelta(seconds=10),
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": timedelta(minutes=5),
            "pool": "control",
            "priority_weight": priority,
            # by its name: of an instance Airflow keeps nothing that a mapped task's scheduler could read
            "weight_rule": f"{NightFirst.__module__}.{NightFirst.__qualname__}",
            "execution_timeout": timedelta(minutes=30),
            "on_failure_callback": note_failure,
            **tasks,
        },
    }
