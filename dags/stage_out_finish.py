"""`stage_out_finish`: verified transfers are registered, cleaned and archived. The file only declares."""

from __future__ import annotations

from airflow.sdk import DAG

from include.settings.load import load
from operators.stageout import dag_settings, passes

DOC = """
### Finish transfers

Each run is one pass, in which three components take turns until nothing is due or 50 seconds are over:

| component | what it does |
|---|---|
| `register` | puts verified files into blocks of their data set, and registers closed blocks in the catalogue |
| `clean` | removes the source of a file: after its verified copy and, where it has a data set, its registration |
| `archive` | moves what ended long ago out of the tables of transfers that have not |

Sources are removed only below the temporary area of a site with `clean: true`, in the folder of the file's user.
Sources of failed transfers stay until they cannot be resubmitted any more.

A task that is killed loses and doubles nothing: what it had claimed is due again after three minutes. A run of a
backfill is refused. The tasks of a run (`stageout.shards`) share the work by claims. More: docs/stage-out.md.
"""

_site = load()
if _site.sites:
    with DAG(
        dag_id="stage_out_finish",
        dag_display_name="Stage-out: finish",
        description="Register verified files, remove their sources, archive",
        doc_md=DOC,
        **dag_settings("* * * * *"),
    ) as stage_out_finish:
        passes(
            _site,
            ["register", "clean", "archive"],
            task_id="finish",
            task_display_name="Register, clean, archive",
            doc_md="Registers blocks of verified files, removes temporary sources, and archives what ended.",
        )
