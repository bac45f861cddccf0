"""Ask whether what a run prepared may be published, keep the answer, and hold every publication to it.

One question for a run: what each answer binds is in `include/nightlies/rules/approval.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from include.ledger.engine import Bind, writing
from include.nightlies.errors import APPROVAL_REQUIRED, NotApproved, PreparedTooLongAgo
from include.nightlies.records import publications as records, questions
from include.nightlies.records.questions import Question
from include.nightlies.rules import approval
from include.nightlies.rules.approval import SHORTEST, Answer, Bound, QuestionKind, WantedApproval
from include.nightlies.rules.publication import Move, Phase, Publication, Skip, State
from include.nightlies.steps.values import Attempt, Batch, Item, all_items
from include.notify import Message, Notifier, NotifyEvent
from include.settings.model import Approval
from include.site.site import Site

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """Outcome of asking. `question`: the one that awaits an answer, or None, and `why` none is asked.

    `go`: whether the run goes on without an answer.
    """

    question: Question | None
    go: bool
    why: str


def ask_run(site: Site, attempt: Attempt, batches: Sequence[Batch], *, earlier: Sequence[str] = ()) -> ApprovalRequest:
    """Record the question of a run, if its repository asks for approval and anything of it is prepared.

    `earlier`: the runs of the passes of this night before it: what was approved or rejected there is not asked again,
    unless this run asks for a second time. What was skipped because it was not approved is asked about again. Raises
    PreparedTooLongAgo.
    """
    if not batches:
        return ApprovalRequest(None, False, "there is nothing to publish")
    first, ledger = batches[0], site.ledger
    settings = site.settings.repository(first.repository).approval
    if settings is None:
        return ApprovalRequest(None, True, f"{first.repository} asks for no approval")
    if first.dry_run:
        return ApprovalRequest(None, True, "dry run: nothing is published, and no approval is asked for")
    waiting = _waiting(site.ledger, batches)
    if not waiting:
        return ApprovalRequest(None, False, "nothing is prepared that awaits an approval")
    begun = _bound(site, first.repository, waiting, attempt.clock())
    before = {} if questions.of_run(ledger, first.run) else questions.newest(ledger, earlier, list(begun))
    taken = {digest: asked for digest, asked in before.items() if asked.answer in (Answer.APPROVED, Answer.REJECTED)}
    for answered in sorted(set(taken.values()), key=lambda asked: asked.id):
        again = {digest: begun.pop(digest) for digest, asked in taken.items() if asked == answered}
        _take_over(site.ledger, attempt, first.run, answered, _wanted(first, settings, again))
    if not begun:
        answers = {asked.answer for asked in taken.values()}
        return ApprovalRequest(None, Answer.APPROVED in answers, "an earlier pass of this night asked about all of it")
    wanted, now = _wanted(first, settings, begun), attempt.clock()
    until = _deadline(first.run, wanted.expires, settings.deadline_minutes, now)
    question = questions.ask(ledger, first.run, wanted, now=now, deadline=until)
    _revive(site.ledger, attempt, question)
    for line in (*wanted.lines, *(subject.line for subject in wanted.bound)):
        log.info("%s", line)
    return ApprovalRequest(question, True, f"{len(wanted.bound)} to approve, digest {wanted.digest}")


def open_question(site: Site, attempt: Attempt, question_id: int) -> Question:
    """Begin to wait for the answer to a question; one that was answered before is open again.

    Raises QuestionSettled for one that was replaced, PreparedTooLongAgo if there is no time left for an answer.
    """
    found, now = questions.question(site.ledger, question_id), attempt.clock()
    minutes = settings_of(site, found.repository).deadline_minutes
    until = _deadline(found.run_id, found.expires_at, minutes, now)
    question = questions.ask_again(site.ledger, question_id, now=now, deadline=until)
    _revive(site.ledger, attempt, question)
    return question


def settle_question(
    ledger: Bind, attempt: Attempt, question_id: int, answer: Answer, *, by: str | None = None, comment: str = ""
) -> Question:
    """Record the answer; what was asked about is skipped with that reason unless it is a yes."""
    now = attempt.clock()
    question = questions.settle(ledger, question_id, answer, now=now, by=by, comment=comment)
    log.info("%s", question.outcome)
    if question.kind is QuestionKind.PUBLICATION and answer is not Answer.APPROVED:
        _skip(ledger, attempt, question)
    return question


def require_approved(site: Site, run: str, fqrn: str, name: str, digest: str) -> None:
    """Raises NotApproved unless the run's last answer about exactly this is a yes, or the repository wants none."""
    if site.settings.repository(fqrn).approval is not None:
        require_answer(site.ledger, run, name, digest)


def require_answer(ledger: Bind, run: str, name: str, digest: str) -> None:
    """Raises NotApproved unless the last answer of the run about exactly this is a yes."""
    last = questions.newest(ledger, [run], [digest]).get(digest)
    if last is None:
        raise NotApproved(name, f"no one was asked about the present state, {digest[:16]}")
    if last.answer is not Answer.APPROVED:
        raise NotApproved(name, last.outcome, last.answer)


def require_no_approval(site: Site, fqrn: str) -> None:
    """Raises APPROVAL_REQUIRED for a repository that nothing is published to without an approval."""
    if site.settings.repository(fqrn).approval is not None:
        raise APPROVAL_REQUIRED(f"repository {fqrn} asks for approval; {APPROVAL_REQUIRED.hint}")


def settings_of(site: Site, fqrn: str) -> Approval:
    """Return how a repository asks for approval; the defaults where a run asks for one without it."""
    return site.settings.repository(fqrn).approval or Approval()


def tell_asked(site: Site, question: Question, *, url: str | None, now: datetime) -> None:
    """Notify people that they are asked. Raises nothing."""
    message = Message(
        f"approval:{question.run_id}:{question.number}:{question.turn}", NotifyEvent.APPROVAL, "warning",
        question.subject, question.body,
        f"Answer by {question.deadline:%Y-%m-%d %H:%M} UTC, in Airflow under Required Actions; the list is there.",
        {"question": url} if url else {},
    )  # fmt: skip
    Notifier.of(site).tell(message, now=now)


def tell_refused(site: Site, question: Question, *, url: str | None, now: datetime) -> None:
    """Notify people that a question was not answered in time, or rejected. Raises nothing."""
    missed = question.answer is Answer.EXPIRED
    message = Message(
        f"approval-{question.answer.value}:{question.run_id}:{question.number}:{question.turn}", NotifyEvent.APPROVAL,
        "error" if missed else "warning",
        f"{'no answer' if missed else 'rejected'}: {question.subject}",
        f"Run {question.run_id}: {question.outcome}. Nothing of it was done.",
        "To be asked again, clear the task of that run that asks (`ask`, `look` of undo_build, `preview` of rollback, "
        "`plan` of nightly_gc) and what follows it.",
        {"question": url} if url else {},
    )  # fmt: skip
    Notifier.of(site).tell(message, now=now)


def tree_digest_of(fqrn: str, destination: str, source_sha256: str | None, root: object) -> str:
    """Return what an approval binds of a changeset."""
    return approval.tree_digest(fqrn, destination, source_sha256=source_sha256 or "", root=str(root))


@dataclass(frozen=True, slots=True)
class _Begun:
    bound: Bound
    begun: datetime


def _waiting(ledger: Bind, batches: Sequence[Batch]) -> list[tuple[Item, Publication]]:
    planned = {publication.key: publication for publication in records.publications_of_run(ledger, batches[0].run)}
    found = []
    for batch, item in all_items(batches):
        publication = planned.get(batch.key(item))
        if publication is not None and (publication.changeset is not None or item.linked) and _awaits(publication):
            found.append((item, publication))
    return found


def _awaits(publication: Publication) -> bool:
    """Prepared; or skipped or failed after that, which a cleared run tries again."""
    if publication.state in (State.PREPARED, State.PUBLISHING):
        return True
    after = {State.SKIPPED: Phase.APPROVE, State.FAILED: Phase.PUBLISH}
    return after.get(publication.state) is publication.phase


def _bound(site: Site, fqrn: str, waiting: Sequence[tuple[Item, Publication]], now: datetime) -> dict[str, _Begun]:
    made = questions.prepared(
        site.ledger, [publication.changeset for _, publication in waiting if publication.changeset]
    )
    head = site.head(fqrn) if any(item.linked for item, _ in waiting) else None
    found = {}
    for item, publication in waiting:
        if head is not None and item.linked:
            there = head.revision.nested_at(item.inherits or "")
            digest = approval.link_digest(
                fqrn, item.destination, target=item.inherits or "", root=str(there.hash) if there else ""
            )
            found[digest] = _Begun(Bound(item.name, item.destination, digest, f"a link to {item.inherits}"), now)
        elif (changeset := made.get(publication.changeset or "")) is not None:
            digest = tree_digest_of(fqrn, item.destination, changeset.source_sha256, changeset.root_hash)
            figures = f"{publication.files} files, {publication.bytes} bytes ({publication.objects_new} objects new)"
            found[digest] = _Begun(Bound(item.name, item.destination, digest, figures), changeset.begun)
    return found


def _wanted(first: Batch, settings: Approval, begun: dict[str, _Begun]) -> WantedApproval:
    bound = tuple(entry.bound for entry in begun.values())
    what = bound[0].name if len(bound) == 1 else f"{len(bound)} artifacts"
    tag = [f"the new revision is to be named {first.tag}"] if first.tag else []
    lines = [f"run {first.run}, repository {first.repository}", *tag]
    return WantedApproval(
        QuestionKind.PUBLICATION, first.repository, f"Publish {what} to {first.repository}?", tuple(lines), bound,
        settings.deadline_minutes, approval.expiry(min(entry.begun for entry in begun.values())),
    )  # fmt: skip


def _deadline(run: str, expires: datetime, minutes: int, now: datetime) -> datetime:
    until = approval.deadline(now, minutes, expires)
    if until - now < SHORTEST:
        raise PreparedTooLongAgo(run, expires)
    return until


def _take_over(ledger: Bind, attempt: Attempt, run: str, answered: Question, wanted: WantedApproval) -> None:
    """Have in this run what an earlier pass of its night was answered."""
    question = questions.ask(ledger, run, wanted, now=attempt.clock(), deadline=answered.deadline, answered=answered)
    log.info("%d were asked about before: %s", len(wanted.bound), question.outcome)
    if answered.answer is not Answer.APPROVED:
        _skip(ledger, attempt, question)


def _skip(ledger: Bind, attempt: Attempt, question: Question) -> None:
    why = f"not approved: {question.outcome}. To be asked again, clear the task `ask` and what follows it."
    _move_all(ledger, attempt, question, {State.PREPARED}, State.SKIPPED, why)


def _revive(ledger: Bind, attempt: Attempt, question: Question) -> None:
    """Set to prepared what was skipped or failed after it was prepared, since it is about to be tried again."""
    if question.kind is QuestionKind.PUBLICATION:
        why = f"question {question.number} was asked"
        _move_all(ledger, attempt, question, {State.SKIPPED, State.FAILED}, State.PREPARED, why)


def _move_all(ledger: Bind, attempt: Attempt, question: Question, of: set[State], to: State, why: str) -> None:
    wanted = {subject.destination for subject in questions.bound_of(ledger, question.id)}
    planned = [
        publication for publication in records.publications_of_run(ledger, question.run_id)
        if publication.destination in wanted and publication.state in of and _awaits(publication)
    ]  # fmt: skip
    now = attempt.clock()
    move = Move(to, Phase.APPROVE, why, skip=Skip.REJECTED if to is State.SKIPPED else None)

    def work(connection: Connection) -> None:
        for publication in planned:
            # by the turn of the question: a later one replaces what an earlier one decided
            records.move(connection, publication.key, move, try_number=question.turn, now=now)

    if planned:
        writing(ledger, work)
