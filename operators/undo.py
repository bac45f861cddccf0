"""Take builds back that are unwanted or expired, or a whole repository to an earlier revision: look, then do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from hooks.task import require_wanted, run_name
from include.cvmfs.errors import CollectionRunning
from include.gateway.errors import PathBusy
from include.nightlies.errors import ROLLBACK_REFUSED
from operators.approve import questions_to_map
from operators.base import NightshiftOperator, attempt_of, clock
from operators.lease_task import Done, LeaseTaskOperator, Waiting
from operators.links import NightLink

if TYPE_CHECKING:
    from include.nightlies.removal.rollback_preview import RollbackWish
    from include.nightlies.removal.undo import Wish
    from include.nightlies.steps.approve import ApprovalRequest
    from include.nightlies.steps.values import Attempt
    from include.site.site import Site


PLAN = "plan"
"""The key under which a look leaves what it saw, for people and for the tasks after it."""


class PlanUndoOperator(NightshiftOperator):
    """Reports what undoing would take away or replace, which links lead there, and what speaks against it.

    Hands on the run's questions, as `AskApprovalOperator` does: the question is about what it saw.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.removal.undo import ask_undo, plan_undo

        site = self.site()
        plan = plan_undo(site, wish_of(context))
        for line in plan.lines():
            self.log.info("%s", line)
        context["ti"].xcom_push(key=PLAN, value=plan.to_json())
        ask = partial(ask_undo, site, plan=plan, wished=bool(context["params"]["approval"]))
        return _questions(self, context, site, ask)


class UndoBuildOperator(LeaseTaskOperator):
    """Undoes it in one revision; skipped in a dry run. It looks again itself, and refuses what would do harm, or is not
    what was approved.

    Waits for busy paths in the triggerer. A second try of what was done finds nothing to do.
    """

    operator_extra_links = (NightLink(),)
    ui_color = "#fee2e2"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.night: dict[str, str] | None = None  # of the build that it undid

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.nightlies.removal.removal import require_approved
        from include.nightlies.removal.undo import undo

        attempt = _attempt_unless_dry(context)
        require = partial(require_approved, site, run=attempt.run, wished=bool(context["params"]["approval"]))
        plan, revision = undo(site, attempt, wish_of(context), require=require)
        self.night = {"slot": plan.wish.slot, "date": plan.build.date.isoformat()}
        return Done(plan.to_json() | {"revision": revision})


class PlanRetentionOperator(NightshiftOperator):
    """Says which builds of a repository's slots expired, and why; changes nothing.

    Hands on the run's questions, as `AskApprovalOperator` does, and the plans under `PLAN`. A slot that loses more
    builds than its `approve_above` is asked about. Skipped if no build expired. Fails, before a build is removed,
    where the collection that follows would be refused.

    Args:
        repository: Also skipped if the run's parameter `repositories` names others only.
        **kwargs: Those of every operator.
    """

    template_fields = ("repository",)
    ui_color = "#e0e7ff"

    def __init__(self, *, repository: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repository = repository

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.removal.retention import ask_retention, plan_retention
        from include.site.collecting import require_collectable

        require_wanted(context, self.repository)
        site, now = self.site(), clock()
        self.outlasting(site, lambda: require_collectable(site, self.repository))
        slots = [
            name
            for name, slot in sorted(site.settings.slots.items())
            if slot.repository == self.repository and slot.retention is not None
        ]
        plans = self.outlasting(site, lambda: [plan_retention(site, name, now=now) for name in slots])
        for line in (line for plan in plans for line in plan.lines()):
            self.log.info("%s", line)
        going = [plan for plan in plans if plan.expired]
        if not going:
            raise AirflowSkipException(f"{self.repository}: no build of {len(slots)} slots with `retention` expired")
        context["ti"].xcom_push(key=PLAN, value=[plan.to_json() for plan in going])
        ask = partial(ask_retention, site, fqrn=self.repository, plans=going)
        return _questions(self, context, site, ask, repository=self.repository)


class RemoveExpiredOperator(LeaseTaskOperator):
    """Removes the builds that the plan lets go, those of a slot in one revision; skipped in a dry run.

    Waits for busy paths in the triggerer. What an earlier try removed is returned as `absent`.

    Args:
        plans: What `PlanRetentionOperator` left under `PLAN`.
        **kwargs: Those of `LeaseTaskOperator`.
    """

    template_fields = ("plans",)
    ui_color = "#fee2e2"

    def __init__(self, *, plans: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plans = plans

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.nightlies.removal.retention import RetentionPlan, remove_expired, require_retention_approved

        attempt, done, busy = _attempt_unless_dry(context), {}, dict[str, PathBusy | CollectionRunning]()
        plans = [RetentionPlan.from_json(value) for value in self.plans or ()]
        for plan in plans:
            require_retention_approved(site, plan, attempt.run)
        for plan in plans:
            try:
                done[plan.slot] = remove_expired(site, attempt, plan).to_json()
            except (PathBusy, CollectionRunning) as error:
                busy[plan.slot] = error
        return Waiting(busy) if busy else Done(done)


class PreviewRollbackOperator(NightshiftOperator):
    """Shows what going back would change for readers, and fails where it cannot be done.

    Hands on the run's questions, as `AskApprovalOperator` does. Skipped where there is nothing to do. A run of a
    backfill is refused: what is gone back to depends on no date.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.removal.rollback import ask_rollback, require_possible
        from include.nightlies.removal.rollback_preview import preview_rollback, require_whole

        if context["dag_run"].run_type == "backfill":
            raise ROLLBACK_REFUSED("a backfill would roll back once for each date. Trigger one run by hand instead.")
        site, params = self.site(), context["params"]
        wish = rollback_wish_of(context)
        if not params["dry_run"]:
            require_possible(site, wish.repository)
        preview = preview_rollback(site, wish)
        for line in preview.lines():
            self.log.info("%s", line)
        context["ti"].xcom_push(key=PLAN, value=preview.to_json())
        require_whole(preview)
        ask = partial(ask_rollback, site, preview=preview, wished=bool(params["approval"]))
        return _questions(self, context, site, ask, go=not preview.changes_nothing)


class RollBackOperator(LeaseTaskOperator):
    """Makes the revision that the preview showed; skipped in a dry run. Refused if anything moved since.

    A second try finds the revision that the first one made.

    Args:
        preview: What `PreviewRollbackOperator` left under `PLAN`.
        **kwargs: Those of `LeaseTaskOperator`.
    """

    template_fields = ("preview",)
    ui_color = "#fee2e2"

    def __init__(self, *, preview: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.preview = preview

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.nightlies.removal.rollback import require_rollback_approved, roll_back
        from include.nightlies.removal.rollback_preview import SeenRollback

        attempt = _attempt_unless_dry(context)
        wished, preview = bool(context["params"]["approval"]), SeenRollback.from_json(self.preview)
        require = partial(require_rollback_approved, site, run=attempt.run, wished=wished)
        return Done(roll_back(site, attempt, rollback_wish_of(context), seen=preview, require=require).to_json())


class RecordRollbackOperator(NightshiftOperator):
    """Records in the ledger what a rollback took away and brought back; run again, it changes nothing.

    Args:
        done: What `RollBackOperator` returned.
        **kwargs: Those of every operator.
    """

    template_fields = ("done",)
    ui_color = "#e6f1f2"

    def __init__(self, *, done: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.done = done

    def execute(self, context: Context) -> dict[str, Any]:
        from include.nightlies.removal.rollback import RolledBack, record_rollback

        done = RolledBack.from_json(self.done)
        return record_rollback(self.site(), attempt_of(context), done, context["params"]["reason"]).to_json()


class ReportRollbackOperator(NightshiftOperator):
    """Reports what was done, and which revision readers get at the public URL.

    Args:
        done: What `RollBackOperator` returned.
        told: What `RecordRollbackOperator` returned.
        **kwargs: Those of every operator.
    """

    template_fields = ("done", "told")
    ui_color = "#e6f1f2"

    def __init__(self, *, done: Any, told: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.done = done
        self.told = told

    def execute(self, context: Context) -> dict[str, Any]:
        fqrn, goal, revision = self.done["repository"], self.done["goal"], self.done["revision"]
        readers = self.site().repository(fqrn).manifest.revision
        report = {"reason": context["params"]["reason"], "readers_revision": readers, **self.told}
        self.log.info("%s has the content of %s, as revision %d", fqrn, goal, revision)
        self.log.info("tags that went: %s", ", ".join(self.done["tags_lost"]) or "none")
        self.log.info("%s", ", ".join(f"{name}: {value}" for name, value in report.items()))
        if readers < revision:
            self.log.warning("readers still get revision %d at the public URL: a cache is in between", readers)
        return {**self.done, **report}


def _attempt_unless_dry(context: Context) -> Attempt:
    if context["params"].get("dry_run"):
        raise AirflowSkipException("dry run: see the task before; nothing is changed")
    return attempt_of(context)


def _questions(
    operator: NightshiftOperator,
    context: Context,
    site: Site,
    ask: Callable[..., ApprovalRequest],
    *,
    go: bool = True,
    repository: str | None = None,
) -> list[dict[str, Any]]:
    """Ask for an approval, and return the run's questions; a dry run asks nothing, and may `go` on."""
    from include.nightlies.steps.approve import ApprovalRequest

    asked = ApprovalRequest(None, go, "dry run: no approval is asked for")
    if not context["params"].get("dry_run"):
        asked = ask(attempt=attempt_of(context))
    operator.log.info("%s", asked.why)
    return questions_to_map(site, run_name(context), asked, repository=repository)


def rollback_wish_of(context: Context) -> RollbackWish:
    """Return the wish in the run's parameters.

    Args:
        context: The context of the task.

    Returns:
        The wish, with a tag or the number of a revision.

    Raises:
        NightlyError: `ROLLBACK_REFUSED`: not exactly one of tag and revision is given.
    """
    from include.nightlies.removal.rollback_preview import RollbackWish

    params = context["params"]
    given = [value for value in (params.get("tag"), params.get("revision")) if value is not None]
    if len(given) != 1:
        raise ROLLBACK_REFUSED("give a tag or the number of a revision, exactly one of them; nothing was changed")
    return RollbackWish(params["repository"], given[0], params["reason"])


def wish_of(context: Context) -> Wish:
    """Return the wish in the run's parameters."""
    from include.nightlies.removal.undo import Replacement, Wish

    params = context["params"]
    return Wish(
        slot=params["slot"],
        build_id=params["build_id"],
        reason=params["reason"],
        projects=tuple(params.get("projects") or ()),
        platforms=tuple(params.get("platforms") or ()),
        instead=Replacement(params["instead"]),
        move_links=bool(params["move_links"]),
    )
