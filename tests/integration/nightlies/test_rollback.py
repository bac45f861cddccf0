"""A repository goes back: readers, links, tags and the ledger agree afterwards, and no night undoes it."""

from __future__ import annotations

import pytest

from include.cvmfs.commit.commit import MANIFEST_KEY
from include.cvmfs.commit.tags import add_tag
from include.cvmfs.errors import REVISION_UNKNOWN, KeyFileError
from include.cvmfs.format.keys import save_signer
from include.nightlies.errors import PREVIEW_OUTDATED, ROLLBACK_REFUSED, NotApproved
from include.nightlies.records import builds, links as linked, questions, undos as undone
from include.nightlies.removal.removal import Effect
from include.nightlies.removal.rollback import (
    RecordedRollback,
    RolledBack,
    ask_rollback,
    record_rollback,
    require_possible,
    require_rollback_approved,
    roll_back,
    unrecorded,
)
from include.nightlies.removal.rollback_preview import (
    RollbackPreview,
    RollbackWish,
    SeenRollback,
    preview_rollback,
    require_whole,
)
from include.nightlies.removal.undo import Wish, redo, undo
from include.nightlies.rules.approval import Answer, QuestionKind
from include.nightlies.rules.build import LinkState
from include.nightlies.rules.publication import State
from include.nightlies.steps.approve import settle_question
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.publish import reserve_run
from include.provenance.records import ChangeKind, newest
from tests.fakes.attempts import attempt
from tests.fakes.builds import tree
from tests.fakes.refused import refused
from tests.integration.nightlies.conftest import Once
from tests.nights import FOLDER, LINKED, Nights, night_of
from tests.site import FQRN, SIGNER, now

TO = "main-b20261103"
"""The tag of the second night."""


@pytest.fixture
def slots(nights: Nights, once: Once) -> Nights:
    """Three whole builds of two projects, each with its tag; `latest` at the third. The signing key is here."""
    nights.with_slot(**LINKED)
    save_signer(nights.site.settings.gateway.keys, FQRN, SIGNER)
    once("rollback", lambda: [nights.install_build(day, {"A": b"a%d" % day, "B": b"b%d" % day}) for day in (2, 3, 4)])
    return nights


def previewed(nights: Nights, target: str | int = TO) -> RollbackPreview:
    return preview_rollback(nights.site, RollbackWish(FQRN, target, "it crashes"))


def rolled(nights: Nights, preview: RollbackPreview, run: str = "rollback/1") -> RolledBack:
    return roll_back(nights.site, attempt(run), preview.wish, seen=preview.seen)


def both(nights: Nights, target: str | int = TO) -> tuple[RolledBack, RecordedRollback]:
    preview = previewed(nights, target)
    done = rolled(nights, preview)
    return done, record_rollback(nights.site, attempt("rollback/1"), done, preview.wish.reason)


def settled(nights: Nights, day: int, run: str = "again") -> dict[str, State]:
    """What a plan of that night settles at once, by project."""
    plan = plan_night(nights.site, attempt(run), night_of(day, f"{run}/{day}"), max_mapped=1)
    return {str(one.project): one.state for one in plan.settled}


def undone_of(nights: Nights, build_id: str) -> set[str]:
    build = builds.build(nights.site.ledger, "main", build_id)
    assert build is not None
    marked = {artifact for artifact, _ in undone.of_build(nights.site.ledger, build.id)}
    return {one.artifact.project for one in build.artifacts if one.id in marked}


def test_a_preview_names_builds_links_tags_and_figures_and_changes_nothing(slots: Nights) -> None:
    before = slots.store.get(MANIFEST_KEY)
    preview = previewed(slots)
    assert {(one.path, one.effect) for one in preview.content.artifacts} == {
        (f"{FOLDER}/b20261104/{name}/x86_64", Effect.GOES) for name in "AB"
    }
    assert [str(one) for one in preview.content.links] == [
        f"{FOLDER}/latest: leads to {FOLDER}/b20261104, then to {FOLDER}/b20261103",
        f"{FOLDER}/Wed: leads to {FOLDER}/b20261104, goes",
    ]
    total = preview.content.places.total
    assert (total.bytes_gone, total.bytes_back, total.back) == (4, 0, 0)
    assert preview.seen.tags_lost == ("main-b20261104",)
    assert preview.content.places.elsewhere == {}
    said = "\n".join(preview.lines())
    assert "goes: build b20261104 of 2026-11-04 of slot main, 2 of 2 artifacts (A/x86_64, B/x86_64)" in said
    assert "tag main-b20261104 goes" in said
    assert slots.store.get(MANIFEST_KEY) == before


def test_readers_links_tags_and_the_ledger_agree_afterwards_and_the_next_night_goes_on(slots: Nights) -> None:
    before = slots.revision
    done, told = both(slots)
    assert (done.revision, slots.revision) == (before + 1, before + 1)
    assert told == RecordedRollback(undone=2, back=0, links=2, tags=1)
    assert set(slots.files()) == {f"{FOLDER}/b2026110{day}/{name}/x86_64/file" for day in (2, 3) for name in "AB"}
    assert (slots.leads_to("latest"), slots.leads_to("Wed")) == (f"{FOLDER}/b20261103", "")
    ledger = slots.site.ledger
    led = linked.led_to(ledger, FQRN, f"{FOLDER}/latest")
    assert led is not None
    assert (led.build_id, linked.led_to(ledger, FQRN, f"{FOLDER}/Wed")) == ("b20261103", None)
    assert linked.history(ledger, FQRN, "main-b20261104")[0].state == LinkState.REMOVED.value
    gone = newest(ledger, FQRN, f"{FOLDER}/b20261104/A/x86_64")
    assert gone is not None
    assert (gone.kind, gone.revision) == (ChangeKind.REMOVED, before + 1)
    assert "it crashes" in (gone.reason or "")
    # neither the night of the build nor another one brings it back
    assert settled(slots, 4) == {"A": State.SKIPPED, "B": State.SKIPPED}
    assert settled(slots, 3) == {"A": State.UNCHANGED, "B": State.UNCHANGED}
    slots.install_build(5, {"A": b"a5", "B": b"b5"})
    assert slots.leads_to("latest") == f"{FOLDER}/b20261105"
    slots.assert_whole()


def test_what_went_is_installed_again_after_a_redo_only(slots: Nights) -> None:
    both(slots)
    assert redo(slots.site, Wish("main", "b20261104", ""), now=now(), by="ann") == 2
    slots.install_build(4, {"A": b"a4", "B": b"b4"}, "redone/4")
    assert slots.leads_to("latest") == slots.leads_to("Wed") == f"{FOLDER}/b20261104"
    slots.assert_whole()


def test_the_same_again_changes_nothing_and_a_try_that_died_is_finished(slots: Nights) -> None:
    preview = previewed(slots)
    done = rolled(slots, preview)
    assert rolled(slots, preview) == done
    slots.install_build(5, {"A": b"a5", "B": b"b5"})  # another run published before the second try
    assert rolled(slots, preview) == done
    first = record_rollback(slots.site, attempt("rollback/1"), done, "it crashes")
    again = record_rollback(slots.site, attempt("rollback/1"), done, "it crashes")
    assert first == again
    assert undone_of(slots, "b20261104") == {"A", "B"}
    latest = linked.history(slots.site.ledger, FQRN, f"{FOLDER}/Wed")
    assert [one.state for one in latest].count(LinkState.REMOVED.value) == 1


def test_a_command_that_died_before_it_told_the_ledger_finds_that_out(slots: Nights) -> None:
    assert unrecorded(slots.site, previewed(slots)) is None
    done = rolled(slots, previewed(slots))
    left = unrecorded(slots.site, previewed(slots))
    assert left is not None
    assert (left.from_root, left.revision, left.root) == (done.from_root, done.revision, done.root)
    assert unrecorded(slots.site, previewed(slots, "main-b20261102")) is None
    slots.install_build(5, {"A": b"a5", "B": b"b5"})
    assert unrecorded(slots.site, previewed(slots, slots.revision)) is None


def test_what_was_published_again_since_is_not_marked(slots: Nights) -> None:
    done = rolled(slots, previewed(slots))
    slots.install_build(4, {"A": b"a4", "B": b"b4"}, "at once/4")  # before the ledger was told
    told = record_rollback(slots.site, attempt("rollback/1"), done, "it crashes")
    assert (told.undone, undone_of(slots, "b20261104")) == (0, set())


def test_what_was_undone_comes_back_by_a_number_and_counts_as_undone_no_more(slots: Nights) -> None:
    before = slots.revision
    undo(slots.site, attempt("undo/1"), Wish("main", "b20261104", "by mistake", move_links=True))
    assert undone_of(slots, "b20261104") == {"A", "B"}
    preview = previewed(slots, before)
    assert {one.effect for one in preview.content.artifacts} == {Effect.COMES_BACK}
    assert preview.content.places.total.bytes_back == 4
    _, told = both(slots, before)
    assert (told.undone, told.back) == (0, 2)
    assert undone_of(slots, "b20261104") == set()
    assert settled(slots, 4) == {"A": State.UNCHANGED, "B": State.UNCHANGED}
    assert slots.leads_to("latest") == f"{FOLDER}/b20261104"
    back = newest(slots.site.ledger, FQRN, f"{FOLDER}/b20261104/A/x86_64")
    assert back is not None
    assert back.kind is ChangeKind.TREE


def test_a_rebuild_is_taken_back_and_not_installed_again_but_the_next_rebuild_is(slots: Nights) -> None:
    before = slots.revision
    slots.install_build(4, {"A": b"rebuilt", "B": b"b4"}, "rebuilt/4")
    preview = previewed(slots, before)
    assert [(one.name, one.effect) for one in preview.content.artifacts] == [("A/x86_64", Effect.CHANGES)]
    assert (preview.content.places.total.bytes_gone, preview.content.places.total.bytes_back) == (7, 2)
    both(slots, before)
    assert slots.head().revision.read(f"{FOLDER}/b20261104/A/x86_64/file") == b"a4"
    assert settled(slots, 4) == {"A": State.SKIPPED, "B": State.UNCHANGED}
    slots.install_build(4, {"A": b"third", "B": b"b4"}, "third/4")
    assert slots.head().revision.read(f"{FOLDER}/b20261104/A/x86_64/file") == b"third"


def test_what_was_published_by_hand_goes_with_its_figures_and_who_says_so(slots: Nights) -> None:
    slots.by_hand("/by/hand", tree({"f": b"12345"}))
    preview = previewed(slots, "main-b20261104")
    assert set(preview.content.places.elsewhere) == {"/by"}
    assert preview.content.places.at["/by"].bytes_gone == 5
    done, told = both(slots, "main-b20261104")
    assert told.undone == 0
    assert slots.head().revision.lookup("/by") is None
    gone = newest(slots.site.ledger, FQRN, "/by")
    assert gone is not None
    assert (gone.kind, gone.revision) == (ChangeKind.REMOVED, done.revision)


@pytest.mark.parametrize("moved_by", ["a publication", "a tag"])
def test_a_repository_that_moved_since_the_preview_is_not_rolled_back(slots: Nights, moved_by: str) -> None:
    preview = previewed(slots)
    if moved_by == "a publication":
        slots.by_hand("/by/hand", tree({"f": b"new"}))
    else:
        add_tag(slots.store, FQRN, "unseen", None, signer=SIGNER, now=int(now().timestamp()))
    before = slots.store.get(MANIFEST_KEY)
    with refused(PREVIEW_OUTDATED):
        rolled(slots, preview)
    assert slots.store.get(MANIFEST_KEY) == before
    rolled(slots, previewed(slots))


def test_a_revision_that_lost_objects_is_refused_and_none_of_the_current_one_is_looked_for(slots: Nights) -> None:
    before = slots.revision
    undo(slots.site, attempt("undo/1"), Wish("main", "b20261104", "by mistake", move_links=True))
    lost = slots.head().at("main-b20261104").entry(f"{FOLDER}/b20261104/A/x86_64/file").hash
    assert lost is not None
    slots.store.delete([lost.key])
    preview = previewed(slots, before)
    assert [line.split()[0] for line in preview.content.lost] == [lost.key]
    with refused(ROLLBACK_REFUSED):
        require_whole(preview)
    require_whole(previewed(slots))


def test_nothing_to_do_asks_nobody_and_a_number_of_the_past_is_refused(slots: Nights) -> None:
    preview = previewed(slots, "main-b20261104")
    assert preview.changes_nothing
    assert not ask_rollback(slots.site, attempt("rollback/1"), preview, wished=True).go
    with refused(REVISION_UNKNOWN, fqrn=FQRN):
        previewed(slots, 4711)


def test_a_yes_is_for_both_roots_and_the_tags_that_go(slots: Nights) -> None:
    site, run = slots.site, attempt("rollback/7")
    preview = previewed(slots)
    asked = ask_rollback(site, run, preview, wished=True).question
    assert asked is not None
    assert (asked.kind, asked.answer) == (QuestionKind.ROLLBACK, Answer.OPEN)
    assert "goes: build b20261104" in asked.body
    with refused(NotApproved, answer=Answer.OPEN):
        require_rollback_approved(site, preview.plan, run.run, wished=True)
    settle_question(site.ledger, run, asked.id, Answer.APPROVED, by="anna")
    require_rollback_approved(site, preview.plan, run.run, wished=True)
    assert questions.of_run(site.ledger, run.run)[0].answer is Answer.APPROVED
    with refused(NotApproved, answer=None):
        require_rollback_approved(site, previewed(slots, "main-b20261102").plan, run.run, wished=True)
    with refused(NotApproved, answer=None):
        require_rollback_approved(site, preview.plan, "rollback/8", wished=True)
    require_rollback_approved(site, preview.plan, "rollback/8", wished=False)
    assert ask_rollback(site, run, preview, wished=False).question is None
    seen = SeenRollback.of(preview.plan)
    assert SeenRollback.from_json(seen.to_json()) == seen


def test_where_the_signing_key_is_not_it_is_found_before_anybody_is_asked(nights: Nights) -> None:
    with pytest.raises(KeyFileError):
        require_possible(nights.site, FQRN)


def test_a_revision_with_empty_reservations_takes_what_was_published_since_and_says_so(slots: Nights) -> None:
    slots.drop(5, {"A": b"a5"})
    batch = slots.planned(5, "night/5")
    slots.prepare(batch)
    reserve_run(slots.site, attempt("night/5"), [batch])
    reserved = slots.revision
    assert not slots.publish(batch).failures
    preview = previewed(slots, reserved)
    assert [(one.path, one.effect) for one in preview.content.artifacts] == [
        (f"{FOLDER}/b20261105/A/x86_64", Effect.GOES)
    ]
    assert preview.content.reserved == (f"{FOLDER}/b20261105/A/x86_64",)
    assert "reserved and empty in that revision" in "\n".join(preview.lines())
    both(slots, reserved)
    assert undone_of(slots, "b20261105") == {"A"}
    assert settled(slots, 5) == {"A": State.SKIPPED}


def test_a_night_under_way_is_named(slots: Nights) -> None:
    slots.drop(5, {"A": b"a5"})
    slots.prepare(slots.planned(5, "late/5"))
    assert "1 prepared trees wait" in "\n".join(previewed(slots).lines())
