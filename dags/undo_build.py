"""`undo_build`: take one build back, or some of it, by hand. The file only declares."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from include.settings.load import load
from include.settings.model import SiteSettings
from operators.approve import approve_each
from operators.params import NAME_PATTERN, choice, choose_artifacts, confirmed_by_hand, flag
from operators.publishing import dag_defaults
from operators.undo import PlanUndoOperator, UndoBuildOperator

DOC = """
### Take a build back

| task | what it does |
|---|---|
| `look` | lists what would be removed or replaced, which links lead there, and what prevents it |
| `approve` | shows that list and waits for a yes or no, at most until the deadline (docs/operations.md) |
| `undo` | does it in one revision, and records it; skipped while `dry_run` is on, which it is by default |

`instead` *nothing* takes the trees away; *predecessor* puts the tree of the newest earlier build of the slot in the
place of each, by its catalogs alone: no data is sent. All else in the repository stays, also what was published since.

Links that lead to a build that goes are refused, unless `move_links` lets them lead to the newest earlier build that is
whole (a weekday's to one of that day), or go where there is none. Trees that no run published, and trees that links of
partial builds lead to, are refused always.

The yes is for exactly what was listed: if something else is there by the time of `undo`, it is refused; clear `look`
with what follows it. Approval is asked for unless `approval` is off; a repository may insist on it.

What is undone is not installed again by itself, but for artifacts that are rebuilt; `nightshift nightly redo` lets it.
The bytes stay in the store until a collection, and the revision before can be read by its tag or root hash.
A lease on the build's directory is needed; with links to move one on the directory above them all, which is busy while
a night publishes below it.
"""


def undo_build(settings: SiteSettings) -> DAG:
    """The DAG, with the configured slots to choose from."""
    dag = DAG(
        dag_id="undo_build",
        dag_display_name="Undo a build",
        description="Take a build back, or some of it, by hand",
        doc_md=DOC,
        max_active_runs=4,
        dagrun_timeout=timedelta(hours=16),
        **dag_defaults(),
        params={
            "slot": choice(settings.slots, title="Slot", description="The series of builds."),
            "build_id": Param(
                title="Build",
                type="string",
                pattern=f"^{NAME_PATTERN}$",
                description="The id of the build, as its index has it.",
            ),
            **choose_artifacts("Only these projects. Empty: all.", "Only these platforms. Empty: all."),
            "instead": Param(
                "nothing",
                title="Replace with",
                type="string",
                enum=["nothing", "predecessor"],
                description="nothing: remove the trees. predecessor: the trees of the previous build.",
            ),
            "move_links": flag(
                "Move links",
                "If latest or a weekday link points to this build, repoint it to the newest earlier "
                "complete build. Off: refuse.",
            ),
            **confirmed_by_hand(
                reason="Why; it is kept in the ledger and shown to users who install the build again.",
                dry_run="Only report what would be done.",
            ),
        },
        tags=["nightlies", "cvmfs", "by hand"],
    )
    with dag:
        look = PlanUndoOperator(
            task_id="look",
            task_display_name="Plan the undo",
            doc_md="Lists what would be undone and what prevents it; changes nothing, and asks again when cleared.",
        )
        undo = UndoBuildOperator(
            task_id="undo",
            task_display_name="Undo the build",
            pool="publish",
            doc_md="Undoes it in one revision; skipped in a dry run.",
        )
        approve_each(look.output) >> undo
    return dag


_site = load()
if _site.slots:
    undo_build_dag = undo_build(_site)
