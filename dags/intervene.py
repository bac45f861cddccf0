"""`intervene`: freeze a repository, redo what was undone, hold a site, by hand. The file only declares."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from include.settings.load import load
from include.settings.model import SiteSettings
from operators.operations import InterveneOperator
from operators.params import NAME_PATTERN, choose_artifacts
from operators.publishing import dag_defaults

DOC = """
### Intervene by hand

| action | what it does | needs |
|---|---|---|
| `freeze` | stops publications, removals, collections; open leases end first | `repository`, `reason` |
| `thaw` | allows them again; what waits goes on by itself | `repository` |
| `redo` | lets the next run of a build install again what was undone of it | `slot`, `build_id` |
| `hold_site` | sends nothing to a storage site, whatever its probes say | `site`, `reason` |
| `release_site` | ends that; of a site that has failed, lets its probes judge it afresh | `site` |

The same as the commands `nightshift freeze`, `thaw`, `nightly redo`, `site hold` and `site release`. The ledger records
the user who started the run. Freezing and thawing write an object with the gateway's credentials of the repository's
store.
"""


def intervene(settings: SiteSettings) -> DAG:
    """The DAG, with the configured repositories and slots to choose from."""
    dag = DAG(
        dag_id="intervene",
        dag_display_name="Intervene by hand",
        description="Freeze or thaw a repository, install again what was undone, or hold a site",
        doc_md=DOC,
        max_active_runs=4,
        dagrun_timeout=timedelta(hours=1),
        **dag_defaults(priority=50),
        params={
            "action": Param(
                title="Action",
                type="string",
                enum=["freeze", "thaw", "redo", *(["hold_site", "release_site"] if settings.sites else ())],
                description="What is to be done.",
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
                description="Why; a freeze and a hold need it, and what waits for them shows it.",
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
            "site": Param(
                None,
                title="Site",
                type=["null", "string"],
                enum=[None, *sorted(settings.sites)],
                description="To hold or release.",
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
