"""Publish in a way of one's own, between a task that takes a lease and one that gives it back whatever happens."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from hooks.task import RetryByKind
from operators.cvmfs import cvmfs_lease

with DAG(
    dag_id="own_publisher",
    description="Set a symbolic link with a publisher of one's own",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["example", "cvmfs"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10), "execution_timeout": timedelta(minutes=30)},
    params={
        "fqrn": Param("nightlies.example.org", type="string", description="The repository."),
        "path": Param(type="string", pattern="^/.+", description="The link; the directory above it must exist."),
        "target": Param(type="string", minLength=1, description="Where the link leads."),
    },
) as dag:

    @task(retry_policy=RetryByKind())
    def set_link(lease: Any, target: str) -> int:
        """A publisher of one's own: derive a new root catalog, store its objects, commit. Returns the revision."""
        from hooks.gateway import held_lease
        from hooks.secrets import AirflowSecrets
        from hooks.task import open_site
        from include.cvmfs.commit.edit import Edit
        from include.cvmfs.commit.metadata_objects import store_all
        from include.cvmfs.coordination.generation import look

        site, now = open_site(AirflowSecrets()), int(datetime.now(UTC).timestamp())
        with held_lease(lease) as (gateway, held):
            store = site.repository_store(held.repository)
            seen, head = look(store), site.head(held.repository)
            edit = Edit(head.catalogs, head.manifest.root)
            if not edit.symlink(held.path, target, now=now):
                return head.manifest.revision
            new = edit.finish(now)
            store_all(store, [*((catalog.hash.key, catalog.data) for catalog in new.catalogs), *new.objects])
            return gateway.commit(held, head.manifest.root, new.hash, generation=seen.token)

    with cvmfs_lease(fqrn="{{ params.fqrn }}", path="{{ params.path }}") as lease:
        set_link(lease, "{{ params.target }}")
