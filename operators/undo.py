"""Take a build back, or some of it: look first, then do it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from hooks.site import run_name
from operators.approve import questions_to_map
from operators.base import NightshiftOperator, attempt_of, former_names
from operators.lease import Done, LeaseTaskOperator, Waiting

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.nightlies.undo.plan import Wish
    from include.site.site import Site


PLAN = "plan"
"""The key under which a look leaves what it saw, for whoever looks at the task."""


class PlanUndoOperator(NightshiftOperator):
    """Says what undoing would take away or replace, which links lead there, and what speaks against it.

    Hands on the run's questions, as `AskApprovalOperator` does: the question is about what it saw.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.approve import ApprovalRequest
        from include.nightlies.undo.approval import ask_undo
        from include.nightlies.undo.undo import plan_undo

        site, run = self.site(), run_name(context)
        plan = plan_undo(site, wish_of(context))
        for line in plan.lines():
            self.log.info("%s", line)
        context["ti"].xcom_push(key=PLAN, value=plan.to_json())
        asked = ApprovalRequest(None, True, "dry run: no approval is asked for")
        if not context["params"]["dry_run"]:
            asked = ask_undo(site, attempt_of(context), plan, wished=bool(context["params"]["approval"]))
        self.log.info("%s", asked.why)
        return questions_to_map(site, run, asked)


class UndoBuildOperator(LeaseTaskOperator):
    """Undoes it in one revision; skipped in a dry run. It looks again itself, and refuses what would do harm, or is not
    what was approved.

    Waits for busy paths in the triggerer. A second try of what was done finds nothing to do.
    """

    ui_color = "#fee2e2"

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.gateway.errors import PathBusy
        from include.nightlies.undo.approval import require_undo_approved
        from include.nightlies.undo.undo import undo

        if context["params"]["dry_run"]:
            raise AirflowSkipException("dry run: see the task before; nothing is undone")
        attempt, wished = attempt_of(context), bool(context["params"]["approval"])
        require = partial(require_undo_approved, site, run=attempt.run, wished=wished)
        try:
            plan, revision = undo(site, attempt, wish_of(context), require=require)
        except PathBusy as busy:
            return Waiting({"undo": busy})
        return Done(plan.to_json() | {"revision": revision})


def wish_of(context: Context) -> Wish:
    """What the run's parameters ask for."""
    from include.nightlies.undo.plan import Instead, Wish

    params = context["params"]
    return Wish(
        slot=params["slot"],
        build_id=params["build_id"],
        reason=params["reason"],
        projects=tuple(params.get("projects") or ()),
        platforms=tuple(params.get("platforms") or ()),
        instead=Instead(params["instead"]),
        move_links=bool(params["move_links"]),
    )


if not TYPE_CHECKING:
    __getattr__ = former_names(__name__, {"UndoLookOperator": "PlanUndoOperator", "UndoOperator": "UndoBuildOperator"})
