"""The tasks that every publishing DAG has, after its plan and before its gate: reserve, prepare and publish, verify."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import TriggerRule, task_group

from hooks.priority import NightFirst
from operators.inherit import InheritOperator
from operators.prepare import CvmfsPrepareOperator
from operators.publish import CvmfsPublishOperator
from operators.reserve import CvmfsReserveOperator
from operators.verify import CvmfsVerifyOperator


def publishing_tasks(
    batches: Any, *, group_id: str, prepare_timeout: timedelta, inherited: Any = None
) -> CvmfsVerifyOperator:
    """Chain the tasks for a plan's batches, mapped over them in a group; returns the last, for the gate to follow.

    `inherited`: what a plan hands on of what a partial build takes from another one; without it there is no such task.

    A group and not two mapped tasks, so that one batch that fails keeps no other from being published.
    """
    reserve = CvmfsReserveOperator(
        task_id="reserve",
        batches=batches,
        pool="publish",
        doc_md="One lease, one commit: an empty nested catalog at every destination, and the directories above them.",
    )

    @task_group(group_id=group_id)
    def group(batch: dict[str, Any]) -> None:
        """Prepare and publish one batch: a single artifact on most nights."""
        prepare = CvmfsPrepareOperator(
            task_id="prepare",
            batch=batch,
            pool="prepare",
            map_index_template="{{ task.batch['name'] }}",
            execution_timeout=prepare_timeout,
            doc_md="Reads the source and stores what is new of it, without any lease.",
        )
        publish = CvmfsPublishOperator(
            task_id="publish",
            batch=batch,
            pool="publish",
            map_index_template="{{ task.batch['name'] }}",
            doc_md="Takes a lease on the destination, swaps its catalog, commits, gives the lease back.",
        )
        prepare >> publish

    verify = CvmfsVerifyOperator(
        task_id="verify",
        batches=batches,
        trigger_rule=TriggerRule.ALL_DONE,
        execution_timeout=timedelta(hours=2),
        doc_md="Takes away what failed artifacts left reserved, then reads back what was published, as a reader does.",
    )
    reserve >> group.expand(batch=batches) >> verify
    if inherited is not None:
        take = InheritOperator(
            task_id="inherited",
            batch=inherited,
            pool="publish",
            execution_timeout=prepare_timeout,
            doc_md="Takes what a partial build does not list from the build that it names, by catalogs or links alone.",
        )
        reserve >> take >> verify
    return verify


def default_args(*, retries: int = 2, priority: int = 10) -> dict[str, Any]:
    """What tasks of every DAG share: owner, retries with growing pauses, pool, time limit."""
    return {
        "owner": "nightshift",
        "retries": retries,
        "retry_delay": timedelta(seconds=10),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=5),
        "pool": "control",
        "priority_weight": priority,
        "weight_rule": NightFirst(),
        "execution_timeout": timedelta(minutes=30),
    }
