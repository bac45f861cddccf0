"""Where a repository asks for approval nothing is published that nobody said yes to, however it was prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.nightlies.errors import GateClosed, NotApproved, PreparedTooLongAgo
from include.nightlies.records import questions
from include.nightlies.records.questions import Question
from include.nightlies.removal.removal import require_approved
from include.nightlies.removal.undo import UndoPlan, Wish, ask_undo, plan_undo, undo
from include.nightlies.rules.approval import MARGIN, Answer
from include.nightlies.rules.publication import State
from include.nightlies.steps.approve import ApprovalRequest, ask_run, open_question, settle_question
from include.nightlies.steps.inherit import inherit_batch, prepare_inherited
from include.nightlies.steps.plan import plan_publication
from include.nightlies.steps.publish import publish_batch
from include.nightlies.steps.values import Batch, PublicationRequest
from tests.fakes.attempts import attempt
from tests.fakes.refused import refused
from tests.nights import Nights, base_of, night_of
from tests.site import FQRN

TREES = {"A": {"file": b"a"}, "B": {"file": b"b"}}


@pytest.fixture
def asking(nights: Nights) -> Nights:
    """The site, whose repository asks for approval within four hours."""
    return nights.with_options(approval={"deadline_minutes": 240})


def ask(nights: Nights, *batches: Batch, earlier: tuple[str, ...] = ()) -> ApprovalRequest:
    return ask_run(nights.site, attempt(), batches, earlier=earlier)


def answer(nights: Nights, asked: ApprovalRequest, given: Answer = Answer.APPROVED) -> Question:
    assert asked.question is not None, asked.why
    by = None if given is Answer.EXPIRED else "shift"
    return settle_question(nights.site.ledger, attempt(), asked.question.id, given, by=by, comment="looked at it")


def prepared(nights: Nights, day: int, trees: Mapping[str, Mapping[str, bytes]] = TREES, run: str = "") -> Batch:
    batch = nights.plan(day, trees, run)
    assert not nights.prepare(batch).failures
    return batch


def published(nights: Nights, day: int, trees: Mapping[str, Mapping[str, bytes]] = TREES, run: str = "") -> Batch:
    """A build that was approved and is published."""
    batch = prepared(nights, day, trees, run)
    answer(nights, ask(nights, batch))
    assert not nights.publish(batch).failures
    return batch


def test_nothing_is_published_before_a_yes_and_all_that_was_asked_about_after_it(asking: Nights) -> None:
    batch, before = prepared(asking, 2), asking.revision
    unasked = publish_batch(asking.site, attempt(), batch)
    assert {type(one) for one in unasked.failures.values()} == {NotApproved}
    assert {one.answer for one in unasked.failures.values()} == {None}
    asked = ask(asking, batch)
    assert asked.question is not None
    for said in ("| `A/x86_64` | `/nightlies/main/b20261102/A/x86_64` |", "2 files, 1 bytes", asked.question.digest):
        assert said in asked.question.body
    assert set(asking.states(batch.run).values()) == {State.PREPARED}
    waiting = asking.publish(batch, try_number=2)
    assert {one.answer for one in waiting.failures.values()} == {Answer.OPEN}
    assert asking.revision == before + 1  # the places were reserved by this test, nothing else
    again = ask(asking, batch)
    assert answer(asking, again).outcome.startswith("approved by shift at")
    outcome = asking.publish(batch, try_number=3)
    assert not outcome.failures
    assert set(asking.states(batch.run).values()) == {State.PUBLISHED}
    first, second = questions.of_run(asking.site.ledger, batch.run)
    assert (first.answer, second.answer, second.answered_by, second.comment) == (
        Answer.REPLACED, Answer.APPROVED, "shift", "looked at it",
    )  # fmt: skip
    asking.assert_whole()


@pytest.mark.parametrize("given", [Answer.REJECTED, Answer.EXPIRED])
def test_without_a_yes_it_is_skipped_with_the_reason_which_the_gate_repeats_and_asking_again_lets_it_in(
    asking: Nights, given: Answer
) -> None:
    batch, before = prepared(asking, 2), asking.revision
    said = answer(asking, ask(asking, batch), given).outcome
    assert ("rejected by shift" if given is Answer.REJECTED else "had no answer by its deadline") in said
    assert set(asking.states(batch.run).values()) == {State.SKIPPED}
    assert not asking.publish(batch).failures
    assert asking.revision == before
    with pytest.raises(GateClosed) as closed:
        asking.gate(night_of(2))
    assert [line.partition(": ")[0] for line in closed.value.missing] == ["A/x86_64", "B/x86_64"]
    assert all(said in line for line in closed.value.missing)
    answer(asking, ask(asking, batch))
    assert not asking.publish(batch, try_number=2).failures
    assert set(asking.states(batch.run).values()) == {State.PUBLISHED}


def test_the_same_question_may_be_opened_again_and_the_last_answer_counts(asking: Nights) -> None:
    batch = prepared(asking, 2)
    asked = ask(asking, batch)
    answer(asking, asked, Answer.REJECTED)
    assert asked.question is not None
    again = open_question(asking.site, attempt(), asked.question.id)
    assert again.answer is Answer.OPEN
    assert set(asking.states(batch.run).values()) == {State.PREPARED}
    answer(asking, asked)
    assert not asking.publish(batch).failures


def test_what_was_collected_and_comes_out_the_same_when_prepared_again_stays_approved(asking: Nights) -> None:
    published(asking, 1)
    batch = prepared(asking, 2)
    asked = ask(asking, batch)
    asking.forget_the_first()
    asking.collector().run()
    answer(asking, asked)
    outcome = asking.publish(batch)
    assert not outcome.failures
    assert all("prepared again, since" in one.reason for one in outcome.done)
    asking.assert_whole()


def test_what_comes_out_different_when_prepared_again_is_refused_until_somebody_says_yes(asking: Nights) -> None:
    published(asking, 1)
    batch = prepared(asking, 2)
    answer(asking, ask(asking, batch))
    asking.forget_the_first()
    asking.collector().run()
    before = asking.revision
    # what is kept of a tree is set otherwise meanwhile
    other = asking.with_options(prepare={"owner": {"uid": 7, "gid": 7}})
    refused = other.publish(batch)
    assert {type(one) for one in refused.failures.values()} == {NotApproved}
    assert other.revision == before + 1
    assert set(other.states(batch.run).values()) == {State.FAILED}
    answer(other, ask(other, batch))
    assert not other.publish(batch, try_number=2).failures
    assert set(other.states(batch.run).values()) == {State.PUBLISHED}


def test_one_that_fails_keeps_no_other_from_being_asked_about_and_published(asking: Nights) -> None:
    asking.drop(2, {"A": b"a", "B": b"b"}, lost="A/x86_64")
    batch = asking.planned(2)
    assert list(asking.prepare(batch).failures) == ["A/x86_64"]
    asked = ask(asking, batch)
    assert asked.question is not None
    assert asked.question.subject == f"Publish B/x86_64 to {FQRN}?"
    answer(asking, asked)
    asking.publish(batch)
    assert asking.states(batch.run) == {"A": State.FAILED, "B": State.PUBLISHED}


def test_a_later_pass_of_the_night_does_not_ask_again_what_was_answered_but_asks_what_was_not(asking: Nights) -> None:
    first = prepared(asking, 2, {"A": {"file": b"a"}}, run="night/pass1")
    answer(asking, ask(asking, first), Answer.REJECTED)
    batch = prepared(asking, 2, TREES, run="night/pass2")
    asked = ask(asking, batch, earlier=("night/pass1",))
    assert asked.question is not None
    assert asked.question.subject == f"Publish B/x86_64 to {FQRN}?"
    assert asking.states(batch.run) == {"A": State.SKIPPED, "B": State.PREPARED}
    answer(asking, asked, Answer.EXPIRED)
    last = prepared(asking, 2, TREES, run="night/pass3")
    asked = ask(asking, last, earlier=("night/pass1", "night/pass2"))
    answer(asking, asked)
    assert not asking.publish(last).failures
    assert asking.states(last.run) == {"A": State.SKIPPED, "B": State.PUBLISHED}
    # whoever asks a second time in that run changes his mind about all of it
    asked = ask(asking, last)
    assert asked.question is not None
    assert "A/x86_64" in asked.question.subject


def test_another_run_is_asked_anew_about_the_very_same(asking: Nights) -> None:
    answer(asking, ask(asking, prepared(asking, 2)))
    other = prepared(asking, 2, run="by hand/1")
    assert set(asking.publish(other).failures) == {"A/x86_64", "B/x86_64"}


def test_an_answer_is_waited_for_no_longer_than_the_oldest_changeset_may_live(asking: Nights) -> None:
    batch = prepared(asking, 2, {"A": {"file": b"a"}})
    begun = datetime.now(UTC)
    late = begun + timedelta(hours=22)
    asked = ask_run(asking.site, attempt(clock=lambda: late), [batch])
    assert asked.question is not None
    assert abs(asked.question.deadline - (begun + timedelta(hours=24) - MARGIN)) < timedelta(minutes=1)
    with pytest.raises(PreparedTooLongAgo):
        ask_run(asking.site, attempt(clock=lambda: begun + timedelta(hours=23)), [batch])
    with pytest.raises(PreparedTooLongAgo):
        open_question(asking.site, attempt(clock=lambda: begun + timedelta(hours=23)), asked.question.id)


def test_what_asks_for_nothing_goes_on_unasked(asking: Nights) -> None:
    batch = asking.plan(2, TREES)
    assert (ask(asking).go, ask(asking, batch).go) == (False, False)
    asked = ask(asking, replace(batch, dry_run=True))
    assert (asked.question, asked.go) == (None, True)
    plain = asking.with_options(approval=None)
    assert not plain.prepare(batch).failures
    assert (ask(plain, batch).question, ask(plain, batch).go) == (None, True)
    assert not plain.publish(batch).failures


def test_a_tree_by_hand_is_asked_about_with_the_name_of_its_revision(asking: Nights) -> None:
    asking.drop(2, {"A": b"a"})
    url = asking.site.settings.store("cvmfs").url
    source = next(one.key for one in asking.site.store("cvmfs").list() if "tar" in one.key)
    (batch,) = plan_publication(
        asking.site, attempt("publication/1"), PublicationRequest(FQRN, "/by/hand", f"{url}/{source}", tag="by-hand")
    ).batches
    assert not asking.prepare(batch).failures
    asked = ask(asking, batch)
    assert asked.question is not None
    assert "the new revision is to be named by-hand" in asked.question.body
    answer(asking, asked)
    assert not asking.publish(batch).failures


@pytest.mark.parametrize("how", ["copy", "link"])
def test_what_a_partial_build_takes_from_another_is_asked_about_too(asking: Nights, how: str) -> None:
    asking.with_slot(partial=how)
    published(asking, 2)
    asking.drop(3, {"B": b"newer"}, **base_of(2))
    plan = asking.plan_of(night_of(3))
    assert plan.inherited is not None
    (batch,), taken = plan.batches, plan.inherited
    asking.prepare(batch)
    assert not prepare_inherited(asking.site, attempt(), taken).failures
    refused = inherit_batch(asking.site, attempt(), taken, prepared=True)
    assert [type(one) for one in refused.failures.values()] == [NotApproved]
    asked = ask(asking, batch, taken)
    assert asked.question is not None
    assert "A/x86_64" in asked.question.body
    answer(asking, asked)
    assert not asking.publish(batch).failures
    done = inherit_batch(asking.site, attempt(number=2), taken, prepared=True)
    assert not done.failures
    assert set(asking.states(batch.run).values()) == {State.PUBLISHED}
    assert asking.head().revision.lookup("/nightlies/main/b20261103/A/x86_64") is not None


def test_a_build_is_undone_only_as_it_was_when_somebody_said_yes(asking: Nights) -> None:
    for day in (2, 3):
        published(asking, day)
    wish = Wish("main", "b20261103", "it crashes")

    def look(run: str, wished: bool = False) -> ApprovalRequest:
        return ask_undo(asking.site, attempt(run), plan_undo(asking.site, wish), wished=wished)

    def take_back(run: str) -> int | None:
        def require(plan: UndoPlan) -> None:
            require_approved(asking.site, plan, run, wished=False)

        return undo(asking.site, attempt(run), wish, require=require)[1]

    before = asking.revision
    with pytest.raises(NotApproved):
        take_back("undo/1")
    asked = look("undo/1")
    assert asked.question is not None
    assert "/nightlies/main/b20261103/A/x86_64 (2 files, 1 bytes): goes" in asked.question.body
    answer(asking, asked, Answer.REJECTED)
    with refused(NotApproved, answer=Answer.REJECTED):
        take_back("undo/1")
    answer(asking, look("undo/1"))
    # a tree of it is rebuilt between the question and the answer
    published(asking, 3, {"A": {"file": b"rebuilt"}, "B": {"file": b"b"}}, run="night/rebuilt")
    with refused(NotApproved, answer=None):
        take_back("undo/1")
    answer(asking, look("undo/1"))
    assert take_back("undo/1") == asking.revision > before
    assert take_back("undo/1") is None
    assert look("undo/1").question is None
    asking.assert_whole()


def test_whoever_undoes_may_wish_to_be_asked_where_the_repository_does_not(nights: Nights) -> None:
    nights.published(2, {"A": b"a"})
    plan = plan_undo(nights.site, Wish("main", "b20261102", "it crashes"))
    assert ask_undo(nights.site, attempt("undo/1"), plan, wished=False).question is None
    require_approved(nights.site, plan, "undo/1", wished=False)
    asked = ask_undo(nights.site, attempt("undo/1"), plan, wished=True)
    with pytest.raises(NotApproved):
        require_approved(nights.site, plan, "undo/1", wished=True)
    answer(nights, asked)
    require_approved(nights.site, plan, "undo/1", wished=True)
