"""Many publications at once are recorded as they are one by one, on every kind of database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.nightlies.errors import StaleAttempt
from include.nightlies.records import bulk as many
from include.nightlies.records import publications as records
from include.nightlies.records.bulk import plan_many
from include.nightlies.rules.publication import Move, Planned, PublicationKey
from include.nightlies.rules.states import Phase, State

NOW = datetime(2026, 11, 21, 2, 30, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=9)
RUN = "nightly_install_main/scheduled__1"
KEYS = [PublicationKey("n.example.org", f"/nightlies/main/b42/P{number:04}/opt", RUN) for number in range(1200)]
SHA = "ab" * 32


def wanted(keys, reason="planned"):
    return {key: Planned(None, SHA, reason) for key in keys}


def publish(ledger, key):
    for to, phase in ((State.PREPARING, Phase.PREPARE), (State.PREPARED, Phase.PREPARE)):
        records.move(ledger, key, Move(to, phase, to.value), try_number=1, now=NOW)
    for to in (State.PUBLISHING, State.PUBLISHED):
        records.move(ledger, key, Move(to, Phase.PUBLISH, to.value), try_number=1, now=NOW)


def test_what_is_planned_together_is_what_would_be_planned_one_by_one(ledger):
    found = plan_many(ledger, wanted(KEYS), try_number=1, now=NOW)
    assert list(found) == KEYS
    assert {one.key for one in records.publications_of_run(ledger, RUN)} == set(KEYS)
    other = replace(KEYS[0], run_id="another")
    alone = records.plan(ledger, other, Planned(sha256=SHA), try_number=1, now=NOW)
    assert found[KEYS[0]] == replace(alone, id=found[KEYS[0]].id, run_id=RUN)


def test_the_same_try_again_changes_nothing_and_plans_what_is_new(ledger):
    first = plan_many(ledger, wanted(KEYS[:3]), try_number=1, now=NOW)
    publish(ledger, KEYS[0])
    again = plan_many(ledger, wanted(KEYS[:5]), try_number=1, now=LATER)
    assert again[KEYS[0]].state is State.PUBLISHED
    assert again[KEYS[1]] == first[KEYS[1]]
    assert [again[key].created_at for key in KEYS[2:5]] == [NOW, LATER, LATER]


def test_a_later_try_plans_anew_and_one_that_is_replaced_plans_nothing(ledger):
    plan_many(ledger, wanted(KEYS[:3]), try_number=1, now=NOW)
    publish(ledger, KEYS[0])
    anew = plan_many(ledger, wanted(KEYS[:3], "again"), try_number=2, now=LATER)
    assert anew[KEYS[0]].state is State.PLANNED
    assert anew[KEYS[0]].reason.startswith("again; planned again, was published")
    with pytest.raises(StaleAttempt):
        plan_many(ledger, wanted(KEYS[:5]), try_number=1, now=LATER)
    assert {one.key for one in records.publications_of_run(ledger, RUN)} == set(KEYS[:3]), "all of it or nothing"


def test_what_was_read_back_together_is_noted_and_what_is_not_published_is_left(ledger):
    keys = KEYS[:3]
    plan_many(ledger, wanted(keys), try_number=1, now=NOW)
    for key in keys[:2]:
        publish(ledger, key)
    many.note_verified(ledger, keys, now=LATER)
    many.note_verified(ledger, [], now=LATER)
    found = {one.key: one.verified_at for one in records.publications_of_run(ledger, RUN)}
    assert [found[key] for key in keys] == [LATER, LATER, None]
