"""The machine of stage-out finds nothing wrong, and it finds faults that are put into the program on purpose.

``make soak PART=stageout`` draws afresh; PART=cases puts the faults in, each in twenty times the usual draws.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import Connection, select

from include.errors import NightshiftError
from include.fts.jobs import JobName
from include.fts.states import FailureReason
from include.ledger.engine import reading
from include.stageout.attempts import answers
from include.stageout.attempts.answers import AttemptJudge
from include.stageout.components import census, cleaner, monitor, reporter, submitter
from include.stageout.jobs import declare_dead
from include.stageout.places.verify import CopyDecision, CopyVerdict
from include.stageout.states import JOB_ENDED, TransferJobState, TransferState
from include.stageout.tables import stageout_queues, stageout_transfers
from tests.faults.stageout import passes
from tests.faults.stageout.machine import WORKFLOWS, StageoutBesideTrouble
from tests.faults.stageout.world import LINKS, OWNERS

pytestmark = pytest.mark.timeout(900)
StageoutBesideTrouble.TestCase.settings = settings(
    max_examples=8, stateful_step_count=40, derandomize=True, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
test_stageout_beside_trouble = StageoutBesideTrouble.TestCase
SETTINGS = settings(
    StageoutBesideTrouble.TestCase.settings,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    database=None,
    max_examples=160,
)
Patch = pytest.MonkeyPatch


def canceled_is_stopped(patch: Patch) -> None:
    """A canceled copy counts as stopped although it goes on."""
    patch.setattr(
        AttemptJudge, "_canceled",
        lambda self, row, *_: self.failed(row, FailureReason(None, None, "canceled at FTS")),
    )  # fmt: skip


def late_monitor(patch: Patch) -> None:
    """A monitor whose claim is over records what it found out."""

    def held(_: Connection, jobs: Collection[int], __: str) -> frozenset[int]:
        return frozenset(jobs)

    patch.setattr(monitor, "_held", held)


def new_id_after_an_unclear_submission(patch: Patch) -> None:
    """A job whose submission is unclear is sent again under another id."""

    patch.setattr(submitter, "JobName", lambda _, fts_id: JobName(secrets.token_hex(16), fts_id))


def unclear_is_refused(patch: Patch) -> None:
    """Take an unclear submission for refused, and submit it in a new job."""
    outcome_of = submitter.outcome_of

    def decided(error: Any) -> Any:
        outcome = outcome_of(error)
        return submitter.SubmitOutcome.WAITS if outcome is submitter.SubmitOutcome.UNCLEAR else outcome

    patch.setattr(submitter, "outcome_of", decided)


def nothing_is_compared(patch: Patch) -> None:
    """Count as verified what FTS calls finished."""
    verified = CopyDecision(CopyVerdict.VERIFIED, FailureReason(None, None, "finished"))
    patch.setattr(reporter, "_decisions", lambda _, __, rows, ___: {row.id: verified for row in rows})


def only_sizes_are_compared(patch: Patch) -> None:
    """A checksum is taken as it should be."""
    judge_copies = reporter.judge_copies

    def judged(*args: Any, **fields: Any) -> Any:
        found = judge_copies(*args, **fields)
        verified = CopyDecision(CopyVerdict.VERIFIED, FailureReason(None, None, "the same size"))
        return {
            number: verified if "checksum mismatch" in decision.reason.text else decision
            for number, decision in found.items()
        }

    patch.setattr(reporter, "judge_copies", judged)


def every_attempt_overwrites(patch: Patch) -> None:
    draft_jobs = submitter.draft_jobs

    def drafted(rows: Any, *args: Any, **fields: Any) -> Any:
        found = draft_jobs(rows, *args, **fields)
        for draft in found.jobs:
            object.__setattr__(draft, "overwrites", True)
        return found

    patch.setattr(submitter, "draft_jobs", drafted)


def every_failure_is_proof(patch: Patch) -> None:
    """After any failure the next attempt may overwrite."""
    patch.setattr(answers, "proves_own_destination", lambda *_: True)


def cleaner_ignores_registration(patch: Patch) -> None:
    """The cleaner removes the sources of what is done, too."""
    columns = stageout_transfers.c
    done = (
        select(columns.source_name, stageout_queues.c.source, stageout_queues.c.owner)
        .join(stageout_queues, columns.queue == stageout_queues.c.id)
        .where(columns.state == TransferState.DONE.value)
    )

    def cleaned(stageout: Any, **fields: Any) -> Any:
        with reading(stageout.ledger) as connection:
            rows = connection.execute(done).all()
        for row in rows:
            stageout.place(row.source, row.owner).remove([row.source_name])
        return cleaner.clean(stageout, **fields)

    patch.setitem(passes.PASSES, "clean", partial(passes._run, cleaned))  # type: ignore[arg-type]


def copies_are_not_looked_at(patch: Patch) -> None:
    """The cleaner takes a copy that was verified for one that is there."""
    patch.setattr(cleaner, "_lost", lambda *_: {})


def census_declares_dead(patch: Patch) -> None:
    """The census declares jobs dead in which nothing has happened for an hour."""
    asked = census._asked

    def judged(stageout: Any, client: Any, rows: Any, now: Any) -> Any:
        for row in rows:
            if TransferJobState(row.state) not in JOB_ENDED:
                declare_dead(stageout.ledger, row.fts_id, by="the census", now=now, margin=timedelta(minutes=10))
        yield from asked(stageout, client, rows, now)

    patch.setattr(census, "_asked", judged)


SEEDS: tuple[Callable[[Patch], None], ...] = (
    canceled_is_stopped, late_monitor, new_id_after_an_unclear_submission, unclear_is_refused, nothing_is_compared,
    only_sizes_are_compared, every_attempt_overwrites, every_failure_is_proof, cleaner_ignores_registration,
    census_declares_dead, copies_are_not_looked_at,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.__name__)
def test_the_machine_finds(seed: Callable[[Patch], None], monkeypatch: Patch) -> None:
    seed(monkeypatch)
    with pytest.raises((AssertionError, NightshiftError, ExceptionGroup)):
        run_state_machine_as_test(StageoutBesideTrouble, settings=SETTINGS)


def test_a_workflow_is_unknown_when_its_files_are_archived_and_its_requests_deleted() -> None:
    machine = StageoutBesideTrouble()
    owner, workflow = OWNERS[0], WORKFLOWS[0]
    machine.begin([LINKS[0], LINKS[1]], declared=True)
    machine.every_file_ends()
    for _ in range(4):
        machine.wait("week")
        machine.work()
    machine.close(owner, workflow)
    assert machine.world.closed == set()
    machine.nothing_is_lost_or_doubled()
    machine.teardown()
