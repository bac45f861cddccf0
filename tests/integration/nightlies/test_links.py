"""Links and tags of builds on a real store and gateway: forward only, to what is whole only, always with a reason."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from include.cvmfs.errors import DestinationError
from include.nightlies.errors import GateClosed, NotVerified
from include.nightlies.records import builds, links as linked
from include.nightlies.removal.undo import redo, undo
from include.nightlies.rules.build import BuildKey, LinkState, all_links_of
from include.nightlies.steps.gate import gate
from include.nightlies.steps.links import link_night
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.values import Night
from include.nightlies.steps.verify import tidy_run, verify_run
from include.site.changes import linking
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.fakes.together import together
from tests.nights import FOLDER, LINKED, Nights, build_of, night_of, wish
from tests.site import FQRN, now

MONDAY, TUESDAY, NEXT_MONDAY = 2, 3, 9
MOVED, STAYED, UNCHANGED = {LinkState.MOVED}, {LinkState.STAYED}, {LinkState.UNCHANGED}


@pytest.fixture
def slots(nights: Nights) -> Nights:
    return nights.with_slot(**LINKED)


@pytest.fixture
def monday(slots: Nights) -> Nights:
    """The links lead to the build of Monday."""
    slots.install_build(MONDAY, {"A": b"1"})
    return slots


def read(slots: Nights, build_id: str, project: str) -> bytes:
    return slots.head().revision.read(f"{FOLDER}/{build_id}/{project}/x86_64/file")


def last_reason(slots: Nights, name: str = "latest") -> str:
    return linked.history(slots.site.ledger, FQRN, f"{FOLDER}/{name}")[0].reason


def test_a_whole_build_gets_both_links_and_its_name_in_one_revision_and_again_nothing(slots: Nights) -> None:
    night = slots.published(MONDAY, {"A": b"1", "B": b"2"})
    before = slots.revision
    done = slots.link(night)
    assert slots.revision == before + 1 == done.revision
    assert {one.path: one.state for one in done.links} == dict.fromkeys(
        (f"{FOLDER}/latest", f"{FOLDER}/Mon"), LinkState.MOVED
    )
    assert slots.leads_to("latest") == slots.leads_to("Mon") == f"{FOLDER}/b20261102"
    assert slots.head().tag("main-b20261102").revision == done.revision
    again = slots.link(night)
    assert again.tag is not None
    assert {one.state for one in (*again.links, again.tag)} == UNCHANGED
    assert slots.revision == before + 1
    slots.assert_whole()


def test_a_backfill_moves_no_link_back_and_names_its_own_revision(slots: Nights) -> None:
    for day in (NEXT_MONDAY, MONDAY, TUESDAY):
        done = slots.install_build(day, {"A": str(day).encode()})
        assert slots.leads_to("latest") == f"{FOLDER}/b20261109"
    assert slots.leads_to("Mon") == f"{FOLDER}/b20261109"
    assert slots.leads_to("Tue") == f"{FOLDER}/b20261103"
    latest, tuesday = done.links
    assert (latest.state, tuesday.state) == (LinkState.STAYED, LinkState.MOVED)
    assert "build b20261109 of 2026-11-09 already, which is later" in latest.reason
    record = linked.history(slots.site.ledger, FQRN, f"{FOLDER}/latest")
    assert [(one.build_id, one.state) for one in record] == [
        ("b20261103", "stayed"), ("b20261102", "stayed"), ("b20261109", "moved"),
    ]  # fmt: skip
    names = {one.name for one in slots.head().tags()}
    assert names >= {"main-b20261102", "main-b20261103", "main-b20261109"}


def test_what_is_required_and_missing_keeps_the_links_and_what_is_optional_does_not(monday: Nights) -> None:
    slots = monday
    night = slots.published(TUESDAY, {"A": b"2", "A:dbg": b"3"}, lost="A/dbg")
    (lacking,) = slots.gate(night).lacking
    assert "A/dbg: failed" in lacking
    assert slots.link_states(night) == MOVED

    late = slots.published(NEXT_MONDAY, {"A": b"4", "B": b"5"}, lost="B/x86_64")
    assert slots.missing(late) == ["B/x86_64"]
    assert slots.leads_to("latest") == f"{FOLDER}/b20261103"
    assert slots.leads_to("Mon") == f"{FOLDER}/b20261102"
    assert all("B/x86_64: failed" in last_reason(slots, name) for name in ("latest", "Mon"))
    assert slots.link_states(late) == STAYED, "also if the links are asked for without the gate"
    # what was missing comes, in a run of its own
    slots.install_build(NEXT_MONDAY, {"A": b"4", "B": b"5"}, "night/late")
    assert slots.leads_to("latest") == slots.leads_to("Mon") == f"{FOLDER}/b20261109"


def test_a_run_without_what_failed_moves_the_links_and_only_it_does(slots: Nights) -> None:
    night = slots.published(MONDAY, {"A": b"1", "B": b"2"}, lost="B/x86_64")
    assert slots.missing(replace(night, without=("C/x86_64", "B/dbg"))) == ["B/x86_64"]
    without = Night.from_json(replace(night, without=("B/x86_64",)).to_json())
    passed = gate(slots.site, attempt(night.run), night=without)
    assert [line.partition(":")[0] for line in passed.lacking] == ["B/x86_64"]
    assert slots.link_states(without) == MOVED
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"


def test_a_link_of_somebody_else_is_left_alone_with_the_reason(slots: Nights) -> None:
    night = slots.published(MONDAY, {"A": b"1"})
    linking(f"{FOLDER}/latest", "of-an-operator", now=now()).commit(slots.site, FQRN, holder="operator", now=now())
    latest, monday = slots.link(night).links
    assert (latest.state, monday.state) == (LinkState.STAYED, LinkState.MOVED)
    assert "/nightlies/main/of-an-operator, which is no build in the ledger" in latest.reason
    assert slots.leads_to("latest") == "/nightlies/main/of-an-operator"


def test_beside_somebody_who_publishes_below_the_folder_the_links_are_set_one_by_one(slots: Nights) -> None:
    night = slots.published(MONDAY, {"A": b"1"})
    before = slots.revision
    with slots.client() as client, client.lease(FQRN, f"{FOLDER}/b20261102/A/x86_64", hostname="somebody"):
        assert slots.link_states(night) == MOVED
    assert slots.revision == before + 2
    assert slots.head().tag("main-b20261102").revision == before + 2


def test_runs_of_two_builds_that_end_in_one_moment_leave_the_links_at_the_later(slots: Nights) -> None:
    nights = [slots.published(day, {"A": b"of %d" % day}) for day in (MONDAY, TUESDAY)]
    failed: list[Exception] = []

    def run(night: Night) -> None:
        for _ in range(50):
            try:
                slots.link(night)
            except Exception as error:  # noqa: BLE001 - a busy path is tried again, as the operator does
                if not getattr(error, "retryable", False):
                    failed.append(error)
                    return
            else:
                return

    together(partial(run, night) for night in nights)
    assert failed == []
    assert slots.leads_to("latest") == f"{FOLDER}/b20261103"
    assert slots.leads_to("Mon") == f"{FOLDER}/b20261102"
    slots.assert_whole()


def test_a_night_replaces_no_tree_that_no_run_published(slots: Nights) -> None:
    slots.published(MONDAY, {"A": b"1"})
    place = f"{FOLDER}/b20261102/A/x86_64"
    linking(f"{place}/by-hand", "x", now=now()).commit(slots.site, FQRN, holder="operator", now=now())
    slots.drop(MONDAY, {"A": b"rebuilt"})
    failure = slots.prepare(slots.planned(MONDAY, "night/rebuilt")).failures["A/x86_64"]
    assert isinstance(failure, DestinationError)
    assert failure.path == place


def test_a_rebuilt_artifact_replaces_the_tree_in_one_revision_and_the_links_stay_right(slots: Nights) -> None:
    slots.install_build(MONDAY, {"A": b"1", "B": b"2"})
    before = slots.revision
    done = slots.install_build(MONDAY, {"A": b"rebuilt", "B": b"2"}, "night/rebuilt")
    assert slots.revision == before + 1
    assert {one.state for one in done.links} == UNCHANGED
    assert read(slots, "b20261102", "A") == b"rebuilt"
    assert slots.head().at("main-b20261102").read(f"{FOLDER}/b20261102/A/x86_64/file") == b"1"
    slots.assert_whole()


# -- builds that are whole by the letter only: empty ones, ones of optional things alone, ones cut down or spoilt


def test_a_complete_index_that_lists_nothing_closes_the_gate_and_no_link_leads_to_nothing(monday: Nights) -> None:
    night = monday.published(TUESDAY, {})
    assert monday.missing(night) == ["build b20261103"]
    assert monday.link_states(night) == STAYED, "also if the links task is run after that"
    assert monday.leads_to("latest") == f"{FOLDER}/b20261102"
    assert "nothing of it is" in last_reason(monday)


def test_optional_things_alone_make_a_build_if_they_are_there_and_none_if_all_of_them_failed(slots: Nights) -> None:
    assert {one.state for one in slots.install_build(MONDAY, {"A:dbg": b"1"}).links} == MOVED
    slots.drop(TUESDAY, {"A:dbg": b"2"}, lost="A/dbg")
    night = night_of(TUESDAY)
    plan = plan_night(slots.site, attempt(), night)
    for batch in plan.batches:
        slots.prepare(batch)
        slots.publish(batch)
    tidy_run(slots.site, attempt(), plan.batches)
    assert len(slots.gate(night).lacking) == 1
    assert slots.link_states(night) == STAYED
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"


def test_a_required_platform_that_no_index_lists_is_missed_though_no_project_is_named(slots: Nights) -> None:
    slots.with_slot(**LINKED, required={"platforms": ["x86_64", "riscv"]})
    night = slots.published(MONDAY, {"A": b"1"})
    assert slots.missing(night) == ["platform riscv"]
    assert slots.link_states(night) == STAYED
    assert "platform riscv: nothing of it is in the index" in last_reason(slots)


def test_what_is_listed_no_more_before_it_was_published_keeps_the_gate_shut_until_it_is(slots: Nights) -> None:
    slots.published(MONDAY, {"A": b"1", "B": b"2"}, "night/first", complete=False, lost="B/x86_64")
    night = slots.published(MONDAY, {"A": b"1"})
    with pytest.raises(GateClosed, match="B/x86_64: is no longer listed") as closed:
        slots.gate(night)
    assert len(closed.value.missing) == 1
    assert slots.leads_to("latest") == ""
    slots.install_build(MONDAY, {"A": b"1", "B": b"2"}, "night/again")
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"


def test_what_is_listed_no_more_after_it_was_published_stays_and_the_build_is_whole(slots: Nights) -> None:
    slots.published(MONDAY, {"A": b"1", "B": b"2"}, "night/first", complete=False)
    slots.install_build(MONDAY, {"A": b"1"})
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"
    assert read(slots, "b20261102", "B") == b"2"


def test_a_published_artifact_that_the_index_spoils_later_keeps_the_links_where_they_are(monday: Nights) -> None:
    build = monday.store_build(build_of(TUESDAY, {"A": b"2", "B": b"3"}))
    monday.publish_night(night_of(TUESDAY))
    build.index["artifacts"] = [*build.artifacts.values(), {**build.artifacts["B/x86_64"], "sha256": "0" * 64}]
    monday.store_build(build)
    again = night_of(TUESDAY, "night/spoilt")
    monday.publish_night(again)
    assert set(monday.missing(again)) == {"B/x86_64"}
    assert monday.link_states(again) == STAYED
    assert monday.leads_to("latest") == f"{FOLDER}/b20261102"
    assert read(monday, "b20261103", "B") == b"3"


def test_a_rebuild_that_fails_leaves_the_tree_and_the_links_as_they_were(monday: Nights) -> None:
    night = monday.published(TUESDAY, {"A": b"2"})
    broken = build_of(TUESDAY, {"A": b"rebuilt and cut"})
    broken.artifacts["A/x86_64"]["size"] += 1
    monday.store_build(broken)
    again = night_of(TUESDAY, "night/broken")
    monday.publish_night(again)
    assert monday.missing(again) == ["A/x86_64"]
    assert monday.link_states(night) == STAYED, "a cleared task of the first run"
    assert monday.leads_to("latest") == f"{FOLDER}/b20261102"
    assert read(monday, "b20261103", "A") == b"2"


# -- nights, backfills, retries, rebuilds and undos in any order

STEPS = 14
DAYS = (2, 3, 9)  # two Mondays and a Tuesday
IDS = ("b9", "b10")
"""Two builds of each day; their numbers say which is the later one, their letters do not."""


@dataclass
class Story:
    """Events so far. ``runs``: of each build the nights that were run; ``contents``: what it lists at last."""

    nights: Nights
    chance: random.Random
    runs: list[tuple[Night, str]] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def go_on(self) -> bool:
        """Let one more thing happen; tell if it was an undo."""
        kinds: list[Callable[[], str]] = [self.a_night, self.a_night]
        if self.runs:
            kinds += [self.a_retry, self.a_rebuild, self.a_broken_rebuild, self.an_undo, self.a_redo]
        self.said.append(self.chance.choice(kinds)())
        return self.said[-1].startswith("undo")

    def a_night(self) -> str:
        """Drop a build of any date, so that many are backfills."""
        day, which = self.chance.choice(DAYS), self.chance.choice(IDS)
        build_id = f"d{day}-{which}"
        self._install(day, build_id, self.contents.setdefault(build_id, build_id.encode()))
        return f"night of {build_id}"

    def a_retry(self) -> str:
        """The last tasks of an old run are cleared."""
        night, build_id = self.chance.choice(self.runs)
        self._end(night, build_id)
        return f"retry of {night.run}"

    def a_rebuild(self) -> str:
        night, build_id = self.chance.choice(self.runs)
        self.contents[build_id] += b" rebuilt"
        self._install(night.date.day, build_id, self.contents[build_id])
        return f"rebuild of {build_id}"

    def a_broken_rebuild(self) -> str:
        night, build_id = self.chance.choice(self.runs)
        self._install(night.date.day, build_id, b"broken", lost=True)
        return f"broken rebuild of {build_id}"

    def an_undo(self) -> str:
        _, build_id = self.chance.choice(self.runs)
        unwanted = wish(build_id, move_links=True)
        undo(self.nights.site, attempt("undo"), unwanted)
        return f"undo of {build_id}"

    def a_redo(self) -> str:
        _, build_id = self.chance.choice(self.runs)
        redo(self.nights.site, wish(build_id), now=now(), by="ann")
        return f"redo of {build_id}"

    def _install(self, day: int, build_id: str, content: bytes, *, lost: bool = False) -> None:
        build = Build(f"2026-11-{day:02}", build_id=build_id)
        for project in ("A", "B"):
            build.add(project, "x86_64", tree({"file": project.encode() + content}))
        if lost:
            build.artifacts["B/x86_64"]["size"] += 1
        build.store_in(self.nights.site.store("cvmfs"))
        night = night_of(day, f"night/{len(self.runs)}")
        self.runs.append((night, build_id))
        self.nights.publish_night(night)
        self._end(night, build_id)

    def _end(self, night: Night, build_id: str) -> None:
        site = self.nights.site
        try:
            verify_run(site, attempt(night.run))
            self.nights.gate(night)
        except (NotVerified, GateClosed):  # an old run finds another tree, what failed is missing
            if self.chance.random() < 0.5:
                return  # as Airflow does; else the links task is run all the same
        build = builds.build(site.ledger, "main", build_id)
        assert build is not None
        link_night(site, attempt(night.run), night, build)

    def links(self) -> dict[str, BuildKey | None]:
        site, found = self.nights.site, dict[str, BuildKey | None]()
        slot, head = site.settings.slot("main"), site.head(FQRN)
        for path in all_links_of(slot):
            target = self.nights.leads_to(path.rpartition("/")[2])
            found[path] = builds.key_of_directory(site.ledger, slot, target) if target else None
            assert not target or head.revision.listing(target), (
                f"{path} leads to {target}, where nothing is: {self.said}"
            )
        return found

    def tags(self) -> dict[str, int]:
        return {one.name: one.revision for one in self.nights.head().tags() if one.name[:4] == "main"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 3))])
def test_whatever_happens_a_link_goes_back_by_an_undo_only(nights: Nights, seed: int) -> None:
    story = Story(nights.with_slot(**LINKED), random.Random(seed))
    links, tags = story.links(), story.tags()
    for _ in range(STEPS):
        undone = story.go_on()
        now_links, now_tags = story.links(), story.tags()
        for path, key in now_links.items():
            before = links[path]
            if before is not None and not undone:
                assert key is not None, f"{path} is gone: {story.said}"
                assert key >= before, f"{path} went from {before} back to {key}: {story.said}"
        assert now_tags.items() >= tags.items(), f"a tag was moved: {story.said}"
        links, tags = now_links, now_tags
    assert not story.nights.check().problems, story.said
