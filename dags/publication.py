"""`publication`: one tree or tarball by hand, to any configured repository.

The same tasks as a night's, for a single destination. The file only declares.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from include.settings.load import load
from include.settings.model import SiteSettings
from operators.params import publication_params
from operators.publishing import dag_defaults, publication_tasks

DOC = """
### Publish one tree or tarball

`source` is the URL of a tarball (.tar, .gz, .xz, .zst) or zip in one of the stores of the site configuration, or of a
folder in one of its `file:///` stores: {stores}. Anything else is refused; a folder of the workers is allowed by adding
it to `stores`. With `sha256` the source is a file: a folder has no sum and is refused.

`mode` *refuse* ends with an error if the destination holds anything; *replace* swaps it. `tag` names the new revision;
one that is taken is refused.
A repository that asks for approval gets it only after a yes (docs/operations.md, approval).
`dry_run` reads the source, reports what would be published and how much of it is new, or why it would fail, and writes
to no store, gateway or repository.
"""


def publication(settings: SiteSettings) -> DAG:
    """The DAG. Of what must be chosen nothing has a default: a form that is sent as it is must not publish."""
    approval = any(repository.approval for repository in settings.repositories.values())
    stores = ", ".join(f"`{store.url}`" for store in settings.stores.values()) or "none is configured"
    dag = DAG(
        dag_id="publication",
        dag_display_name="Publish one tree",
        description="Publish one tree or tarball to a repository, by hand",
        doc_md=DOC.format(stores=stores),
        max_active_runs=8,
        dagrun_timeout=timedelta(hours=24 if approval else 12),
        **dag_defaults(),
        params=publication_params(settings.repositories),
        tags=["cvmfs", "by hand"],
    )
    with dag:
        publication_tasks(approval=approval)
    return dag


_site = load()
if _site.repositories:
    publication_dag = publication(_site)
