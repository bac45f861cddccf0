"""The tasks that every publishing DAG has, after its plan and before its gate: reserve, prepare and publish, verify."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, TaskGroup, TriggerRule, task_group

from hooks.priority import NightFirst
from hooks.retry import RetryByKind
from include.dag_runs import OWNER
from operators.alerts import note_failure
from operators.approve import AskApprovalOperator, approve_each
from operators.inherit import InheritArtifactsOperator, PrepareInheritedOperator
from operators.prepare import PrepareArtifactsOperator
from operators.publish import PublishArtifactsOperator
from operators.reserve import ReserveDestinationsOperator
from operators.verify import VerifyArtifactsOperator

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


def default_args(*, retries: int = 2, priority: int = 10) -> dict[str, Any]:
    """What tasks of every DAG share: owner, retries with growing pauses, pool, time limit."""
    return {
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
    }


def choice(names: Iterable[str], **schema: Any) -> Param:
    """One of these names: the only one by default; where there are several, the field is required and empty."""
    known = sorted(names)
    return Param(*known[:1] if len(known) == 1 else (), type="string", enum=known, **schema)


def choose_repositories(names: list[str], description: str) -> Param:
    """Some of these repositories; empty by default, which the description explains."""
    items = {"type": "string", "enum": names}
    return Param(None, title="Repositories", type=["null", "array"], items=items, description=description)


def confirmed_by_hand(*, reason: str, dry_run: str) -> dict[str, Param]:
    """The params of a change made by hand: its reason, whether approval is asked for, and the dry run.

    Args:
        reason: Description of the reason.
        dry_run: Description of the dry run.

    Returns:
        `reason`, `approval` and `dry_run`.
    """
    return {
        "reason": Param(title="Reason", type="string", minLength=3, maxLength=1000, description=reason),
        "approval": Param(
            True,
            title="Approval",
            type="boolean",
            description="Ask for approval before it is done; a repository may insist on it.",
        ),
        "dry_run": Param(True, title="Dry run", type="boolean", description=dry_run),
    }
