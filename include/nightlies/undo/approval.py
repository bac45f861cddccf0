"""Ask whether a build may be undone, and check that nothing else is undone than what was approved."""

from __future__ import annotations

from datetime import timedelta

from include.nightlies.attempt import Attempt
from include.nightlies.records import questions
from include.nightlies.rules import approval
from include.nightlies.rules.approval import Bound, QuestionKind, WantedApproval
from include.nightlies.rules.destinations import build_directory
from include.nightlies.steps.approve import ApprovalRequest, require_answer, settings_of
from include.nightlies.undo.plan import UndoPlan
from include.site.site import Site

OF_USE = timedelta(hours=12)
"""How long an answer is of use: what is undone does not grow old, but a run does."""


def ask_undo(site: Site, attempt: Attempt, plan: UndoPlan, *, wished: bool) -> ApprovalRequest:
    """Record the question of a run that undoes, if the repository asks for approval, or `wished` for this run."""
    if site.settings.repository(plan.repository).approval is None and not wished:
        return ApprovalRequest(None, True, f"{plan.repository} asks for no approval, nor does this run")
    if plan.refused or not (plan.taken or plan.links):
        return ApprovalRequest(None, True, "there is nothing to approve")
    settings, now = settings_of(site, plan.repository), attempt.clock()
    slot = site.settings.slot(plan.wish.slot)
    top = build_directory(slot, plan.build.build_id, build_date=plan.build.date)
    wanted = WantedApproval(
        QuestionKind.UNDO, plan.repository, f"Undo {plan.build.key} of {slot.name} in {plan.repository}?",
        (f"run {attempt.run}, because: {plan.wish.reason}", *plan.lines()),
        (Bound(str(plan.build.key), top, digest_of(plan)),), settings.deadline_minutes, now + OF_USE,
    )  # fmt: skip
    until = approval.deadline(now, settings.deadline_minutes, wanted.expires)
    question = questions.ask(site.ledger, attempt.run, wanted, now=now, deadline=until)
    what = f"{len(plan.taken)} places and {len(plan.links)} links to approve"
    return ApprovalRequest(question, True, f"{what}, digest {wanted.digest}")


def require_undo_approved(site: Site, plan: UndoPlan, run: str, *, wished: bool) -> None:
    """Raises NotApproved unless exactly this was approved in this run, or no approval is required."""
    if site.settings.repository(plan.repository).approval is not None or wished:
        require_answer(site.ledger, run, str(plan.build.key), digest_of(plan))


def digest_of(plan: UndoPlan) -> str:
    """The digest of what an approval of undoing binds: each place, what it has, and what comes instead; no revision."""
    taken = [
        (target.destination, target.held, target.instead.path, str(target.instead.reference.hash)) if target.instead
        else (target.destination, target.held)
        for target in plan.taken
    ]  # fmt: skip
    links = [(link.path, link.was, link.target or "") for link in plan.links]
    return approval.undo_digest(plan.repository, f"{plan.wish.slot} {plan.build.key}", [*taken, *links])
