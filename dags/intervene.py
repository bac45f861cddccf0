"""`intervene`: freeze or thaw a repository, or let a night install again what was undone. The file only declares."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from include.settings.load import load
from include.settings.model import SiteSettings
from operators.interventions import InterveneOperator
from operators.params import NAME_PATTERN, choose_artifacts
from operators.publishing import dag_defaults

DOC = """
### Intervene by hand

| action | what it does | needs |
|---|---|---|
| `freeze` | stops publications, removals, collections; open leases end first | `repository`, `reason` |
| `thaw` | allows them again; what waits goes on by itself | `repository` |
| `redo` | lets the next run of a build install again what was undone of it | `slot`, `build_id` |

The same as the commands `nightshift freeze`, `thaw` and `nightly redo`. The ledger records the user who started the
run. Freezing and thawing write an object with the gateway's credentials of the repository's store.
"""


def intervene(settings: SiteSettings) -> DAG:
    """The DAG, with the configured repositories and slots to choose from."""
    dag = DAG(
        dag_id="intervene",
        dag_display_name="Intervene by hand",
        description="Freeze or thaw a repository, or let a night install again what was undone",
        doc_md=DOC,
        max_active_runs=4,
        dagrun_timeout=timedelta(hours=1),
        **dag_defaults(priority=50),
        params={
            "action": Param(
                title="Action", type="string", enum=["freeze", "thaw", "redo"], description="What is to be done."
            ),
            "repository": Param(
                None,
                title="Repository",
                type=["null", "string"],
                enum=[None, *sorted(settings.repositories)],
                description="To freeze or thaw.",
            ),
            "reason": Param(
                None,
                title="Reason",
                type=["null", "string"],
                maxLength=1000,
                description="Why; a freeze needs it, and tasks that wait for the repository show it.",
            ),
            "hours": Param(
                None,
                title="Hours",
                type=["null", "integer"],
                minimum=1,
                maximum=8784,
                description="When a freeze ends by itself; empty: only by a thaw.",
            ),
            "slot": Param(
                None,
                title="Slot",
                type=["null", "string"],
                enum=[None, *sorted(settings.slots)],
                description="Whose build may be installed again.",
            ),
            "build_id": Param(
                None,
                title="Build",
                type=["null", "string"],
                pattern=f"^{NAME_PATTERN}$",
                description="The id of that build, as its index has it.",
            ),
            **choose_artifacts("Redo only these projects; empty: all.", "Redo only these platforms; empty: all."),
        },
        tags=["nightlies", "cvmfs", "by hand"],
    )
    with dag:
        InterveneOperator(
            task_id="intervene",
            task_display_name="Intervene",
            doc_md="Does it, and records who, when and why in the ledger.",
        )
    return dag


_site = load()
if _site.repositories:
    intervene_dag = intervene(_site)
