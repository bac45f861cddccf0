"""`auxiliary_data`: publish a data set, and have it in the shared caches of sites before their jobs ask for it.

The file only declares.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, TaskGroup, TriggerRule

from include.settings.load import load
from include.settings.model import SiteSettings
from operators.caches import CacheVerifyOperator, CacheWarmOperator, ReportCachesOperator
from operators.params import choose_caches, publication_params
from operators.publishing import dag_defaults, publication_tasks

DOC = """
### Publish a data set and warm the caches

Publishes one tree as *Publish one tree* does, then fetches it into the shared caches of its repository, verifies them
and reports. Sets of large files are best published with `prepare: {chunks: data, compression: none}` of the repository.

`caches` chooses some caches; a cache that fails stops no other. A second try goes on where the first ended.
`dry_run` reports what would be published; nothing is warmed.
"""


def auxiliary_data(settings: SiteSettings) -> DAG:
    """The DAG: the publication, then a group of tasks for each cache, in the queue of the workers that mount it."""
    repositories = sorted({fqrn for cache in settings.caches.values() for fqrn in cache.repositories})
    approval = any(settings.repository(fqrn).approval for fqrn in repositories)
    dag = DAG(
        dag_id="auxiliary_data",
        dag_display_name="Auxiliary data",
        description="Publish a data set and warm the shared caches with it",
        doc_md=DOC,
        max_active_runs=4,
        dagrun_timeout=timedelta(hours=48),
        **dag_defaults(),
        params={
            **publication_params(repositories),
            "caches": choose_caches(sorted(settings.caches), "Only these caches. Empty: all caches of the repository."),
        },
        tags=["cvmfs", "caches", "by hand"],
    )
    with dag:
        gate = publication_tasks(approval=approval)
        report = ReportCachesOperator(
            task_id="report",
            task_display_name="Report",
            caches=sorted(settings.caches),
            trigger_rule=TriggerRule.ALL_DONE,
            doc_md="Puts together what each cache has of the data set; fails if one failed.",
        )
        for name in sorted(settings.caches):
            with TaskGroup(group_id=name, group_display_name=f"Cache {name}"):
                warm = CacheWarmOperator(
                    task_id="warm",
                    task_display_name="Warm",
                    cache=name,
                    repository="{{ params.repository }}",
                    paths="{{ params.path }}",
                    execution_timeout=timedelta(hours=24),
                    doc_md="Fetches the data set into the cache; what is there stays.",
                )
                verify = CacheVerifyOperator(
                    task_id="verify",
                    task_display_name="Verify sizes",
                    cache=name,
                    level="size",
                    share=1,
                    execution_timeout=timedelta(hours=4),
                    doc_md="Compares the sizes of all objects of the cache with the catalogs.",
                )
                gate >> warm >> verify >> report
    return dag


_site = load()
if _site.caches:
    auxiliary_data_dag = auxiliary_data(_site)
