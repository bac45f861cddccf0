"""Undoing beside others: links that come meanwhile or were set by hand, nights under way, rebuilds, partial builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from include.cvmfs.errors import DestinationError
from include.nightlies.errors import UndoRefused
from include.nightlies.removal import undo as step
from include.nightlies.removal.undo import Replacement, UndoPlan, Wish, plan_undo, redo
from include.nightlies.rules.links import LinkState
from include.nightlies.rules.states import State
from include.nightlies.steps.inherit import inherit_batch
from include.nightlies.steps.plan import plan_night
from include.provenance.single_changes import note_linked
from include.site.single_changes import linking
from tests.fakes.attempts import attempt
from tests.fakes.refused import refused
from tests.integration.nightlies.conftest import FQRN, Nights, now
from tests.integration.nightlies.test_links import (
    build_of,
    leads_to,
    link,
    night_of,
    revision,
    with_slots,
)
from tests.integration.nightlies.test_partial import base_of, data_objects
from tests.integration.nightlies.test_partial import run as to_the_gate
from tests.integration.nightlies.test_undo import files, taken_back, wish

FOLDER = "/nightlies/main"
SLOT = """slots:
  main: {{repository: {fqrn}, store: cvmfs, partial: {partial}, links: {{}}, tag: "{{slot}}-{{build_id}}"}}
"""


@pytest.fixture(params=["link"])
def slots(nights: Nights, tmp_path: Path, request: pytest.FixtureRequest) -> Nights:
    """Two whole builds of two projects, `latest` at the second."""
    here = with_slots(nights, tmp_path, SLOT.format(fqrn=FQRN, partial=request.param))
    for day in (2, 3):
        install(here, day, {"A": b"a%d" % day, "B": b"b%d" % day})
    return here


def install(nights: Nights, day: int, projects: dict[str, bytes], run: str = "", **index: object) -> None:
    build_of(day, projects, **index).store_in(nights.site.store("cvmfs"))
    to_the_gate(nights, night_of(day, run))
    link(nights, night_of(day, run))


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Between the look at what is to be undone and the doing of it."""

    def look(site: object, wanted: Wish) -> UndoPlan:
        plan = plan_undo(site, wanted)  # type: ignore[arg-type]
        happens()
        return plan

    monkeypatch.setattr(step, "plan_undo", look)


def test_a_link_that_came_to_lead_there_meanwhile_stops_the_undoing(
    slots: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_of(4, {"A": b"a4"}).store_in(slots.site.store("cvmfs"))
    to_the_gate(slots, night_of(4))
    meanwhile(monkeypatch, lambda: link(slots, night_of(4)))
    with refused(DestinationError, path=f"{FOLDER}/latest"):
        taken_back(slots, wish("b20261104"))
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261104"
    assert f"{FOLDER}/b20261104/A/x86_64/file" in files(slots)


def test_a_link_does_not_move_to_what_was_undone_meanwhile(slots: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = plan_undo(slots.site, wish(move_links=True))
    assert looked.links[0].after == f"{FOLDER}/b20261102"
    taken_back(slots, wish("b20261102", move_links=True))
    assert leads_to(slots, "Mon") == ""
    before = revision(slots)
    monkeypatch.setattr(step, "plan_undo", lambda *_: looked)
    with refused(DestinationError, path=f"{FOLDER}/b20261102"):
        taken_back(slots, looked.wish)
    assert (revision(slots), leads_to(slots, "latest")) == (before, f"{FOLDER}/b20261103")


def test_a_link_to_what_is_gone_altogether_is_put_right_by_undoing_it(slots: Nights) -> None:
    slots.site.publisher(FQRN).remove(f"{FOLDER}/b20261103", holder="operator", now=now())
    with refused(UndoRefused, reasons=plan_undo(slots.site, wish()).refused):
        taken_back(slots, wish())
    _, made = taken_back(slots, wish(move_links=True))
    assert made is not None
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261102"
    assert taken_back(slots, wish(move_links=True))[1] is None


def test_a_link_set_by_hand_into_what_goes_is_named(slots: Nights) -> None:
    for path, target in (
        (f"{FOLDER}/stable", "b20261103"),
        ("/one", "nightlies/main/b20261103/A/x86_64/file"),
        ("/other", "nightlies/main/b20261102"),
        (f"{FOLDER}/gone", "b20261103"),
    ):
        done = linking(path, target, now=now()).commit(slots.site, FQRN, holder="op", now=now())
        note_linked(slots.site, FQRN, path, target, done, holder="op", now=now())
    slots.site.publisher(FQRN).remove(f"{FOLDER}/gone", holder="op", now=now())
    refused = plan_undo(slots.site, wish(move_links=True)).refused
    assert sorted(line.split(",")[0] for line in refused) == ["/nightlies/main/stable", "/one"]
    assert all("set by hand, leads to" in line for line in refused)
    (only_a,) = plan_undo(slots.site, wish(projects=("A",), move_links=True)).refused
    assert only_a.startswith("/one")
    for path in (f"{FOLDER}/stable", "/one"):
        slots.site.publisher(FQRN).remove(path, holder="op", now=now())
    assert taken_back(slots, wish(move_links=True))[1] == revision(slots)


def test_a_night_under_way_does_not_install_what_was_undone_since_it_was_planned(slots: Nights) -> None:
    build_of(4, {"A": b"a4", "B": b"b4"}).store_in(slots.site.store("cvmfs"))
    batch = slots.planned(4)
    assert not slots.prepare(batch).failures
    taken_back(slots, wish("b20261104", projects=("A",)))
    outcome = slots.publish(batch)
    assert not outcome.failures
    assert {one.project: one.state for one in outcome.done} == {"A": State.SKIPPED, "B": State.PUBLISHED}
    (skipped,) = [one for one in outcome.done if one.project == "A"]
    assert "it crashes, while this run was under way" in skipped.reason
    assert {path for path in files(slots) if "b20261104" in path} == {f"{FOLDER}/b20261104/B/x86_64/file"}
    assert slots.check().problems == ()


def test_others_hold_leases_beside_it_and_links_move_all_the_same(slots: Nights) -> None:
    with slots.client() as client, client.lease(FQRN, "/nightlies/other", hostname="another slot"):
        taken_back(slots, wish(move_links=True))
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261102"


def test_a_rebuilt_tree_is_replaced_by_what_stood_there_before_and_nothing_is_sent(slots: Nights) -> None:
    install(slots, 3, {"A": b"rebuilt", "B": b"b3"}, "night/rebuilt")
    place = f"{FOLDER}/b20261103/A/x86_64/file"
    assert files(slots)[place] == b"rebuilt"
    stored = data_objects(slots)
    wanted = wish(projects=("A",), instead=Replacement.PREDECESSOR)
    plan, made = taken_back(slots, wanted)
    assert "what was there in revision main-b20261103, before the rebuild, takes its place" in str(plan.taken[0])
    assert made == revision(slots)
    assert files(slots)[place] == b"a3"
    assert data_objects(slots) == stored
    assert taken_back(slots, wanted)[1] is None
    assert slots.check().problems == ()
    # the rebuild does not come back by itself; what is let come again, does
    plan_again = plan_night(slots.site, attempt(), night_of(3, "night/again"))
    assert plan_again.batches == ()
    assert redo(slots.site, wish(projects=("A",)), now=now()) == 1
    install(slots, 3, {"A": b"rebuilt", "B": b"b3"}, "night/let")
    assert files(slots)[place] == b"rebuilt"


def test_bytes_that_were_undone_themselves_are_no_predecessor_and_untagged_ones_neither(slots: Nights) -> None:
    taken_back(slots, wish(projects=("A",), instead=Replacement.PREDECESSOR))
    install(slots, 3, {"A": b"rebuilt", "B": b"b3"}, "night/rebuilt")
    # b20261103's first A crashed: its predecessor is another build's
    plan = plan_undo(slots.site, wish(projects=("A",), instead=Replacement.PREDECESSOR))
    assert plan.taken[0].after is not None
    assert plan.taken[0].after.build_id == "b20261102"
    install(slots, 3, {"A": b"rebuilt", "B": b"second"}, "night/second")
    install(slots, 3, {"A": b"rebuilt", "B": b"third"}, "night/third")
    only_b = plan_undo(slots.site, wish(projects=("B",), instead=Replacement.PREDECESSOR)).taken[0].after
    assert only_b is not None
    assert only_b.tag == "main-b20261103"


@pytest.mark.parametrize("slots", ["copy", "link"], indirect=True)
def test_a_base_that_is_undone_leaves_copies_whole_and_is_refused_where_links_lead_to_it(slots: Nights) -> None:
    install(slots, 4, {"B": b"b4"}, **base_of(3))
    wanted = wish(move_links=True)
    if slots.site.settings.slot("main").partial == "copy":
        taken_back(slots, wanted)
        found = files(slots)
        assert (found[f"{FOLDER}/b20261104/A/x86_64/file"], found[f"{FOLDER}/b20261104/B/x86_64/file"]) == (
            b"a3", b"b4",
        )  # fmt: skip
        slots.collector().run()
        assert leads_to(slots, "latest") == f"{FOLDER}/b20261104"
    else:
        with pytest.raises(UndoRefused) as closed:
            taken_back(slots, wanted)
        assert [line.split()[0] for line in closed.value.reasons] == [f"{FOLDER}/b20261104/A/x86_64"]
        # what nobody leads to may go
        taken_back(slots, wish(projects=("B",), move_links=True))
        # a predecessor leaves nothing dangling, and it is said who shows it
        plan, _ = taken_back(slots, wish(projects=("A",), instead=Replacement.PREDECESSOR))
        assert any(
            "b20261104 of 2026-11-04 leads to" in one and "shows what takes its place" in one for one in plan.notes
        )
        head = slots.site.head(FQRN)
        assert head.revision.read(f"{FOLDER}/b20261103/A/x86_64/file") == b"a2"
        assert head.revision.nested_at(f"{FOLDER}/b20261103/A/x86_64") is not None
    assert slots.check().problems == ()


def test_a_link_of_a_partial_build_that_comes_meanwhile_stops_the_undoing(
    slots: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_of(4, {"B": b"b4"}, **base_of(3)).store_in(slots.site.store("cvmfs"))
    plan = plan_night(slots.site, attempt(), night_of(4), max_mapped=1)
    batch = plan.inherited
    assert batch is not None

    def inherit() -> None:
        taken = inherit_batch(slots.site, attempt(), batch)
        assert not taken.failures
        assert not taken.busy

    meanwhile(monkeypatch, inherit)
    with refused(DestinationError, path=f"{FOLDER}/b20261103"):
        taken_back(slots, wish(move_links=True))
    assert f"{FOLDER}/b20261103/A/x86_64/file" in files(slots)


@pytest.mark.parametrize("slots", ["copy", "link"], indirect=True)
def test_a_project_of_a_partial_build_goes_comes_again_and_the_base_keeps_its_own(slots: Nights) -> None:
    install(slots, 4, {"B": b"b4"}, **base_of(3))
    for project in "AB":
        taken_back(slots, wish("b20261104", projects=(project,), move_links=True))
    assert slots.site.head(FQRN).revision.lookup(f"{FOLDER}/b20261104") is None
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261103"
    assert files(slots)[f"{FOLDER}/b20261103/A/x86_64/file"] == b"a3"
    assert redo(slots.site, wish("b20261104"), now=now()) == 2
    install(slots, 4, {"B": b"b4"}, "night/let", **base_of(3))
    done = link(slots, night_of(4))
    assert {one.state for one in done.links} == {LinkState.UNCHANGED}
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261104"
    assert slots.check().problems == ()
