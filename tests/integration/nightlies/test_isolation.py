"""Runs of one slot at the same time: they publish each artifact once, and none is kept waiting by another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial

import pytest

from include.gateway.errors import PathBusy
from include.nightlies.records import builds
from include.nightlies.rules.publication import State
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.publish import publish_batch, reserve_run
from include.nightlies.steps.values import Batch
from include.nightlies.steps.verify import tidy_run, verify_run
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.fakes.together import together
from tests.nights import Nights, night_of

DAY = date(2026, 11, 9)
PROJECTS = ("Boole", "Brunel", "DaVinci", "Gaudi", "LHCb", "Rec")
TRIES = 50


def drop(nights: Nights, *projects: str, complete: bool = True) -> None:
    nights.drop(DAY.day, {project: project.encode() for project in projects}, complete=complete)


def plan(nights: Nights, run: str, **more: object) -> tuple[Batch, ...]:
    return plan_night(nights.site, attempt(), night_of(DAY.day, run, **more)).batches


def install(nights: Nights, run: str, batches: tuple[Batch, ...]) -> None:
    """The steps of a run, each path that is busy tried again as the operators do."""
    for _ in range(TRIES):
        try:
            reserve_run(nights.site, attempt(holder=run), batches)
        except PathBusy:  # another run's lease on the build's directory
            threading.Event().wait(0.05)
        else:
            break
    for batch in batches:
        assert not prepare_batch(nights.site, attempt(), batch).failures
        for _ in range(TRIES):
            outcome = publish_batch(nights.site, attempt(holder=run), batch)
            assert not outcome.failures
            if not outcome.busy:
                break
            threading.Event().wait(0.05)


def states(nights: Nights, *runs: str) -> list[tuple[str | None, State]]:
    return [(done.project, done.state) for run in runs for done in nights.publications(run)]


def test_two_runs_of_one_date_at_once_publish_each_artifact_once(nights: Nights) -> None:
    drop(nights, *PROJECTS)
    planned = {run: plan(nights, run) for run in ("schedule/1", "hand/1")}
    before = nights.head().manifest.revision
    together(partial(install, nights, run, batches) for run, batches in planned.items())
    done = states(nights, *planned)
    assert {state for _, state in done} <= {State.PUBLISHED, State.UNCHANGED}
    assert sorted(project for project, state in done if state is State.PUBLISHED) == sorted(PROJECTS)
    # one skeleton, and at most one revision for each artifact, however many runs there were
    assert nights.head().manifest.revision <= before + 1 + len(PROJECTS)
    nights.assert_whole()
    assert nights.client().leases() == []


def test_a_pass_leaves_alone_what_another_run_is_at_and_takes_the_rest(nights: Nights) -> None:
    drop(nights, "Gaudi", "LHCb", complete=False)
    by_hand = plan(nights, "hand/2", projects=("Gaudi",))
    for batch in by_hand:
        assert not prepare_batch(nights.site, attempt(), batch).failures
    batches = plan(nights, "schedule/2", last=False)
    assert [item.name for batch in batches for item in batch.items] == ["LHCb/x86_64"]
    install(nights, "schedule/2", batches)
    install(nights, "hand/2", by_hand)
    assert states(nights, "schedule/2", "hand/2") == [("LHCb", State.PUBLISHED), ("Gaudi", State.PUBLISHED)]


def test_late_artifacts_go_in_once_pass_by_pass_and_the_last_pass_finds_all_of_them(nights: Nights) -> None:
    runs: list[str] = []
    for number, projects in enumerate((PROJECTS[:2], PROJECTS[:5], PROJECTS), start=1):
        drop(nights, *projects, complete=False)
        batches = plan(nights, f"night/{number}", last=False, number=number, earlier=tuple(runs))
        install(nights, f"night/{number}", batches)
        runs.append(f"night/{number}")
    assert states(nights, *runs) == [(project, State.PUBLISHED) for project in PROJECTS]
    drop(nights, *PROJECTS)
    revision = nights.head().manifest.revision
    assert plan(nights, "night/4", number=4, earlier=tuple(runs)) == ()
    assert states(nights, "night/4") == [(project, State.UNCHANGED) for project in PROJECTS]
    assert nights.head().manifest.revision == revision


def spoilt(nights: Nights, run: str, *spoilt: str) -> tuple[Batch, ...]:
    """A run that reserved its places and prepared nothing of ``spoilt``."""
    batches = plan(nights, run)
    reserve_run(nights.site, attempt(holder=run), batches)
    failures = [prepare_batch(nights.site, attempt(), batch).failures for batch in batches]
    assert sorted(name for found in failures for name in found) == sorted(f"{project}/x86_64" for project in spoilt)
    return batches


def lose(nights: Nights, *projects: str) -> None:
    for project in projects:
        key = f"main/{DAY.isoformat()}/b{DAY.isoformat().replace('-', '')}/{project}-x86_64.tar.gz"
        nights.site.store("cvmfs").delete([key])


@pytest.mark.parametrize("others", [(), ("Rec",)], ids=["nothing of the build is left", "the rest is in"])
def test_what_is_mended_after_its_reservation_was_tidied_away_goes_in_by_its_own_steps_alone(
    nights: Nights, others: tuple[str, ...]
) -> None:
    drop(nights, "Gaudi", *others)
    lose(nights, "Gaudi")
    batches = spoilt(nights, "night/1", "Gaudi")
    for batch in batches:
        publish_batch(nights.site, attempt(holder="night/1"), batch)
    assert len(tidy_run(nights.site, attempt(holder="night/1"), batches)) == 1
    drop(nights, "Gaudi", *others)
    (batch,) = [one for one in batches if one.items[0].name == "Gaudi/x86_64"]
    assert not prepare_batch(nights.site, attempt(number=2), batch).failures
    outcome = publish_batch(nights.site, attempt(holder="night/1", number=2), batch)
    assert not outcome.failures
    assert states(nights, "night/1") == [(project, State.PUBLISHED) for project in sorted(["Gaudi", *others])]
    head = nights.head()
    build = f"/nightlies/main/b{DAY.isoformat().replace('-', '')}"
    above = (build, "/nightlies/main")
    assert [path for path in above if not head.revision.lookup(path).mountpoint] == []
    nights.assert_whole()
    assert nights.client().leases() == []


def test_tidying_leaves_what_another_run_has_to_publish_and_that_one_tidies_in_its_turn(nights: Nights) -> None:
    drop(nights, "Gaudi", "LHCb")
    lose(nights, "Gaudi", "LHCb")
    first = spoilt(nights, "night/1", "Gaudi", "LHCb")
    drop(nights, "Gaudi")
    second = plan(nights, "night/2")
    reserve_run(nights.site, attempt(holder="night/2"), second)
    lhcb, gaudi = (Build(DAY.isoformat()).destination(project, "x86_64") for project in ("LHCb", "Gaudi"))
    assert tidy_run(nights.site, attempt(holder="night/1"), first) == (lhcb.rpartition("/")[0],)
    assert nights.head().revision.nested_at(gaudi) is not None
    lose(nights, "Gaudi")
    for batch in second:
        assert prepare_batch(nights.site, attempt(), batch).failures
    assert tidy_run(nights.site, attempt(holder="night/2"), second) == ("/nightlies",)
    nights.assert_whole()


# -- rebuilds that cross each other: what the index lists last is there in the end, however slow a night is


def installed(nights: Nights, run: str, **more: object) -> dict[str, State]:
    """A whole run; the state of each project that it took."""
    install(nights, run, plan(nights, run, **more))
    return nights.states(run)


def stands(nights: Nights, project: str) -> bytes:
    return nights.head().revision.read(f"/nightlies/main/b20261109/{project}/x86_64/file")


@pytest.mark.parametrize("tries", [1, 3])
def test_a_run_that_is_overtaken_by_a_rebuild_does_not_put_the_earlier_bytes_back(nights: Nights, tries: int) -> None:
    nights.drop(DAY.day, {"A": b"first", "B": b"same"})
    slow = nights.planned(DAY.day, "night/slow")
    assert not nights.prepare(slow).failures
    nights.drop(DAY.day, {"A": b"rebuilt", "B": b"same"})
    assert installed(nights, "night/quick") == {"A": State.PUBLISHED, "B": State.PUBLISHED}
    before = nights.revision
    for number in range(1, tries + 1):
        assert not nights.publish(slow, try_number=number).failures
    assert stands(nights, "A") == b"rebuilt"
    assert nights.revision == before
    found = {one.project: one for one in nights.publications("night/slow")}
    assert {name: one.state for name, one in found.items()} == {"A": State.SKIPPED, "B": State.UNCHANGED}
    assert "superseded: build b20261109 lists it with another sum now" in found["A"].reason
    nights.assert_whole()


def test_a_rebuild_that_comes_while_the_earlier_one_goes_in_replaces_it(nights: Nights) -> None:
    nights.drop(DAY.day, {"A": b"first"})
    first = nights.planned(DAY.day, "night/1")
    assert not nights.prepare(first).failures
    nights.drop(DAY.day, {"A": b"rebuilt"})
    second = nights.planned(DAY.day, "night/2")
    assert not nights.prepare(second).failures
    moved, tries = threading.Condition(), [0, 0]
    ended: dict[int, object] = {}

    def work(which: int, batch: Batch) -> None:
        other = 1 - which
        while which not in ended:
            seen = tries[other]
            try:
                outcome = nights.publish(batch, try_number=tries[which] + 1)
                again = bool(outcome.busy or outcome.failures)
            except PathBusy:  # by the reservation of the other one
                again = True
            with moved:
                tries[which] += 1
                moved.notify_all()
                # whatever is in the way is a try of the other one, which ends
                if not again or not moved.wait_for(lambda seen=seen: tries[other] > seen, 60):
                    ended[which] = "in the way of nobody" if again else outcome

    together([lambda: work(0, first), lambda: work(1, second)])
    assert stands(nights, "A") == b"rebuilt", ended
    (last,) = nights.publications("night/2")
    assert last.state is State.PUBLISHED
    nights.assert_whole()


def test_rebuilds_in_one_index_go_in_once_each_and_a_rebuild_back_is_one_too(nights: Nights) -> None:
    runs: list[str] = []
    for number, (a, b, c) in enumerate([(b"a1", b"b1", b"c"), (b"a2", b"b2", b"c"), (b"a1", b"b2", b"c")], start=1):
        nights.drop(DAY.day, {"A": a, "B": b, "C": c}, complete=False)
        before, run = nights.revision, f"night/{number}"
        states = installed(nights, run, last=False, number=number, earlier=tuple(runs))
        assert states == dict.fromkeys({1: "ABC", 2: "AB", 3: "A"}[number], State.PUBLISHED)
        assert nights.revision - before == len(states) + (number == 1)
        assert (stands(nights, "A"), stands(nights, "B"), stands(nights, "C")) == (a, b, c)
        runs.append(run)
    nights.drop(DAY.day, {"A": b"a1", "B": b"b2", "C": b"c"})
    before = nights.revision
    assert set(installed(nights, "night/4", number=4, earlier=tuple(runs)).values()) == {State.UNCHANGED}
    assert nights.revision == before
    nights.assert_whole()


def test_a_plan_that_read_its_index_before_a_rebuild_was_recorded_reads_it_again(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.drop(DAY.day, {"A": b"first"})
    head, meanwhile = nights.site.head, ["night/quick"]

    def slowly(fqrn: str) -> object:
        """Between an index that is read and its build that is recorded, another run does both of a later one."""
        if meanwhile:
            run = meanwhile.pop()
            nights.drop(DAY.day, {"A": b"rebuilt"})
            nights.planned(DAY.day, run)
        return head(fqrn)

    monkeypatch.setattr(nights.site, "head", slowly)
    batch = nights.planned(DAY.day, "night/slow")
    recorded = builds.build(nights.site.ledger, "main", "b20261109")
    assert recorded is not None
    artifact = recorded.artifact("A", "x86_64")
    assert artifact is not None
    assert artifact.artifact.sha256 == batch.items[0].sha256
    assert not nights.prepare(batch).failures
    assert not nights.publish(batch).failures
    assert stands(nights, "A") == b"rebuilt"


# -- more artifacts in one night than Airflow maps over; bench-night takes 1,500

OF_EACH, PLATFORMS = 4, 3
MAPPED = 8  # fewer than there are artifacts, as Airflow's limit is for a night of thousands
AT_ONCE = 6  # publish tasks


def test_more_artifacts_than_airflow_maps_over_pass_through_in_batches(nights: Nights) -> None:
    build = Build("2026-11-20")
    for platform in range(PLATFORMS):
        for project in range(OF_EACH):
            build.add(f"P{project:03}", f"x86_64-{platform}", tree({"version": f"{project} {platform}".encode()}))
    build.store_in(nights.site.store("cvmfs"))
    night = night_of(20, "night/many")
    batches = plan_night(nights.site, attempt(), night, max_mapped=MAPPED).batches
    assert sum(len(batch.items) for batch in batches) == OF_EACH * PLATFORMS > MAPPED
    assert len(batches) == MAPPED
    reserve_run(nights.site, attempt(), batches)

    def publish(batch: Batch) -> None:
        assert not prepare_batch(nights.site, attempt(), batch).failures
        outcome = publish_batch(nights.site, attempt(), batch)
        assert not outcome.failures
        assert not outcome.busy

    with ThreadPoolExecutor(AT_ONCE) as tasks:
        list(tasks.map(publish, batches))
    verify_run(nights.site, attempt(night.run))
    passed = nights.gate(night)
    assert passed.counts == {State.PUBLISHED.value: OF_EACH * PLATFORMS}
    done = nights.publications(night.run)
    assert len({one.destination for one in done}) == OF_EACH * PLATFORMS
    assert nights.client().leases() == []
    revision = nights.head().manifest.revision
    assert plan_night(nights.site, attempt(), night_of(20, "night/again")).batches == ()
    assert nights.head().manifest.revision == revision
