"""A build is taken back, or some of it, in one revision; what others published since and what leads to it is safe."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from include.cli.nightly import app
from include.cvmfs.errors import DestinationError
from include.monitoring.audit import AuditChoice, audit
from include.nightlies.errors import BuildUnknown, UndoRefused, UnknownChoice
from include.nightlies.records import links as linked
from include.nightlies.removal import undo as step
from include.nightlies.removal.undo import Replacement, UndoPlan, Wish, plan_undo, redo
from include.nightlies.rules.build import LinkState
from include.nightlies.rules.publication import State
from include.nightlies.steps.inherit import inherit_batch
from include.provenance.single_changes import note_linked
from include.site.changes import linking
from tests.fakes.attempts import attempt
from tests.fakes.refused import refused
from tests.integration.nightlies.conftest import Once
from tests.nights import FOLDER, Nights, base_of, build_of, night_of, wish
from tests.site import FQRN, now


@pytest.fixture(params=["link"])
def slots(nights: Nights, once: Once, request: pytest.FixtureRequest) -> Nights:
    """Two whole builds of two projects, `latest` at the second."""
    nights.with_slot("other").with_slot(partial=request.param, links={}, tag="{slot}-{build_id}")
    once("undo", lambda: [nights.install_build(day, {"A": b"a%d" % day, "B": b"b%d" % day}) for day in (2, 3)])
    return nights


def contents(slots: Nights, build_id: str) -> dict[str, bytes]:
    """The `file` of each project of a build."""
    top = f"{FOLDER}/{build_id}/"
    files = {path.removeprefix(top): data for path, data in slots.files().items() if path.startswith(top)}
    return {path.partition("/")[0]: data for path, data in files.items()}


def test_a_dry_run_says_what_would_go_and_which_links_lead_there_and_changes_nothing(slots: Nights) -> None:
    before = slots.revision
    plan = plan_undo(slots.site, wish())
    said = "\n".join(plan.lines())
    for part in ("A/x86_64: /nightlies/main/b20261103/A/x86_64 (2 files, 2 bytes): goes", "latest leads to"):
        assert part in said
    assert {line.split()[0] for line in plan.refused} == {f"{FOLDER}/latest", f"{FOLDER}/Tue"}
    with refused(UndoRefused, reasons=plan.refused):
        slots.taken_back(wish())
    assert slots.revision == before
    moved = plan_undo(slots.site, wish(move_links=True))
    assert [str(one) for one in moved.links] == [
        f"{FOLDER}/latest: leads to {FOLDER}/b20261103, moves to {FOLDER}/b20261102",
        f"{FOLDER}/Tue: leads to {FOLDER}/b20261103, goes",
    ]


def test_a_build_goes_in_one_revision_with_its_directories_its_links_move_and_only_once(slots: Nights) -> None:
    before = slots.revision
    _, made = slots.taken_back(wish(move_links=True))
    assert made == slots.revision == before + 1
    head = slots.head()
    assert head.revision.lookup(f"{FOLDER}/b20261103") is None
    assert slots.leads_to("latest") == slots.leads_to("Mon") == f"{FOLDER}/b20261102"
    assert slots.leads_to("Tue") == ""
    assert (contents(slots, "b20261103"), set(contents(slots, "b20261102"))) == ({}, {"A", "B"})
    plan, again = slots.taken_back(wish(move_links=True))
    assert again is None
    assert plan.taken == ()
    assert slots.revision == made
    reasons = [one.reason for one in linked.history(slots.site.ledger, FQRN, f"{FOLDER}/latest")]
    assert "is undone: it crashes" in reasons[0]
    (act,) = audit(slots.site.ledger, AuditChoice())
    assert (act.kind, act.dry_run) == ("undo", False)
    assert act.what.startswith(f"{FQRN}, revision {made}: ")
    assert "it crashes" in act.why
    assert act.run
    slots.assert_whole()


@pytest.mark.parametrize("by", ["undo_build", "nightshift repo symlink"])
def test_links_that_a_build_of_the_future_took_are_put_back_and_move_on_next_night(slots: Nights, by: str) -> None:
    slots.install_build(30, {"A": b"too early"})
    assert (slots.leads_to("latest"), slots.leads_to("Mon")) == (f"{FOLDER}/b20261130",) * 2
    if by == "undo_build":
        slots.taken_back(wish("b20261130", move_links=True))
        assert slots.leads_to("Mon") == f"{FOLDER}/b20261102"
    else:
        linking(f"{FOLDER}/latest", "b20261103", now=now()).commit(slots.site, FQRN, holder="test", now=now())
    assert slots.leads_to("latest") == f"{FOLDER}/b20261103"
    slots.install_build(4, {"A": b"a4"})
    assert slots.leads_to("latest") == f"{FOLDER}/b20261104"


def test_what_is_undone_is_not_installed_again_until_somebody_lets_it_or_it_is_rebuilt(slots: Nights) -> None:
    slots.taken_back(wish(move_links=True))
    plan = slots.plan_of(night_of(3, "night/again"))
    assert plan.batches == ()
    assert {one.state for one in plan.settled} == {State.SKIPPED}
    assert all("undone at" in one.reason and "it crashes" in one.reason for one in plan.settled)
    assert redo(slots.site, wish(projects=("A",)), now=now(), by="ann") == 1
    slots.install_build(3, {"A": b"a3", "B": b"rebuilt"}, "night/rebuilt")
    assert contents(slots, "b20261103") == {"A": b"a3", "B": b"rebuilt"}
    assert slots.leads_to("latest") == f"{FOLDER}/b20261103"
    slots.assert_whole()


def test_one_project_is_replaced_by_its_predecessor_the_links_stay_and_nothing_is_sent(slots: Nights) -> None:
    before, stored = slots.revision, slots.data_objects()
    only_b = wish(projects=("B",), instead=Replacement.PREDECESSOR)
    _, made = slots.taken_back(only_b)
    assert made == before + 1
    assert contents(slots, "b20261103") == {"A": b"a3", "B": b"b2"}
    assert slots.data_objects() == stored
    assert slots.leads_to("latest") == f"{FOLDER}/b20261103"
    assert slots.taken_back(only_b)[1] is None
    assert slots.revision == made
    slots.assert_whole()


def test_what_others_published_since_stays_and_their_leases_beside_it_are_in_no_way(slots: Nights) -> None:
    slots.store_build(build_of(3, {"Z": b"of another slot"}, slot="other"))
    slots.publish_night(night_of(3, "other/3", slot="other"))
    with slots.client() as client, client.lease(FQRN, "/nightlies/other", hostname="another slot"):
        slots.taken_back(wish(move_links=True))
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"
    assert slots.files()["/nightlies/other/b20261103/Z/x86_64/file"] == b"of another slot"
    slots.assert_whole()


def test_a_tree_that_changed_since_the_look_is_not_taken_away(slots: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = plan_undo(slots.site, wish(projects=("A",), move_links=True))
    slots.published(3, {"A": b"rebuilt", "B": b"b3"}, "night/rebuilt")
    before = slots.revision
    monkeypatch.setattr(step, "plan_undo", lambda *_: looked)
    with refused(DestinationError, path=f"{FOLDER}/b20261103/A/x86_64"):
        slots.taken_back(looked.wish)
    assert slots.revision == before


def test_a_tree_of_somebody_else_is_refused(slots: Nights) -> None:
    place = f"{FOLDER}/b20261103/A/x86_64"
    linking(f"{place}/by-hand", "x", now=now()).commit(slots.site, FQRN, holder="other", now=now())
    (line, *_) = plan_undo(slots.site, wish(projects=("A",))).refused
    assert "which no run of this ledger published" in line


def test_a_base_that_links_of_a_partial_build_lead_to_is_refused_until_that_build_is_undone(slots: Nights) -> None:
    slots.install_build(4, {"B": b"b4"}, **base_of(3))
    refused = plan_undo(slots.site, wish(move_links=True)).refused
    assert len(refused) == 1
    assert "of the partial build b20261104 of 2026-11-04 leads to" in refused[0]
    # the link of the partial build itself is undone like a tree
    slots.taken_back(wish("b20261104", move_links=True))
    assert slots.head().revision.lookup(f"{FOLDER}/b20261104") is None
    slots.taken_back(wish(move_links=True))
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"
    slots.assert_whole()


def test_what_cannot_be_meant_is_refused_by_name(slots: Nights) -> None:
    with refused(BuildUnknown, slot="main", build_id="nothing"):
        plan_undo(slots.site, wish("nothing"))
    with refused(UnknownChoice, kind="project", names=("C",), known=("A", "B")):
        plan_undo(slots.site, wish(projects=("C",)))
    (line, _) = plan_undo(slots.site, wish("b20261102", instead=Replacement.PREDECESSOR)).refused
    assert "no earlier build has it" in line


def test_the_command_says_what_it_would_do_refuses_does_it_and_lets_it_be_done_again(slots: Nights) -> None:
    words = ["undo", "--slot", "main", "--build", "b20261103", "--reason", "it crashes"]
    before, runner = slots.revision, CliRunner()
    said = runner.invoke(app, [*words, "--move-links"])
    assert said.exit_code == 0, said.output
    assert "A/x86_64: /nightlies/main/b20261103/A/x86_64 (2 files, 2 bytes): goes" in said.output
    assert "add --yes to do it" in said.output
    assert slots.revision == before
    refused = runner.invoke(app, [*words, "--yes"])
    assert isinstance(refused.exception, UndoRefused)
    done = runner.invoke(app, [*words, "--move-links", "--yes"])
    assert f"done in revision {before + 1}" in done.output
    again = runner.invoke(app, [*words, "--move-links", "--yes"])
    assert "nothing was to be done" in again.output
    assert slots.revision == before + 1
    assert "2 artifacts" in runner.invoke(app, ["redo", "--slot", "main", "--build", "b20261103"]).output


# -- beside others: links that come meanwhile, nights under way, rebuilds, partial builds


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Between the look at what is to be undone and the doing of it."""

    def look(site: object, wanted: Wish) -> UndoPlan:
        plan = plan_undo(site, wanted)  # type: ignore[arg-type]
        happens()
        return plan

    monkeypatch.setattr(step, "plan_undo", look)


def test_a_link_that_came_to_lead_there_stops_the_undoing(slots: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    slots.drop(4, {"A": b"a4"})
    slots.to_the_gate(night_of(4))
    meanwhile(monkeypatch, lambda: slots.link(night_of(4)))
    with refused(DestinationError, path=f"{FOLDER}/latest"):
        slots.taken_back(wish("b20261104"))
    assert slots.leads_to("latest") == f"{FOLDER}/b20261104"
    assert f"{FOLDER}/b20261104/A/x86_64/file" in slots.files()


def test_a_link_does_not_move_to_what_was_undone_meanwhile(slots: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = plan_undo(slots.site, wish(move_links=True))
    assert looked.links[0].after == f"{FOLDER}/b20261102"
    slots.taken_back(wish("b20261102", move_links=True))
    assert slots.leads_to("Mon") == ""
    before = slots.revision
    monkeypatch.setattr(step, "plan_undo", lambda *_: looked)
    with refused(DestinationError, path=f"{FOLDER}/b20261102"):
        slots.taken_back(looked.wish)
    assert (slots.revision, slots.leads_to("latest")) == (before, f"{FOLDER}/b20261103")


def test_a_link_to_what_is_gone_altogether_is_put_right_by_undoing_it(slots: Nights) -> None:
    slots.site.publisher(FQRN).remove(f"{FOLDER}/b20261103", holder="operator", now=now())
    with refused(UndoRefused, reasons=plan_undo(slots.site, wish()).refused):
        slots.taken_back(wish())
    _, made = slots.taken_back(wish(move_links=True))
    assert made is not None
    assert slots.leads_to("latest") == f"{FOLDER}/b20261102"
    assert slots.taken_back(wish(move_links=True))[1] is None


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
    assert slots.taken_back(wish(move_links=True))[1] == slots.revision


def test_a_night_under_way_does_not_install_what_was_undone_since_it_was_planned(slots: Nights) -> None:
    slots.drop(4, {"A": b"a4", "B": b"b4"})
    batch = slots.planned(4)
    assert not slots.prepare(batch).failures
    slots.taken_back(wish("b20261104", projects=("A",)))
    outcome = slots.publish(batch)
    assert not outcome.failures
    assert {one.project: one.state for one in outcome.done} == {"A": State.SKIPPED, "B": State.PUBLISHED}
    (skipped,) = [one for one in outcome.done if one.project == "A"]
    assert "it crashes, while this run was under way" in skipped.reason
    assert set(contents(slots, "b20261104")) == {"B"}
    slots.assert_whole()


def test_a_rebuilt_tree_is_replaced_by_what_stood_there_before_and_nothing_is_sent(slots: Nights) -> None:
    slots.install_build(3, {"A": b"rebuilt", "B": b"b3"}, "night/rebuilt")
    assert contents(slots, "b20261103")["A"] == b"rebuilt"
    stored = slots.data_objects()
    wanted = wish(projects=("A",), instead=Replacement.PREDECESSOR)
    plan, made = slots.taken_back(wanted)
    assert "what was there in revision main-b20261103, before the rebuild, takes its place" in str(plan.taken[0])
    assert made == slots.revision
    assert contents(slots, "b20261103")["A"] == b"a3"
    assert slots.data_objects() == stored
    assert slots.taken_back(wanted)[1] is None
    slots.assert_whole()
    # the rebuild does not come back by itself; what is let come again, does
    assert slots.plan_of(night_of(3, "night/again")).batches == ()
    assert redo(slots.site, wish(projects=("A",)), now=now(), by="ann") == 1
    slots.install_build(3, {"A": b"rebuilt", "B": b"b3"}, "night/let")
    assert contents(slots, "b20261103")["A"] == b"rebuilt"


def test_bytes_that_were_undone_themselves_are_no_predecessor_and_untagged_ones_neither(slots: Nights) -> None:
    slots.taken_back(wish(projects=("A",), instead=Replacement.PREDECESSOR))
    slots.install_build(3, {"A": b"rebuilt", "B": b"b3"}, "night/rebuilt")
    # b20261103's first A crashed: its predecessor is another build's
    plan = plan_undo(slots.site, wish(projects=("A",), instead=Replacement.PREDECESSOR))
    assert plan.taken[0].after is not None
    assert plan.taken[0].after.build_id == "b20261102"
    slots.install_build(3, {"A": b"rebuilt", "B": b"second"}, "night/second")
    slots.install_build(3, {"A": b"rebuilt", "B": b"third"}, "night/third")
    only_b = plan_undo(slots.site, wish(projects=("B",), instead=Replacement.PREDECESSOR)).taken[0].after
    assert only_b is not None
    assert only_b.tag == "main-b20261103"


@pytest.mark.parametrize("slots", ["copy", "link"], indirect=True)
def test_a_base_that_is_undone_leaves_copies_whole_and_is_refused_where_links_lead_to_it(slots: Nights) -> None:
    slots.install_build(4, {"B": b"b4"}, **base_of(3))
    wanted = wish(move_links=True)
    if slots.site.settings.slot("main").partial == "copy":
        slots.taken_back(wanted)
        assert contents(slots, "b20261104") == {"A": b"a3", "B": b"b4"}
        slots.collector().run()
        assert slots.leads_to("latest") == f"{FOLDER}/b20261104"
    else:
        with pytest.raises(UndoRefused) as closed:
            slots.taken_back(wanted)
        assert [line.split()[0] for line in closed.value.reasons] == [f"{FOLDER}/b20261104/A/x86_64"]
        # what nobody leads to may go
        slots.taken_back(wish(projects=("B",), move_links=True))
        # a predecessor leaves nothing dangling, and it is said who shows it
        plan, _ = slots.taken_back(wish(projects=("A",), instead=Replacement.PREDECESSOR))
        assert any(
            "b20261104 of 2026-11-04 leads to" in one and "shows what takes its place" in one for one in plan.notes
        )
        assert contents(slots, "b20261103")["A"] == b"a2"
        assert slots.head().revision.nested_at(f"{FOLDER}/b20261103/A/x86_64") is not None
    slots.assert_whole()


def test_a_link_of_a_partial_build_meanwhile_stops_the_undoing(slots: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    slots.drop(4, {"B": b"b4"}, **base_of(3))
    plan = slots.plan_of(night_of(4))
    batch = plan.inherited
    assert batch is not None

    def inherit() -> None:
        taken = inherit_batch(slots.site, attempt(), batch)
        assert not taken.failures
        assert not taken.busy

    meanwhile(monkeypatch, inherit)
    with refused(DestinationError, path=f"{FOLDER}/b20261103"):
        slots.taken_back(wish(move_links=True))
    assert f"{FOLDER}/b20261103/A/x86_64/file" in slots.files()


@pytest.mark.parametrize("slots", ["copy", "link"], indirect=True)
def test_a_project_of_a_partial_build_goes_comes_again_and_the_base_keeps_its_own(slots: Nights) -> None:
    slots.install_build(4, {"B": b"b4"}, **base_of(3))
    for project in "AB":
        slots.taken_back(wish("b20261104", projects=(project,), move_links=True))
    assert slots.head().revision.lookup(f"{FOLDER}/b20261104") is None
    assert slots.leads_to("latest") == f"{FOLDER}/b20261103"
    assert contents(slots, "b20261103")["A"] == b"a3"
    assert redo(slots.site, wish("b20261104"), now=now(), by="ann") == 2
    slots.install_build(4, {"B": b"b4"}, "night/let", **base_of(3))
    assert slots.link_states(night_of(4)) == {LinkState.UNCHANGED}
    assert slots.leads_to("latest") == f"{FOLDER}/b20261104"
    slots.assert_whole()
