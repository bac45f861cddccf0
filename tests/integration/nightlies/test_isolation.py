"""Runs of one slot at the same time: they publish each artifact once, and none is kept waiting by another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial

import pytest

from include.gateway.errors import PathBusy
from include.nightlies.rules.states import State
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.publish import publish_batch
from include.nightlies.steps.reserve import reserve_run
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
