"""Retention on a real store and gateway: what goes, what leads to a build or names it, and what comes in between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from sqlalchemy import delete
from typer.testing import CliRunner

from include.cli.nightly import app
from include.cvmfs.commit.tags import add_tag, remove_tags
from include.gateway.errors import PathBusy
from include.nightlies.records import tables
from include.nightlies.removal import retention as step
from include.nightlies.removal.retention import RemovedBuilds, RetentionPlan, plan_retention, remove_expired
from include.nightlies.rules.publication import State
from include.nightlies.steps.values import Night
from include.provenance.records import ChangeKind, documents, newest, provenance
from include.settings.errors import SettingsError
from include.site.changes import linking
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.fakes.refused import refused
from tests.integration.nightlies.conftest import Once
from tests.nights import FOLDER, Nights, base_of
from tests.site import FQRN, SIGNER

AT = datetime(2026, 11, 20, 6, tzinfo=UTC)
BY_SCHEDULE = "nightly_install_main/scheduled__{}T00:30:00+00:00"


@pytest.fixture
def slots(nights: Nights, once: Once) -> Nights:
    """Four nights, each published in its night; two stay by the rules, `latest` is at the last."""
    nights.with_slot("other", tag="{slot}-{build_id}")
    nights.with_slot(partial="link", links={"weekdays": False}, retention={"keep_last": 2, "minimum": 1})
    once("retention", lambda: [install(nights, day, {"A": b"a%d" % day, "B": b"b%d" % day}) for day in (2, 3, 4, 5)])
    return nights


def install(
    nights: Nights, day: int | date, projects: Mapping[str, bytes], run: str = BY_SCHEDULE, at: datetime | None = None,
    *, linked: bool = True, **index: object,
) -> None:  # fmt: skip
    """A night of its own date at two in the morning, or `at` another time."""
    build_date = day if isinstance(day, date) else date(2026, 11, day)
    when = at or datetime.combine(build_date, time(2), UTC)
    build = Build(build_date.isoformat(), index=index)
    for project, content in projects.items():
        build.add(project, "x86_64", tree({"file": content}))
    nights.store_build(build)
    nights.clock = lambda: when
    night = Night(run.format(build_date), "main", build_date, "test")
    nights.to_the_gate(night)
    if linked:
        nights.link(night)


def planned(nights: Nights, at: datetime = AT) -> RetentionPlan:
    return plan_retention(nights.site, "main", now=at)


def removed(nights: Nights, plan: RetentionPlan, run: str = "gc/1") -> RemovedBuilds:
    return remove_expired(nights.site, attempt(run, clock=lambda: AT), plan)


def names(directories: Any) -> list[str]:
    return sorted(one.rpartition("/")[2] for one in directories)


def expired(plan: RetentionPlan) -> list[str]:
    return names(one.build.directory for one in plan.expired)


def held(nights: Nights) -> list[str]:
    return [one.name for one in nights.head().revision.listing(FOLDER) if one.is_directory]


def reason(plan: RetentionPlan, build_id: str) -> str:
    return next(one.reason for one in plan.decisions if one.build.key.build_id == build_id)


def link_by_hand(nights: Nights, path: str, target: str) -> None:
    linking(path, target, now=AT).commit(nights.site, FQRN, holder="operator", now=AT)


def test_expired_builds_go_in_one_revision_with_a_signed_record_each_and_only_once(slots: Nights) -> None:
    before, plan = slots.revision, planned(slots)
    assert (expired(plan), slots.revision) == (["b20261102", "b20261103"], before)
    # it does not matter that they were published this week
    assert expired(planned(slots, datetime(2026, 11, 5, 6, tzinfo=UTC))) == expired(plan)
    with refused(SettingsError):  # a slot without rules
        plan_retention(slots.site, "other", now=AT)
    assert plan.bytes == 2 * 2 * len(b"a2")
    done = removed(slots, plan)
    assert (names(done.removed), done.revision, done.kept) == (expired(plan), before + 1, {})
    assert (slots.revision, held(slots)) == (before + 1, ["b20261104", "b20261105"])
    ((record, _, worth),) = documents(slots.site, FQRN, f"{FOLDER}/b20261102")
    assert (record.kind, record.revision, record.build_id, worth.good) == (
        ChangeKind.REMOVED, before + 1, "b20261102", True,
    )  # fmt: skip
    assert record.reason == "retention: 18 days old; kept are the newest 2"
    assert planned(slots).expired == ()
    again = removed(slots, plan)
    assert (again.revision, again.removed, names(again.absent)) == (None, (), expired(plan))
    assert removed(slots, planned(slots)) == RemovedBuilds(None)
    assert slots.revision == before + 1
    assert len(documents(slots.site, FQRN, f"{FOLDER}/b20261102")) == 1
    slots.assert_whole()


def test_a_removal_whose_try_died_before_it_was_recorded_is_recorded_by_the_next_one(
    slots: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(slots)
    with monkeypatch.context() as dying:
        dying.setattr(step, "_record", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            removed(slots, plan)
    assert held(slots) == ["b20261104", "b20261105"]
    assert names(removed(slots, plan).absent) == ["b20261102", "b20261103"]
    last = newest(slots.site.ledger, FQRN, f"{FOLDER}/b20261103")
    assert last is not None
    assert (last.kind, last.reason) == (ChangeKind.REMOVED, f"retention: {reason(plan, 'b20261103')}")


@pytest.mark.parametrize("run", ["nightly_install_main/backfill__{}", BY_SCHEDULE.replace("00:30", "12:30")])
def test_a_build_that_a_person_installs_again_stays_a_week_and_no_longer(slots: Nights, run: str) -> None:
    """By a backfill, or by a scheduled run that is cleared long after its night."""
    removed(slots, planned(slots))
    install(slots, 2, {"A": b"a2", "B": b"b2"}, run, AT)
    assert held(slots) == ["b20261102", "b20261104", "b20261105"]
    plan = planned(slots, AT + timedelta(days=6))
    assert expired(plan) == []
    assert reason(plan, "b20261102").startswith("published by a backfill or by hand at 2026-11-20 06:00 UTC")
    assert expired(planned(slots, AT + timedelta(days=7))) == ["b20261102"]


def test_what_is_in_no_record_counts_as_put_there_by_hand(slots: Nights) -> None:
    slots.site.publisher(FQRN).reserve([f"{FOLDER}/b20261102/C"], nested=[], holder="a backfill", now=AT)
    # the gateway wrote the catalogs, by its own clock
    (changed_at,) = [one.build.changed_at for one in planned(slots).decisions if "b20261102" in one.build.directory]
    assert expired(planned(slots, changed_at + timedelta(days=6))) == ["b20261103"]
    assert expired(planned(slots, changed_at + timedelta(days=7))) == ["b20261102", "b20261103"]


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (f"{FOLDER}/stable", "b20261102"),
        ("/stable", "/cvmfs/nightlies.example.org/nightlies/main/b20261102/A"),
        ("/deep", "nightlies/main/b20261102/A/x86_64/file"),
    ],
)
def test_a_link_set_by_hand_keeps_its_build_without_the_ledger(slots: Nights, path: str, target: str) -> None:
    link_by_hand(slots, path, target.replace("nightlies.example.org", FQRN))
    plan = planned(slots)
    assert expired(plan) == ["b20261103"]
    assert reason(plan, "b20261102") == f"link {path} leads to it"


def test_what_a_partial_build_links_to_stays_as_long_as_that_one(slots: Nights) -> None:
    install(slots, 6, {"B": b"b6"}, **base_of(3))
    plan = planned(slots)
    assert expired(plan) == ["b20261102", "b20261104"]
    assert reason(plan, "b20261103") == f"links in {FOLDER}/b20261106 lead to it"
    removed(slots, plan)
    assert slots.head().revision.nested_at(f"{FOLDER}/b20261103/A/x86_64") is not None
    for day in (7, 8):
        install(slots, day, {"A": b"a%d" % day, "B": b"b"})
    assert expired(planned(slots)) == ["b20261103", "b20261105", "b20261106"]


@pytest.mark.parametrize("only_by_hand", [False, True])
def test_a_tag_keeps_the_build_that_it_is_for_and_the_plan_says_what_its_revision_holds(
    slots: Nights, only_by_hand: bool
) -> None:
    here = slots
    if not only_by_hand:
        here.with_slot(tag="{slot}-{build_id}", links={"weekdays": False}, retention={"keep_last": 2, "minimum": 1})
    head = here.head()
    name = "release-1" if only_by_hand else "main-b20261103"
    # names the newest revision, whose last published build is another one
    add_tag(here.store, FQRN, name, None, signer=SIGNER, now=int(AT.timestamp()))
    here.site.publisher(FQRN).remove(f"{FOLDER}/b20261104", holder="operator", now=AT)
    install(here, 6, {"A": b"a6", "B": b"b6"}, linked=False)
    install(here, 7, {"A": b"a7", "B": b"b7"})
    plan = planned(here)
    kept = "b20261105" if only_by_hand else "b20261103"
    assert kept not in expired(plan)
    assert reason(plan, kept) == f"named by tag {name}"
    (tag,) = [one for one in plan.tags if one.name == name]
    assert tag.revision == head.manifest.revision
    assert (names(tag.names), names(tag.builds), names(tag.only)) == (
        [kept], ["b20261102", "b20261103", "b20261104", "b20261105"], ["b20261104"],
    )  # fmt: skip
    remove_tags(here.store, FQRN, [name], signer=SIGNER, now=int(AT.timestamp()))
    assert kept in expired(planned(here))


def test_a_restored_or_empty_ledger_lets_nothing_go_that_stayed_before(slots: Nights) -> None:
    install(slots, 1, {"A": b"a1", "B": b"b1"}, "nightly_install_main/backfill__{}", AT)
    link_by_hand(slots, f"{FOLDER}/stable", "b20261102")
    before = planned(slots)
    assert expired(before) == ["b20261103"]
    with slots.site.ledger.begin() as connection:
        for table in (provenance, *reversed(tables.metadata.sorted_tables)):
            connection.execute(delete(table))
    after = planned(slots)
    assert set(expired(after)) <= set(expired(before))
    assert not any(one.build.dated for one in after.decisions)


def test_a_directory_that_no_record_says_is_a_build_stays(slots: Nights) -> None:
    tools = f"{FOLDER}/tools"
    slots.site.publisher(FQRN).reserve([f"{tools}/1"], nested=[tools], holder="operator", now=AT)
    assert slots.by_hand(f"{tools}/1", tree({"x": b"x"})).state is State.PUBLISHED
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    for later in (tomorrow, tomorrow + timedelta(days=1)):
        install(slots, later, {"A": b"later"})
    plan = planned(slots, datetime.now(UTC) + timedelta(days=300))
    assert expired(plan) == [f"b2026110{day}" for day in (2, 3, 4, 5)]
    assert reason(plan, "tools") == "no record in the store shows that slot main published it"


def test_a_link_that_comes_to_lead_to_an_expired_build_keeps_it_and_the_others_go(slots: Nights) -> None:
    plan = planned(slots)
    link_by_hand(slots, f"{FOLDER}/stable", "b20261103")
    done = removed(slots, plan)
    assert (names(done.removed), held(slots)) == (["b20261102"], ["b20261103", "b20261104", "b20261105"])
    assert done.kept == {f"{FOLDER}/b20261103": f"link {FOLDER}/stable leads to it"}


def test_what_was_published_into_an_expired_build_meanwhile_keeps_it_and_what_it_refers_to(slots: Nights) -> None:
    install(slots, 6, {"B": b"b6"}, **base_of(3))
    for day in (7, 8):
        install(slots, day, {"A": b"a%d" % day, "B": b"b"})
    plan = planned(slots)
    assert expired(plan) == ["b20261102", "b20261103", "b20261104", "b20261105", "b20261106"]
    slots.site.publisher(FQRN).reserve([f"{FOLDER}/b20261106/C"], nested=[], holder="night", now=AT)
    done = removed(slots, plan)
    assert names(done.removed) == ["b20261102", "b20261104", "b20261105"]
    assert {one.rpartition("/")[2]: why for one, why in done.kept.items()} == {
        "b20261106": "was changed since the plan was made",
        "b20261103": f"links in {FOLDER}/b20261106 lead to it",
    }
    slots.assert_whole()


def test_what_changes_between_the_look_and_the_lease_is_judged_again_under_the_lease(
    slots: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, looks = planned(slots), []
    real = step.topmost

    def meanwhile(*arguments: Any) -> Any:
        looks.append(1)
        if len(looks) == 2:  # the rehearsal has read its revision: only the look under the lease can see this
            link_by_hand(slots, f"{FOLDER}/stable", "b20261103")
        return real(*arguments)

    monkeypatch.setattr(step, "topmost", meanwhile)
    done = removed(slots, plan)
    assert (len(looks), names(done.removed)) == (3, ["b20261102"])
    assert slots.leads_to("stable") == f"{FOLDER}/b20261103"
    assert held(slots) == ["b20261103", "b20261104", "b20261105"]


def test_beside_a_night_it_is_busy_and_nothing_is_changed(slots: Nights) -> None:
    plan, before = planned(slots), slots.revision
    busy = f"{FOLDER}/b20261105/A/x86_64"
    with slots.client() as client, client.lease(FQRN, busy, hostname="a night"), pytest.raises(PathBusy):
        removed(slots, plan)
    assert slots.revision == before
    with slots.client() as client, client.lease(FQRN, "/nightlies/other", hostname="another slot"):
        assert names(removed(slots, plan).removed) == expired(plan)


def test_directories_of_dates_go_with_their_last_build_and_the_slots_own_stays(nights: Nights) -> None:
    destination = "/n/{date}/{slot}/{build_id}/{project}/{platform}"
    here = nights.with_slot(destination=destination, retention={"keep_last": 1, "minimum": 1})
    for day in (2, 3, 4):
        install(here, day, {"A": b"a%d" % day})
    plan = planned(here)
    assert [one.build.directory for one in plan.expired] == [
        "/n/2026-11-03/main/b20261103",
        "/n/2026-11-02/main/b20261102",
    ]
    done = removed(here, plan)
    assert len(done.removed) == 2
    assert "2026-11-04" in [one.name for one in here.head().revision.listing("/n")]
    assert not [one for one in here.head().revision.listing("/n") if one.name in ("2026-11-02", "2026-11-03")]


def test_the_command_lists_and_changes_nothing_until_it_is_asked_to(slots: Nights) -> None:
    before, run = slots.revision, CliRunner().invoke
    listed = run(app, ["retention", "main"])
    assert listed.exit_code == 0, listed.output
    for part in ("BUILD", "MB", "b20261102", "remove", "link /nightlies/main/latest leads to it", "2 of 4 builds go"):
        assert part in listed.output
    assert "add --apply" in listed.output
    document = json.loads(run(app, ["retention", "main", "--json"]).output)
    assert (document["remove"], document["applied"], slots.revision) == (2, None, before)
    assert {one["build_id"]: one["remove"] for one in document["builds"]} == {
        "b20261105": False, "b20261104": False, "b20261103": True, "b20261102": True,
    }  # fmt: skip
    done = json.loads(run(app, ["retention", "main", "--apply", "--json"]).output)["applied"]
    assert (names(done["removed"]), done["revision"]) == (["b20261102", "b20261103"], before + 1)
    assert "nothing goes" in run(app, ["retention", "main"]).output
    unknown = run(app, ["retention", "other"])
    assert unknown.exit_code == 2
