"""The publication of one tree by hand: its params, and its tasks from the plan to the gate."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from airflow.sdk import Param, TriggerRule

from operators.night import CheckCompletenessOperator, PlanPublicationOperator
from operators.params import choice, flag
from operators.publishing import publishing_tasks


def publication_params(repositories: Iterable[str]) -> dict[str, Param]:
    """The params of one tree that is published by hand. Of what must be chosen nothing has a default."""
    return {
        "repository": choice(repositories, title="Repository", description="The repository to publish to."),
        "path": Param(
            title="Destination",
            type="string",
            pattern="^/[^/]+(/[^/]+)*/?$",
            minLength=2,
            maxLength=1024,
            description="The destination: an absolute path inside the repository, such as /software/root/6.36.",
        ),
        "source": Param(
            title="Source",
            type="string",
            pattern="^[a-z0-9]+://.+",
            maxLength=2048,
            description="URL of a tarball or folder in one of the configured stores, as s3://bucket/name.tar.gz.",
        ),
        "sha256": Param(
            None,
            title="SHA-256",
            type=["null", "string"],
            pattern="^[0-9a-f]{64}$",
            description="SHA-256 that the tarball must have. Empty: not checked.",
        ),
        "tag": Param(
            None,
            title="Tag",
            type=["null", "string"],
            pattern="^[A-Za-z0-9][A-Za-z0-9._+-]*$",
            maxLength=255,
            description="Tag for the new revision. Empty: none.",
        ),
        "mode": Param(
            "refuse",
            title="If the destination exists",
            type="string",
            enum=["refuse", "replace"],
            description="refuse: fail if the destination holds anything. replace: swap it.",
        ),
        "dry_run": flag("Dry run", "Report what would be published; change nothing."),
    }


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
