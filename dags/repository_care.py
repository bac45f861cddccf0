"""`repository_care`: what every repository needs once a day, so that no night fails because of what was forgotten.

The file only declares.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, task_group

from include.settings.load import load
from operators.care import (
    CheckReplicasOperator,
    CheckRepositoryOperator,
    CheckWhitelistOperator,
    PruneTagsOperator,
    RemoveUnfinishedWritesOperator,
)
from operators.params import choose_repositories
from operators.publishing import dag_defaults

DOC = """
### Maintain the repositories

| task, for each repository | what it does | when it fails |
|---|---|---|
| `whitelist` | checks how long the readers' whitelist is valid | fewer days are left than `care.whitelist_days` |
| `prune_tags` | takes tags away by the rule `care.tags` | the signing key is not on the worker |
| `unfinished` | removes files that killed writers left in a folder over a day ago | it may not write there |
| `check` | checks manifest, tags, reflog and every catalog | something is wrong; what is lost comes into the ledger |
| `replicas` | notes in the ledger how far each replica is behind | one is away, not to be trusted, or lags too long |

Nothing is signed again here: the master key is on no worker. Its owner runs `nightshift repo resign`.

Tags are removed only if the rule has `apply: true`, or a run by hand has `dry_run` *false*; otherwise the log lists
them and why each of the others stays. It needs the repository's signing key, and so a worker on the gateway's machine;
elsewhere run `nightshift repo tag prune` there.

What `check` finds lost is sent again by the next preparation that has it, or by `nightshift repo repair --objects`.
`nightshift repo check` without `--quick` checks data objects too.
"""

_site = load()
if _site.repositories:
    names = sorted(_site.repositories)
    with DAG(
        dag_id="repository_care",
        dag_display_name="Repository care",
        description="Check whitelists, catalogs and replicas; prune tags",
        doc_md=DOC,
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=6),
        **dag_defaults("30 11 * * *", priority=1),
        params={
            "repositories": choose_repositories(names, "Only these repositories. Empty: all."),
            "dry_run": Param(
                None,
                title="Dry run",
                type=["null", "boolean"],
                description="Only report the tags and files to remove; empty: for tags each repository's rule decides.",
            ),
        },
        tags=["cvmfs", "care"],
    ) as repository_care:

        @task_group(group_id="care", group_display_name="Care of each repository")
        def care(repository: str) -> None:
            """Care for one repository: five tasks that do not wait for each other."""
            CheckWhitelistOperator(
                task_id="whitelist",
                task_display_name="Check the whitelist",
                repository=repository,
                map_index_template="{{ task.repository }}",
                doc_md="Checks how long the whitelist that readers see is valid; signs nothing.",
            )
            PruneTagsOperator(
                task_id="prune_tags",
                task_display_name="Prune tags",
                repository=repository,
                pool="publish",
                map_index_template="{{ task.repository }}",
                doc_md="Removes tags by the repository's rule, or lists them.",
            )
            RemoveUnfinishedWritesOperator(
                task_id="unfinished",
                task_display_name="Remove unfinished writes",
                repository=repository,
                map_index_template="{{ task.repository }}",
                doc_md="Removes files that killed writers left in a store in a folder, or lists them.",
            )
            CheckRepositoryOperator(
                task_id="check",
                task_display_name="Check the repository",
                repository=repository,
                execution_timeout=timedelta(hours=4),
                map_index_template="{{ task.repository }}",
                doc_md="Checks manifest, tags, reflog and every catalog; notes damage in the ledger.",
            )

            CheckReplicasOperator(
                task_id="replicas",
                task_display_name="Check replicas",
                repository=repository,
                map_index_template="{{ task.repository }}",
                doc_md="Checks how far each replica is behind stratum 0, and records it in the ledger.",
            )

        care.expand(repository=names)
