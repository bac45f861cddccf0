"""`rollback`: take a repository back to the content of an earlier revision, by hand. The file only declares."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, XComArg

from include.settings.load import load
from include.settings.model import SiteSettings
from operators import undo
from operators.approve import approve_each
from operators.params import choice, confirmed_by_hand
from operators.publishing import dag_defaults

DOC = """
### Roll a repository back

| task | what it does |
|---|---|
| `preview` | lists what changes for readers: builds, links, other paths, tags, files and bytes |
| `approve` | shows that list and waits for a yes or no, at most until the deadline (docs/operations.md) |
| `roll_back` | makes the revision; skipped while `dry_run` is on, which it is by default |
| `record` | updates the ledger: removed builds count as undone, restored ones no longer do, links as they are now |
| `report` | reports what was done, and which revision readers get |

It goes forward only: a new revision with the content of the old one. Nothing is deleted; what was published since can
be read by its tag or root hash until a collection, and tags of revisions after that one go, as with the stock tools.

`revision` takes the number of any revision whose root catalog is still in the store and in the reflog; a tag keeps one
for good. To take a single build back, use `undo_build`: a rollback takes back all that was published since, by
other runs and by hand too.

The yes is for both root hashes and the tags that go. If the repository moved since the preview, `roll_back` is refused
and nothing is changed: clear `preview` and what follows it. So roll back while no night publishes.

What went is not installed again by itself; `nightshift nightly redo` lets it. Needs the repository's signing key, and
so a worker on the gateway's machine; elsewhere run `nightshift repo rollback` there. A frozen repository is waited for.
Runs of a backfill are refused.
"""


def rollback(settings: SiteSettings) -> DAG:
    """The DAG. Of what must be chosen nothing has a default, but the only repository of a site."""
    dag = DAG(
        dag_id="rollback",
        dag_display_name="Roll a repository back",
        description="Take a repository back to the content of an earlier revision, by hand",
        doc_md=DOC,
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=16),
        **dag_defaults(),
        params={
            "repository": choice(settings.repositories, title="Repository", description="The repository to roll back."),
            "tag": Param(
                None,
                title="Tag",
                type=["null", "string"],
                pattern=r"^[^\s]+$",
                maxLength=255,
                description="The tag to go back to; or give a revision.",
            ),
            "revision": Param(
                None,
                title="Revision",
                type=["null", "integer"],
                minimum=1,
                maximum=2**53,
                description="The number of the revision to go back to; or give a tag.",
            ),
            **confirmed_by_hand(
                reason="Why; it is kept in the ledger and with the approval.",
                dry_run="Only show the preview; nothing is changed.",
            ),
        },
        tags=["cvmfs", "by hand"],
    )
    with dag:
        preview = undo.PreviewRollbackOperator(
            task_id="preview",
            task_display_name="Preview the rollback",
            doc_md="Lists what would change for readers; changes nothing, and asks again when cleared.",
            execution_timeout=timedelta(hours=2),
        )
        roll_back = undo.RollBackOperator(
            task_id="roll_back",
            task_display_name="Roll back",
            preview=XComArg(preview, key=undo.PLAN),
            pool="publish",
            doc_md="Makes the revision that was shown; skipped in a dry run.",
        )
        record = undo.RecordRollbackOperator(
            task_id="record",
            task_display_name="Record in the ledger",
            done=roll_back.output,
            doc_md="Updates the ledger: what was removed and what was restored of builds, links and tags.",
        )
        report = undo.ReportRollbackOperator(
            task_id="report",
            task_display_name="Report",
            done=roll_back.output,
            told=record.output,
            doc_md="Reports what was done, and which revision readers get at the public URL.",
        )
        approve_each(preview.output) >> roll_back >> record >> report
    return dag


_site = load()
if _site.repositories:
    rollback_dag = rollback(_site)
