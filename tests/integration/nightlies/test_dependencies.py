"""Artifacts go in after what they depend on, whichever task comes first; rebuilds of many nights move nothing back."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from include.cvmfs.errors import RepositoryFrozen
from include.gateway.errors import GatewayUnreachable
from include.monitoring.render import read_summary
from include.nightlies.errors import DependencyFailed, DependencyPending
from include.nightlies.records import publications as records
from include.nightlies.rules.passes import Pass, PassDecision, Turn
from include.nightlies.rules.publication import Publication, State, Wait
from include.nightlies.steps.build_status import Watch
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.publish import publish_batch, reserve_run
from include.nightlies.steps.values import Batch, Night
from include.nightlies.steps.verify import tidy_run
from include.provenance.interventions import freeze, thaw
from include.publishers.native import NativePublisher
from include.settings.model import Slot
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.nights import Nights, night_of
from tests.site import FQRN, now

HOUR = timedelta(hours=1)


def planned(nights: Nights, build: Build, run: str | None = None) -> dict[str, Batch]:
    """A batch for each artifact, as Airflow maps them."""
    build.store_in(nights.site.store("cvmfs"))
    night = night_of(2)
    plan = plan_night(nights.site, attempt(), replace(night, run=run or night.run))
    reserve_run(nights.site, attempt(), plan.batches)
    return {batch.items[0].name: batch for batch in plan.batches}


def row_of(nights: Nights, batch: Batch) -> Publication:
    """The publication of the only artifact of a batch."""
    row = records.publication(nights.site.ledger, batch.key(batch.items[0]))
    assert row is not None
    return row


def three() -> Build:
    """C needs B, and B needs A."""
    build = Build("2026-11-02")
    for name, needs in {"A": [], "B": ["A"], "C": ["B"]}.items():
        build.add(name, "x86_64", tree({"file": name.encode()}), dependencies=needs)
    return build


def test_what_comes_too_early_waits_until_what_it_depends_on_is_published(nights: Nights) -> None:
    batches = planned(nights, three())
    assert list(batches) == ["A/x86_64", "B/x86_64", "C/x86_64"]
    for batch in batches.values():
        assert not nights.prepare(batch).failures
    before = nights.revision
    for name in ("C/x86_64", "B/x86_64"):
        (busy,) = publish_batch(nights.site, attempt(), batches[name]).busy.values()
        assert isinstance(busy, DependencyPending)
        assert busy.time_remaining_s > 3600
        row = row_of(nights, batches[name])
        assert (row.state, row.reason.partition(" UTC: ")[2]) == (State.PREPARED, busy.reason)
        publish_batch(nights.site, attempt(), batches[name])
        assert row_of(nights, batches[name]) == row, "it waits for the same, since the same time"
    assert nights.revision == before
    reasons = []
    for batch in batches.values():
        (done,) = publish_batch(nights.site, attempt(), batch).done
        assert done.state is State.PUBLISHED
        reasons.append(done.reason)
    assert ["waited " in reason for reason in reasons] == [False, True, True]
    assert reasons[1].endswith(" s: it depends on A/x86_64 (prepared)")


def test_who_holds_the_path_that_an_artifact_waits_for_is_recorded(nights: Nights) -> None:
    (batch,) = planned(nights, Build("2026-11-02").add("A", "x86_64", tree({"file": b"a"}))).values()
    nights.prepare(batch)
    with nights.site.gateway(batch.repository) as gateway:
        lease = gateway.acquire(batch.repository, batch.items[0].destination, hostname="d/r/other try 1")
        assert publish_batch(nights.site, attempt(), batch).busy
        row = nights.publication(batch)
        assert row.state is State.PUBLISHING
        held = f"the lease on {batch.items[0].destination}, held by d/r/other try 1"
        wait = Wait.of_reason(row.reason)
        assert wait is not None
        assert wait.what == held
        gateway.drop(lease)
    (done,) = publish_batch(nights.site, attempt(), batch).done
    assert done.reason.endswith(f" s: {held}")


def test_a_wait_ends_with_the_lease_and_goes_on_since_its_beginning_if_the_gateway_is_away_then(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, passed = now().replace(microsecond=0), [timedelta()]

    def lease(_: object) -> None:
        passed.append(passed[-1] + timedelta(minutes=1))

    (batch,) = planned(nights, Build("2026-11-02").add("A", "x86_64", tree({"file": b"a"}))).values()
    nights.prepare(batch)
    this_try = replace(attempt(outlast=True, clock=lambda: began + passed[-1]), on_lease=lease)
    with nights.site.gateway(batch.repository) as gateway:
        held = gateway.acquire(batch.repository, batch.items[0].destination, hostname="d/r/other try 1")
        assert publish_batch(nights.site, this_try, batch).busy
        gateway.drop(held)
    waiting, during = nights.publication(batch), list[Publication]()

    def away(*_: object) -> None:
        during.append(nights.publication(batch))
        raise GatewayUnreachable("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(NativePublisher, "_commit", away)
        with pytest.raises(GatewayUnreachable):
            publish_batch(nights.site, this_try, batch)
    assert [(row.state, row.reason) for row in during] == [(State.PUBLISHING, "try 1")]
    assert during[0].updated_at - waiting.updated_at == timedelta(minutes=1)
    before, after = (Wait.of_reason(row.reason) for row in (waiting, nights.publication(batch)))
    assert before is not None
    assert after == replace(before, what="an outage, gateway-unreachable")
    (done,) = publish_batch(nights.site, this_try, batch).done
    assert done.reason.endswith("; waited 60 s: an outage, gateway-unreachable"), "publishing took another minute"


def test_what_a_freeze_keeps_out_says_so_until_it_is_published(nights: Nights) -> None:
    (batch,) = planned(nights, Build("2026-11-02").add("A", "x86_64", tree({"file": b"a"}))).values()
    nights.prepare(batch)
    freeze(nights.site, FQRN, reason="disks are moved", who="ann", until=None, now=now())
    rows = []
    for _ in range(2):
        with pytest.raises(RepositoryFrozen):
            publish_batch(nights.site, attempt(), batch)
        rows.append(nights.publication(batch))
    assert rows[0] == rows[1]
    wait = Wait.of_reason(rows[0].reason)
    assert wait is not None
    assert wait.what.startswith(f"repository {FQRN}, which is frozen since")
    thaw(nights.site, FQRN, who="ann", now=now())
    (done,) = publish_batch(nights.site, attempt(), batch).done
    assert done.reason.endswith(f" s: {wait.what}")


def test_a_failed_dependency_may_come_yet_and_at_the_last_try_all_that_need_it_are_skipped(nights: Nights) -> None:
    batches = planned(nights, three().add("D", "x86_64", tree({"file": b"d"})).lose("A", "x86_64"))
    assert nights.prepare(batches["A/x86_64"]).failures
    for name in ("B/x86_64", "C/x86_64", "D/x86_64"):
        assert not nights.prepare(batches[name]).failures
    early = publish_batch(nights.site, attempt(last=False), batches["B/x86_64"])
    (later,) = early.failures.values()
    assert isinstance(later, DependencyFailed)
    assert later.retryable
    for name in ("B/x86_64", "C/x86_64"):
        (done,) = publish_batch(nights.site, attempt(number=2), batches[name]).done
        assert done.state is State.SKIPPED
    assert "blocked: it depends on B/x86_64, which was skipped: blocked: it depends on A/x86_64" in done.reason
    (other,) = publish_batch(nights.site, attempt(), batches["D/x86_64"]).done
    assert other.state is State.PUBLISHED
    # the artifact comes, and a run that is planned anew installs all of it
    three().store_in(nights.site.store("cvmfs"))
    again = plan_night(nights.site, attempt(number=2), night_of(2), max_mapped=1)
    (batch,) = again.batches
    assert not nights.prepare(batch, 2).failures
    assert [one.state for one in nights.publish(batch, 3).done] == [State.PUBLISHED] * 3


def test_what_is_blocked_leaves_no_more_to_be_seen_than_what_failed(nights: Nights) -> None:
    batches = planned(nights, three().add("D", "x86_64", tree({"file": b"d"})).lose("A", "x86_64"))
    assert nights.prepare(batches.pop("A/x86_64")).failures
    for batch in batches.values():
        assert not nights.prepare(batch).failures
        publish_batch(nights.site, attempt(), batch)
    tidy_run(nights.site, attempt(), list(batches.values()))
    there = nights.head()
    assert [name for name in "ABCD" if there.revision.lookup(f"/nightlies/main/b20261102/{name}")] == ["D"]
    # they come, and another run installs them
    batches = planned(nights, three().add("D", "x86_64", tree({"file": b"d"})), "night/next")
    for batch in batches.values():
        assert not nights.prepare(batch).failures
        (done,) = publish_batch(nights.site, attempt(), batch).done
        assert done.state is State.PUBLISHED
    nights.assert_whole()


def test_a_dependency_that_the_index_spoilt_blocks_what_needs_it_before_anything_is_prepared(nights: Nights) -> None:
    build = three()
    build.artifacts["A/x86_64"]["sha256"] = "no sum"
    batches = planned(nights, build)
    assert list(batches) == ["C/x86_64"]
    found = {one.project: one for one in nights.publications("night/2")}
    assert found["B"].state is State.FAILED
    assert "blocked: it depends on A/x86_64, which is rejected" in found["B"].reason


@pytest.mark.parametrize("comes", [True, False], ids=["its dependency comes", "its dependency fails again"])
def test_a_late_artifact_whose_dependency_failed_earlier_waits_for_the_last_pass(nights: Nights, comes: bool) -> None:
    store = nights.site.store("cvmfs")
    slot = nights.site.settings.slot("main")
    runs = [f"night/pass{number}" for number in (1, 2, 3)]

    def night_of_pass(number: int) -> Night:
        earlier = tuple(runs[: number - 1])
        last = number == len(runs)
        return Night(runs[number - 1], "main", date(2026, 11, 2), "t", last=last, number=number, earlier=earlier)

    def waits_for(number: int) -> PassDecision:
        """What the watch of a pass says of the index as it is, when there was time for all to gather."""
        watch = Watch(lambda: nights.site, night_of_pass(number), Pass("x", number, until=now() + HOUR))
        watch.look(now())
        return watch.look(now() + HOUR / 2)

    def a_pass(number: int, build: Build) -> tuple[dict[str, str], dict[str, str]]:
        """State and reason of each artifact that the pass took."""
        build.store_in(store)
        assert waits_for(number).turn is (Turn.LAST if number == len(runs) else Turn.GO)
        night = night_of_pass(number)
        plan = nights.plan_of(night)
        for batch in plan.batches:
            nights.prepare(batch)
            nights.publish(batch)
        rows = nights.publications(night.run)
        return {f"{one.project}": one.state.value for one in rows}, {f"{one.project}": one.reason for one in rows}

    def build(*projects: str, complete: bool = False) -> Build:
        whole = three().add("D", "x86_64", tree({"file": b"d"}))
        whole.artifacts = {name: one for name, one in whole.artifacts.items() if name.partition("/")[0] in projects}
        whole.index["complete"] = complete
        return whole

    assert a_pass(1, build("A").lose("A", "x86_64"))[0] == {"A": "failed"}
    assert a_pass(2, build("A", "B", "C", "D").lose("A", "x86_64"))[0] == {"D": "published"}
    assert summary_of(nights, slot)["B"].startswith("held back: it depends on A/x86_64, which failed")
    # what is only held back begins no pass, or one would follow the other until the night ends
    waiting = waits_for(3)
    assert waiting.turn is Turn.WAIT
    assert "2 held back by what they depend on" in waiting.reason
    last = build("A", "B", "C", "D", complete=True)
    states, reasons = a_pass(3, last if comes else last.lose("A", "x86_64"))
    if comes:
        assert states == {"A": "published", "B": "published", "C": "published", "D": "unchanged"}
    else:
        assert states == {"A": "failed", "B": "skipped", "C": "skipped", "D": "unchanged"}
        assert reasons["B"].startswith("blocked: it depends on A/x86_64, which failed: ")
        assert "it depends on B/x86_64, which was skipped: blocked: it depends on A/x86_64" in reasons["C"]


def summary_of(nights: Nights, slot: Slot) -> dict[str, str]:
    """What the summary says of each project at this moment."""
    seen = read_summary(nights.site.ledger, slot, date(2026, 11, 2), now=now())
    return {one.project: one.reason for one in seen.lines}
