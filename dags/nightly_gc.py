"""`nightly_gc`: builds that expired go, then what no kept revision needs is deleted. The file only declares."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, TaskGroup, TriggerRule, XComArg
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from include.settings.load import load
from include.settings.model import SiteSettings
from operators import care, undo
from operators.approve import approve_each
from operators.base import alert_late_run
from operators.params import choose_repositories, flag
from operators.publishing import dag_defaults
from sensors.cvmfs import ReplicaQuietSensor

LATE_HOURS = 8.0
COLLECTING = timedelta(hours=12)

DOC = """
### Collect garbage

`begin` refuses runs of a backfill. Then, for each repository, in a group of its own that fails alone:

| task | what it does | skipped if |
|---|---|---|
| `replicas` | waits for replicas in the middle of a snapshot, each as long as its longest snapshot takes | |
| `prune_tags` | removes the tags that `care.tags` does not keep; with `apply: false` lists them | there is no rule |
| `plan` | lists the builds that expired by the `retention:` of their slots, and why | none did |
| `approve` | asks, if a slot loses more builds than its `approve_above` | |
| `remove` | removes these builds, those of a slot in one revision | the answer is not a yes |
| `collect` | deletes what no kept revision needs, while others publish | nothing became deletable |
| `check` | checks manifest, tags, reflog and every catalog | nothing was collected |
| `report` | puts the reasons and figures together | |

Without a yes no build goes, and the collection goes on. It runs only where the repository's signing key is: the
gateway's machine. Repositories with `garbage_collectable: false` are left out. Behind a stock gateway and on a node the
stock tools collect, and publications wait meanwhile (docs/publishers.md).

Removals and collections are in the pool `collect`, one at a time, after tasks of nights. Before each 20,000 deletions
a collection waits while a lease is held in the repository, at most a minute, and a quarter of an hour in all. More:
docs/operations.md, collection: when a collection is refused, careful mode, reports.
"""


def group_of(repository: str) -> str:
    """A repository's name as that of a group of tasks, which has no dots."""
    return repository.replace(".", "__")


def nightly_gc(settings: SiteSettings, repositories: list[str]) -> DAG:
    """The DAG for these repositories."""
    schedule = settings.collection_schedule
    dag = DAG(
        dag_id="nightly_gc",
        dag_display_name="Garbage collection",
        description="Remove expired builds and collect the garbage of every repository",
        doc_md=DOC,
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=23),
        deadline=DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=timedelta(hours=LATE_HOURS),
            callback=SyncCallback(alert_late_run, kwargs={"hours": LATE_HOURS}),
        ),
        **dag_defaults(schedule, priority=1),
        params={
            "repositories": choose_repositories(
                repositories, "Only these repositories. Empty: all that are collected."
            ),
            "dry_run": flag("Dry run", "Only report what would be deleted; nothing is changed."),
            "all_orphans": flag("All orphans", "Search for orphans in the whole store, not in a seventh of it."),
            "accept": Param(
                None,
                title="Reason to collect anyway",
                type=["null", "string"],
                minLength=3,
                maxLength=1000,
                description="Collect although a collection was refused because far fewer objects would stay than "
                "before, or roots vanished. Choose the one repository as well. Empty: such a collection is refused.",
            ),
        },
        tags=["cvmfs", "care"],
    )
    with dag:
        begin = care.BeginCollectionsOperator(
            task_id="begin",
            task_display_name="Choose repositories",
            repositories=repositories,
            doc_md="Refuses a run of a backfill; names the repositories.",
        )
        for repository in repositories:
            begin >> collection_of(settings, repository)
    return dag


def collection_of(settings: SiteSettings, repository: str) -> TaskGroup:
    """The tasks of one repository. A task that is skipped keeps only those from running that are for its result."""
    snapshots = [replica.longest_snapshot_minutes for replica in settings.repository(repository).replicas]
    go_on = TriggerRule.NONE_FAILED
    with TaskGroup(
        group_of(repository), group_display_name=repository, tooltip=f"Collect the garbage of {repository}."
    ) as group:
        replicas = ReplicaQuietSensor(
            task_id="replicas",
            task_display_name="Wait for replicas",
            repository=repository,
            timeout=60.0 * max(snapshots, default=1),
            doc_md="Waits for replicas in the middle of a snapshot, and after its limit goes on without them.",
        )
        prune = care.PruneTagsOperator(
            task_id="prune_tags",
            task_display_name="Prune tags",
            repository=repository,
            only_by_rule=True,
            pool="collect",
            doc_md="Removes the tags that the repository's rule does not keep, or lists them.",
        )
        plan = undo.PlanRetentionOperator(
            task_id="plan",
            task_display_name="Find expired builds",
            repository=repository,
            trigger_rule=go_on,
            doc_md="Lists the builds that expired, with the reasons; changes nothing, and asks again when cleared.",
        )
        remove = undo.RemoveExpiredOperator(
            task_id="remove",
            task_display_name="Remove expired builds",
            plans=XComArg(plan, key=undo.PLAN),
            pool="collect",
            doc_md="Removes the expired builds, those of a slot in one revision; skipped in a dry run.",
        )
        collect = care.CvmfsCollectOperator(
            task_id="collect",
            task_display_name="Collect garbage",
            repository=repository,
            accept="{{ params.accept or '' }}",
            all_orphans="{{ params.all_orphans }}",
            dry_run="{{ params.dry_run }}",
            pool="collect",
            trigger_rule=go_on,
            execution_timeout=COLLECTING,
            doc_md="Deletes what no kept revision needs, while others publish; writes a report.",
        )
        check = care.CheckRepositoryOperator(
            task_id="check",
            task_display_name="Check the repository",
            repository=repository,
            execution_timeout=timedelta(hours=4),
            doc_md="Checks manifest, tags, reflog and every catalog; notes damage in the ledger.",
        )
        told = {"replicas": replicas, "tags": prune, "builds": remove, "collection": collect, "check": check}
        report = care.ReportCollectionOperator(
            task_id="report",
            task_display_name="Report",
            repository=repository,
            tasks={name: task.task_id for name, task in told.items()},
            trigger_rule=go_on,
            doc_md="Puts together what became of the repository: reasons and figures.",
        )
        replicas >> prune >> plan
        approve_each(plan.output) >> remove >> collect >> check >> report
    return group


_site = load()
_collectable = sorted(name for name, repository in _site.repositories.items() if repository.garbage_collectable)
if _collectable:
    nightly_gc_dag = nightly_gc(_site, _collectable)
