"""`cache_care`: trims the shared caches of sites before they are full, and verifies a share of them every night.

The file only declares.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param, TaskGroup

from include.settings.load import load
from operators.caches import CacheTrimOperator, CacheVerifyOperator
from operators.params import choose_caches, flag
from operators.publishing import dag_defaults

DOC = """
### Look after the shared caches

| task, for each cache | what it does | when it fails |
|---|---|---|
| `trim` | takes away what was used last longest ago, if a mark is passed; else *skipped* | a mark is still passed |
| `verify` | at 2:00 UTC, finds damaged objects in a share of the cache | some are damaged |

Clients get an I/O error for everything that is not in a full cache, and read what is in a cache without a check: so
both matter. `nightshift cache status` shows the same by hand.
"""

_site = load()
if _site.caches:
    with DAG(
        dag_id="cache_care",
        dag_display_name="Cache care",
        description="Trim the shared caches, and verify a share of them every night",
        doc_md=DOC,
        max_active_runs=16,  # a check of a night, or a queue without a worker, keeps no other cache from being trimmed
        dagrun_timeout=timedelta(hours=12),
        **dag_defaults("5 * * * *", priority=1),
        params={
            "caches": choose_caches(sorted(_site.caches), "Only these caches. Empty: all."),
            "dry_run": flag("Dry run", "Only report what would be removed."),
            "verify": Param(
                None,
                title="Verify",
                type=["null", "boolean"],
                description="Verify a share of each cache. Empty: at night only.",
            ),
        },
        tags=["caches", "care"],
    ) as cache_care:
        for name in sorted(_site.caches):
            with TaskGroup(group_id=name, group_display_name=f"Cache {name}"):
                CacheTrimOperator(
                    task_id="trim",
                    task_display_name="Trim",
                    cache=name,
                    dry_run="{{ params.dry_run }}",
                    max_active_tis_per_dag=1,
                    execution_timeout=timedelta(hours=2),
                    doc_md="Trims the cache if a mark is passed.",
                )
                CacheVerifyOperator(
                    task_id="verify",
                    task_display_name="Verify a share",
                    cache=name,
                    nightly=True,
                    dry_run="{{ params.dry_run }}",
                    max_active_tis_per_dag=1,
                    execution_timeout=timedelta(hours=6),
                    doc_md="Verifies a share of the cache, once a night.",
                )
