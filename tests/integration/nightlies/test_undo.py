"""A build is taken back, or some of it, in one revision; what others published since and what leads to it is safe."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.nightly import app
from include.cvmfs.errors import DestinationError
from include.nightlies.errors import BuildUnknown, UndoRefused, UnknownChoice
from include.nightlies.records import links as linked
from include.nightlies.removal import undo as step
from include.nightlies.removal.undo import Replacement, UndoPlan, Wish, plan_undo, redo, undo
from include.nightlies.rules.states import State
from include.nightlies.steps.plan import plan_night
from include.site.single_changes import linking
from tests.fakes.attempts import attempt
from tests.fakes.refused import refused
from tests.integration.nightlies.conftest import FQRN, Nights, now
from tests.integration.nightlies.test_links import (
    build_of,
    leads_to,
    link,
    night_of,
    publish,
    revision,
    whole_night,
    with_slots,
)
from tests.integration.nightlies.test_partial import base_of, data_objects
from tests.integration.nightlies.test_partial import run as partial_night

FOLDER = "/nightlies/main"
SLOT = """slots:
  main: {{repository: {fqrn}, store: cvmfs, partial: link, links: {{}}}}
  other: {{repository: {fqrn}, store: cvmfs}}
"""


@pytest.fixture
def slots(nights: Nights, tmp_path: Path) -> Nights:
    """Two whole builds of two projects, `latest` at the second."""
    here = with_slots(nights, tmp_path, SLOT.format(fqrn=FQRN))
    for day in (2, 3):
        build_of(day, {"A": b"a%d" % day, "B": b"b%d" % day}).store_in(here.site.store("cvmfs"))
        whole_night(here, night_of(day))
    return here


def wish(build_id: str = "b20261103", **changes: object) -> Wish:
    return Wish("main", build_id, "it crashes", **changes)  # type: ignore[arg-type]


def taken_back(nights: Nights, wanted: Wish) -> tuple[UndoPlan, int | None]:
    return undo(nights.site, attempt("test/undo"), wanted)


def files(nights: Nights) -> dict[str, bytes]:
    head = nights.site.head(FQRN)
    return {
        path: head.revision.read(path)
        for path, entry in head.revision.walk("/nightlies")
        if entry.is_regular and entry.name == "file"
    }


def test_a_dry_run_says_what_would_go_and_which_links_lead_there_and_changes_nothing(slots: Nights) -> None:
    before = revision(slots)
    plan = plan_undo(slots.site, wish())
    said = "\n".join(plan.lines())
    for part in ("A/x86_64: /nightlies/main/b20261103/A/x86_64 (2 files, 2 bytes): goes", "latest leads to"):
        assert part in said
    assert {line.split()[0] for line in plan.refused} == {f"{FOLDER}/latest", f"{FOLDER}/Tue"}
    with refused(UndoRefused, reasons=plan.refused):
        taken_back(slots, wish())
    assert revision(slots) == before
    moved = plan_undo(slots.site, wish(move_links=True))
    assert [str(one) for one in moved.links] == [
        f"{FOLDER}/latest: leads to {FOLDER}/b20261103, moves to {FOLDER}/b20261102",
        f"{FOLDER}/Tue: leads to {FOLDER}/b20261103, goes",
    ]


def test_a_build_goes_in_one_revision_with_its_directories_its_links_move_and_again_changes_nothing(
    slots: Nights,
) -> None:
    before = revision(slots)
    _, made = taken_back(slots, wish(move_links=True))
    assert made == revision(slots) == before + 1
    head = slots.site.head(FQRN)
    assert head.revision.lookup(f"{FOLDER}/b20261103") is None
    assert leads_to(slots, "latest") == leads_to(slots, "Mon") == f"{FOLDER}/b20261102"
    assert leads_to(slots, "Tue") == ""
    assert set(files(slots)) == {f"{FOLDER}/b20261102/{one}/x86_64/file" for one in "AB"}
    plan, again = taken_back(slots, wish(move_links=True))
    assert again is None
    assert plan.taken == ()
    assert revision(slots) == made
    reasons = [one.reason for one in linked.history(slots.site.ledger, FQRN, f"{FOLDER}/latest")]
    assert "is undone: it crashes" in reasons[0]
    assert slots.check().problems == ()


@pytest.mark.parametrize("by", ["undo_build", "nightshift repo symlink"])
def test_links_that_a_build_of_the_future_took_are_put_back_and_the_next_night_moves_them_on(
    slots: Nights, by: str
) -> None:
    build_of(30, {"A": b"too early"}).store_in(slots.site.store("cvmfs"))
    whole_night(slots, night_of(30))
    assert (leads_to(slots, "latest"), leads_to(slots, "Mon")) == (f"{FOLDER}/b20261130",) * 2
    if by == "undo_build":
        taken_back(slots, wish("b20261130", move_links=True))
        assert leads_to(slots, "Mon") == f"{FOLDER}/b20261102"
    else:
        change = linking(f"{FOLDER}/latest", "b20261103", now=now())
        publisher = slots.site.publisher(FQRN)
        publisher.change(f"{FOLDER}/latest", change.apply, holder="test", now=now())
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261103"
    build_of(4, {"A": b"a4"}).store_in(slots.site.store("cvmfs"))
    whole_night(slots, night_of(4))
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261104"


def test_what_is_undone_is_not_installed_again_until_somebody_lets_it_or_it_is_rebuilt(slots: Nights) -> None:
    taken_back(slots, wish(move_links=True))
    night = night_of(3, "night/again")
    plan = plan_night(slots.site, attempt(), night, max_mapped=1)
    assert plan.batches == ()
    assert {one.state for one in plan.settled} == {State.SKIPPED}
    assert all("undone at" in one.reason and "it crashes" in one.reason for one in plan.settled)
    assert redo(slots.site, wish(projects=("A",)), now=now()) == 1
    build_of(3, {"A": b"a3", "B": b"rebuilt"}).store_in(slots.site.store("cvmfs"))
    whole_night(slots, night_of(3, "night/rebuilt"))
    found = files(slots)
    assert (found[f"{FOLDER}/b20261103/A/x86_64/file"], found[f"{FOLDER}/b20261103/B/x86_64/file"]) == (
        b"a3", b"rebuilt",
    )  # fmt: skip
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261103"
    assert slots.check().problems == ()


def test_one_project_is_replaced_by_its_predecessor_the_links_stay_and_nothing_is_sent(slots: Nights) -> None:
    before, stored = revision(slots), data_objects(slots)
    only_b = wish(projects=("B",), instead=Replacement.PREDECESSOR)
    _, made = taken_back(slots, only_b)
    assert made == before + 1
    found = files(slots)
    assert found[f"{FOLDER}/b20261103/B/x86_64/file"] == b"b2"
    assert found[f"{FOLDER}/b20261103/A/x86_64/file"] == b"a3"
    assert data_objects(slots) == stored
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261103"
    assert taken_back(slots, only_b)[1] is None
    assert revision(slots) == made
    assert slots.check().problems == ()


def test_what_others_published_since_stays(slots: Nights) -> None:
    build = build_of(3, {"Z": b"of another slot"})
    build.slot = "other"
    for entry in build.artifacts.values():
        entry["url"] = entry["url"].replace("main/", "other/", 1)
    build.store_in(slots.site.store("cvmfs"))
    night = night_of(3, "other/3")
    object.__setattr__(night, "slot", "other")
    publish(slots, night)
    taken_back(slots, wish(move_links=True))
    assert files(slots)["/nightlies/other/b20261103/Z/x86_64/file"] == b"of another slot"
    assert slots.check().problems == ()


def test_a_tree_that_changed_since_it_was_looked_at_is_not_taken_away(
    slots: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = plan_undo(slots.site, wish(projects=("A",), move_links=True))
    build_of(3, {"A": b"rebuilt", "B": b"b3"}).store_in(slots.site.store("cvmfs"))
    publish(slots, night_of(3, "night/rebuilt"))
    before = revision(slots)
    monkeypatch.setattr(step, "plan_undo", lambda *_: looked)
    with refused(DestinationError, path=f"{FOLDER}/b20261103/A/x86_64"):
        taken_back(slots, looked.wish)
    assert revision(slots) == before


def test_a_tree_of_somebody_else_is_refused(slots: Nights) -> None:
    place = f"{FOLDER}/b20261103/A/x86_64"
    linking(f"{place}/by-hand", "x", now=now()).commit(slots.site, FQRN, holder="other", now=now())
    (line, *_) = plan_undo(slots.site, wish(projects=("A",))).refused
    assert "which no run of this ledger published" in line


def test_a_base_that_links_of_a_partial_build_lead_to_is_refused_until_that_build_is_undone(slots: Nights) -> None:
    build_of(4, {"B": b"b4"}, **base_of(3)).store_in(slots.site.store("cvmfs"))
    partial_night(slots, night_of(4))
    link(slots, night_of(4))
    refused = plan_undo(slots.site, wish(move_links=True)).refused
    assert len(refused) == 1
    assert "of the partial build b20261104 of 2026-11-04 leads to" in refused[0]
    # the link of the partial build itself is undone like a tree
    taken_back(slots, wish("b20261104", move_links=True))
    assert slots.site.head(FQRN).revision.lookup(f"{FOLDER}/b20261104") is None
    taken_back(slots, wish(move_links=True))
    assert leads_to(slots, "latest") == f"{FOLDER}/b20261102"
    assert slots.check().problems == ()


def test_a_death_right_after_the_commit_is_made_good_by_the_next_try(
    slots: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    for wanted in (wish(projects=("B",), instead=Replacement.PREDECESSOR), wish(move_links=True)):
        with monkeypatch.context() as patch:
            patch.setattr(step, "_record", die)
            with pytest.raises(Died):
                taken_back(slots, wanted)
        before = revision(slots)
        assert taken_back(slots, wanted)[1] is None
        assert revision(slots) == before
    plan = plan_night(slots.site, attempt(), night_of(3, "night/again"))
    assert {one.state for one in plan.settled} == {State.SKIPPED}


def test_what_cannot_be_meant_is_refused_by_name(slots: Nights) -> None:
    with refused(BuildUnknown, slot="main", build_id="nothing"):
        plan_undo(slots.site, wish("nothing"))
    with refused(UnknownChoice, kind="project", names=("C",), known=("A", "B")):
        plan_undo(slots.site, wish(projects=("C",)))
    (line, _) = plan_undo(slots.site, wish("b20261102", instead=Replacement.PREDECESSOR)).refused
    assert "no earlier build has it" in line


def test_the_command_says_what_it_would_do_refuses_does_it_and_lets_it_be_done_again(slots: Nights) -> None:
    words = ["undo", "--slot", "main", "--build", "b20261103", "--reason", "it crashes"]
    before, runner = revision(slots), CliRunner()
    said = runner.invoke(app, [*words, "--move-links"])
    assert said.exit_code == 0, said.output
    assert "A/x86_64: /nightlies/main/b20261103/A/x86_64 (2 files, 2 bytes): goes" in said.output
    assert "add --yes to do it" in said.output
    assert revision(slots) == before
    refused = runner.invoke(app, [*words, "--yes"])
    assert isinstance(refused.exception, UndoRefused)
    done = runner.invoke(app, [*words, "--move-links", "--yes"])
    assert f"done in revision {before + 1}" in done.output
    again = runner.invoke(app, [*words, "--move-links", "--yes"])
    assert "nothing was to be done" in again.output
    assert revision(slots) == before + 1
    assert "2 artifacts" in runner.invoke(app, ["redo", "--slot", "main", "--build", "b20261103"]).output
