"""Who moved a link, from which build a tree came, who took it back: told for nights, rebuilds and partial builds."""

from __future__ import annotations

from typing import Any

import pytest

from include.nightlies.removal import undo as undo_step
from include.nightlies.removal.undo import Replacement, Wish, undo
from include.nightlies.rules.publication import State
from include.nightlies.steps import links as link_step
from include.provenance.query import ask
from include.provenance.records import check
from tests.fakes.attempts import attempt
from tests.nights import FOLDER, Nights, base_of, night_of
from tests.site import FQRN, KEY_ID, now


@pytest.fixture(params=["copy"])
def slots(nights: Nights, request: pytest.FixtureRequest) -> Nights:
    return nights.with_slot(partial=request.param, links={})


def who(nights: Nights, path: str, limit: int = 1) -> list[dict[str, Any]]:
    """Every answer; each of which its document in the store has to bear out."""
    asked = ask(nights.site, FQRN, path, limit=limit)
    for one in asked.answers:
        assert one.checked.verdict == f"signed by gateway key {KEY_ID}"
        assert check(nights.site, one.record, one.document).good
    return [one.to_json() for one in asked.answers]


def sha_of(nights: Nights, day: int, project: str = "A") -> str:
    (tree,) = who(nights, f"{FOLDER}/b202611{day:02}/{project}/x86_64")
    return str(tree["artifact_sha256"])


def test_a_link_says_which_run_moved_it_when_from_where_and_what_stood_before(slots: Nights) -> None:
    slots.install_build(2, {"A": b"2"})
    slots.install_build(3, {"A": b"3"})
    latest = who(slots, f"{FOLDER}/latest")[0]
    assert (latest["kind"], latest["run_id"], latest["holder"]) == ("link", "night/3", "test")
    assert (latest["leads_to"], latest["before"]) == (f"{FOLDER}/b20261103", f"{FOLDER}/b20261102")
    assert (latest["build_id"], latest["now"]) == ("b20261103", "this very link")
    assert latest["revision"] == slots.head().manifest.revision
    assert latest["reason"] == "from build b20261102 of 2026-11-02"
    assert latest["published_at"].startswith(str(now().date()))
    (monday,) = [one for one in who(slots, f"{FOLDER}/Mon") if one["kind"] == "link"]
    assert (monday["run_id"], monday["before"], monday["reason"]) == ("night/2", None, "new")
    inside, tree = who(slots, f"{FOLDER}/latest/A/x86_64/file")
    assert inside["path"] == f"{FOLDER}/latest"
    assert (tree["path"], tree["run_id"]) == (f"{FOLDER}/b20261103/A/x86_64", "night/3")


def test_a_link_that_stays_is_moved_by_nobody(slots: Nights) -> None:
    slots.install_build(3, {"A": b"3"})
    slots.install_build(2, {"A": b"2"})
    slots.install_build(3, {"A": b"3"}, "night/again")
    found = [one for one in who(slots, f"{FOLDER}/latest", 9) if one["kind"] == "link"]
    assert [one["run_id"] for one in found] == ["night/3"]


def test_a_rebuilt_artifact_has_both_in_its_history(slots: Nights) -> None:
    slots.install_build(2, {"A": b"first"})
    slots.install_build(2, {"A": b"second"}, "night/rebuilt")
    new, old = who(slots, f"{FOLDER}/b20261102/A/x86_64", 9)
    assert [new["run_id"], old["run_id"]] == ["night/rebuilt", "night/2"]
    assert new["artifact_sha256"] != old["artifact_sha256"]
    assert [new["now"], old["now"]] == ["this very tree", "another tree"]


@pytest.mark.parametrize("slots", ["copy", "link"], indirect=True)
def test_what_a_partial_build_took_names_it_and_the_build_that_its_artifact_was_published_for(slots: Nights) -> None:
    slots.install_build(2, {"A": b"a", "B": b"b"})
    slots.install_build(3, {"B": b"newer"}, **base_of(2))
    slots.install_build(4, {"B": b"newest"}, **base_of(3))
    first = sha_of(slots, 2)
    taken = who(slots, f"{FOLDER}/b20261104/A/x86_64")[0]
    assert (taken["build_id"], taken["from_build"], taken["run_id"]) == ("b20261104", "b20261103", "night/4")
    assert taken["artifact_sha256"] == taken["origin"]["artifact_sha256"] == first
    assert (taken["origin"]["build_id"], taken["origin"]["run_id"]) == ("b20261102", "night/2")
    assert taken["origin"]["path"] == f"{FOLDER}/b20261102/A/x86_64"
    if slots.site.settings.slot("main").partial == "link":
        assert (taken["kind"], taken["leads_to"]) == ("link", f"{FOLDER}/b20261102/A/x86_64")
        assert taken["now"] == "this very link"
    else:
        assert (taken["kind"], taken["now"]) == ("tree", "this very tree")
        assert taken["came_from"] == f"{FOLDER}/b20261103/A/x86_64"
        # the base is rebuilt: what was taken from it stays what it was, and is told so
        slots.install_build(2, {"A": b"rebuilt", "B": b"b"}, "night/rebuilt")
        assert who(slots, f"{FOLDER}/b20261104/A/x86_64")[0]["origin"]["artifact_sha256"] == first
    own = who(slots, f"{FOLDER}/b20261104/B/x86_64")[0]
    assert (own["from_build"], own["origin"]) == (None, None)


def undone(nights: Nights, **changes: object) -> None:
    wish = Wish("main", "b20261103", "it crashes", **changes)  # type: ignore[arg-type]
    undo(nights.site, attempt("by hand/op", holder="op@host"), wish)


def test_what_was_taken_back_says_who_did_why_and_what_its_links_became(slots: Nights) -> None:
    slots.install_build(2, {"A": b"2", "B": b"2"})
    slots.install_build(3, {"A": b"3", "B": b"3"})
    crashed = sha_of(slots, 3)
    undone(slots, move_links=True)
    gone, was = who(slots, f"{FOLDER}/b20261103/A/x86_64/file", 9)
    assert (gone["kind"], gone["reason"], gone["holder"], gone["run_id"]) == (
        "removed", "it crashes", "op@host", "by hand/op",
    )  # fmt: skip
    assert (gone["artifact_sha256"], gone["before"]) == (crashed, was["nested_hash"])
    assert (gone["build_id"], gone["now"]) == ("b20261103", "nothing, as it was left")
    assert gone["revision"] == slots.head().manifest.revision
    latest = who(slots, f"{FOLDER}/latest")[0]
    assert (latest["leads_to"], latest["before"]) == (f"{FOLDER}/b20261102", f"{FOLDER}/b20261103")
    assert "is undone: it crashes" in latest["reason"]
    (tuesday, _) = who(slots, f"{FOLDER}/Tue", 9)
    assert (tuesday["kind"], tuesday["before"]) == ("removed", f"{FOLDER}/b20261103")


def test_what_a_predecessor_replaced_says_whose_tree_it_is_and_why(slots: Nights) -> None:
    slots.install_build(2, {"A": b"2"})
    slots.install_build(3, {"A": b"3"})
    undone(slots, instead=Replacement.PREDECESSOR)
    new, old = who(slots, f"{FOLDER}/b20261103/A/x86_64", 9)
    assert (new["kind"], new["from_build"], new["came_from"]) == ("tree", "b20261102", f"{FOLDER}/b20261102/A/x86_64")
    assert new["artifact_sha256"] == new["origin"]["artifact_sha256"] == sha_of(slots, 2)
    assert (new["reason"], new["now"], old["now"]) == ("it crashes", "this very tree", "another tree")
    assert new["before"] == old["nested_hash"]


class Died(BaseException):
    pass


def die(*_: object, **__: object) -> None:
    raise Died


@pytest.mark.parametrize("instead", list(Replacement))
def test_what_was_taken_back_by_a_try_that_died_is_told_by_the_next_and_once(
    slots: Nights, instead: Replacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots.install_build(2, {"A": b"2"})
    slots.install_build(3, {"A": b"3"})
    wanted: dict[str, object] = {"instead": instead, "move_links": True}
    with monkeypatch.context() as patch:
        patch.setattr(undo_step, "_record", die)
        with pytest.raises(Died):
            undone(slots, **wanted)
    before = slots.revision
    for _ in range(2):
        undone(slots, **wanted)
    assert slots.revision == before, "the tree was changed by the try that died"
    assert {done.state for done in slots.plan_of(night_of(3, "night/again")).settled} == {State.SKIPPED}
    new, _ = who(slots, f"{FOLDER}/b20261103/A/x86_64", 9)
    kind, origin = ("removed", None) if instead is Replacement.NOTHING else ("tree", "b20261102")
    assert (new["kind"], new["reason"], new["from_build"]) == (kind, "it crashes", origin)


def test_a_link_that_a_dead_try_moved_is_not_claimed_by_the_next(
    slots: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots.drop(2, {"A": b"2"})
    slots.to_the_gate(night_of(2))
    with monkeypatch.context() as patch:
        patch.setattr(link_step, "_recorded", die)
        with pytest.raises(Died):
            slots.link(night_of(2))
    for _ in range(2):
        slots.link(night_of(2))
    (latest,) = [one for one in who(slots, f"{FOLDER}/latest", 9) if one["kind"] == "link"]
    assert (latest["leads_to"], latest["reason"]) == (
        f"{FOLDER}/b20261102", "found in this state; the task that changed it did not record it",
    )  # fmt: skip


def test_what_others_published_and_what_nobody_did(slots: Nights) -> None:
    slots.install_build(2, {"A": b"x"})
    assert ask(slots.site, FQRN, "/nightlies").answers == ()
    assert ask(slots.site, FQRN, "/nightlies").stands is True
    assert ask(slots.site, FQRN, "/elsewhere").stands is False
