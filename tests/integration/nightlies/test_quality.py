"""The quality gate on a real store and gateway: what catalogs say, what each mode does, and what the pages are."""

from __future__ import annotations

import socket
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from include.nightlies.errors import GateClosed, QualityBlocked
from include.nightlies.records import quality
from include.nightlies.records.quality import QualityVerdict
from include.nightlies.removal.undo import Wish, undo
from include.nightlies.rules.build import BuildKey, LinkState
from include.nightlies.steps.gate import gate
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.values import Night
from include.quality.check import check_build, check_index
from include.quality.results import folder_of_run
from include.quality.suites import TreeFacts, tree_facts
from include.settings.prepare import Suite
from tests.fakes.archives import Member, file, folder
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, packed
from tests.fakes.refused import refused
from tests.nights import Nights, night_of
from tests.site import FQRN

GOOD = (folder("bin"), folder("lib"), file("bin/run", b"#!", mode=0o755), file("lib/libA.so", b"code", mode=0o755))
BAD = (folder("bin"), folder("lib"), file("bin/run", b"#!", mode=0o644), file("lib/libA.so", mode=0o755))


def symlink(name: str, target: str) -> Member:
    return Member(name.encode(), type=b"2", target=target.encode(), mode=0o777)


def judged_by(nights: Nights, **quality: Any) -> Nights:
    return nights.with_slot(links={"weekdays": False}, quality=quality or {"index": "block"})


def installed(nights: Nights, day: int, *members: Member, run: str = "") -> Night:
    """A build of one artifact, published and read back."""
    nights.store_build(Build(f"2026-11-{day:02}").add("A", "x86_64", packed(members)))
    nights.publish_night(night_of(day, run))
    return night_of(day, run)


def linked(nights: Nights, night: Night) -> LinkState:
    (link,) = nights.link(night).links
    return link.state


@pytest.fixture
def nights(nights: Nights) -> Nights:
    return judged_by(nights)


def test_the_catalogs_say_what_is_empty_executable_and_broken(nights: Nights) -> None:
    installed(
        nights, 2, *GOOD, file("lib/stub.a"), file("lib/empty.txt"), folder("sub"), symlink("lib64", "lib"),
        symlink("through", "lib64/libA.so"), symlink("sub/up", "../bin/run"), symlink("gone", "lib64/nothing"),
        symlink("circle", "circle"), symlink("outside", "/usr/bin/env"), symlink("variant", "$(ARCH)/x"),
        symlink("mounted", f"/cvmfs/{FQRN}/nightlies/main"), symlink("unmounted", f"/cvmfs/{FQRN}/nothing"),
    )  # fmt: skip
    where, revision = "/nightlies/main/b20261102/A/x86_64", nights.head().revision
    found = tree_facts(revision, FQRN, where, frozenset({"lib/stub.a", "bin/run", "not/here"}))
    assert found == TreeFacts(
        files=5, content=4, bytes=6, empty_libraries=frozenset({"lib/stub.a"}),
        executables=frozenset({"bin/run", "lib/libA.so"}),
        broken_links=frozenset({"gone", "circle", "unmounted"}), plain=frozenset({"lib/stub.a"}),
    )  # fmt: skip
    assert tree_facts(revision, FQRN, "/nightlies/main/nothing") is None


def test_a_blocked_build_gets_no_link_even_if_the_gate_is_left_out(nights: Nights) -> None:
    first = installed(nights, 2, *GOOD)
    check_index(nights.site, attempt(first.run), first)
    check_build(nights.site, attempt(first.run), first)
    assert nights.gate(first).counts == {"published": 1}
    assert linked(nights, first) is LinkState.MOVED

    bad = installed(nights, 3, *BAD)
    check_index(nights.site, attempt(bad.run), bad)
    empty, lost = "1 empty libraries: lib/libA.so", "1 files cannot be executed any more: bin/run"
    with refused(QualityBlocked, faults=tuple(f"suite published: A/x86_64: {what}" for what in (empty, lost))):
        check_build(nights.site, attempt(bad.run), bad)
    with refused(GateClosed, missing=(f"quality, suite published: A/x86_64: {empty} (and 1 more)",)):
        nights.gate(bad)
    assert linked(nights, bad) is LinkState.STAYED

    # the build after it is compared with the one that passed
    still = installed(nights, 4, *BAD)
    with pytest.raises(QualityBlocked):
        check_build(nights.site, attempt(still.run), still)
    # and the slot's mode counts as it is now
    assert linked(judged_by(nights, published="warn"), still) is LinkState.MOVED


def test_a_warning_moves_links_and_an_accepted_fault_keeps_its_reason(nights: Nights) -> None:
    judged_by(nights, index="off", published="warn")
    warned = installed(nights, 2, *BAD)
    (found, *_) = check_build(nights.site, attempt(warned.run), warned)
    assert (found.verdict, found.faults) == (QualityVerdict.WARNED, 1)
    nights.gate(warned)
    assert linked(nights, warned) is LinkState.MOVED

    judged_by(nights, index="off")
    again = installed(nights, 3, *BAD, folder("x"), file("x/libB.so"))
    with pytest.raises(QualityBlocked):
        check_build(nights.site, attempt(again.run), again)
    check_build(nights.site, attempt(again.run), again, accepted="a stub by intent")
    found = quality.of_run(nights.site.ledger, again.run)[Suite.PUBLISHED]
    assert (found.verdict, found.accepted) == (QualityVerdict.ACCEPTED, "a stub by intent")
    assert found.reason == "A/x86_64: 1 empty libraries: x/libB.so"
    nights.gate(again)
    assert linked(nights, again) is LinkState.MOVED


def test_what_was_undone_is_neither_judged_nor_history(nights: Nights) -> None:
    for day in (2, 3):
        night = installed(nights, day, *GOOD)
    _, revision = undo(nights.site, attempt("test/undo"), Wish("main", "b20261103", "it crashes"))
    assert revision is not None
    (published, *_) = check_build(nights.site, attempt(night.run), night)
    assert (published.verdict, published.reason) == (QualityVerdict.PASSED, "9 rules hold in 0 rows")
    found = quality.earlier_nights(nights.site.ledger, "main", BuildKey(date(2026, 11, 4), "b"), limit=7)
    assert [one.key.build_id for one in found] == ["b20261102"]
    assert found[0].artifacts["A/x86_64"].files == 3


def test_an_artifact_is_compared_with_the_newest_build_that_has_it(nights: Nights) -> None:
    installed(nights, 2, *GOOD, *(file(f"data{number}") for number in range(60)))
    between = Night("night/3", "main", date(2026, 11, 3), "test")
    archive = packed(GOOD)
    Build("2026-11-03").add("A", "x86_64", b"no archive").add("B", "x86_64", archive).store_in(
        nights.site.store("cvmfs")
    )
    for batch in plan_night(nights.site, attempt(between.run), between).batches:
        if "/A/" in str(batch):
            continue
        nights.prepare(batch)
        assert not nights.publish(batch).failures
    last = installed(nights, 4, *GOOD, *(file(f"data{number}") for number in range(30)))
    fewer = "suite published: A/x86_64: 33 files, 63 in the build before; expected at least 43"
    with refused(QualityBlocked, faults=(fewer,)):
        check_build(nights.site, attempt(last.run), last)


def test_a_suite_that_blocks_and_was_not_applied_closes_the_gate(nights: Nights) -> None:
    judged_by(nights, index="off")
    night = installed(nights, 2, *GOOD)
    missing = "quality, suite published: it was not checked; see the log of its task"
    with refused(GateClosed, missing=(missing,)):
        nights.gate(night)
    dry = Night(night.run, "main", night.date, "test", dry_run=True)
    assert gate(nights.site, attempt(night.run), night=dry).dry_run


def test_an_index_before_its_first_night_has_no_history(nights: Nights) -> None:
    nights.store_build(Build("2026-11-02").add("A", "x86_64", packed(GOOD)))
    (found,) = check_index(nights.site, attempt("night/2"), night_of(2))
    assert (found.verdict, found.build_id) == (QualityVerdict.PASSED, "b20261102")
    assert found.reason == "no history, 0 of 7 nights: sizes are not compared"


def test_the_pages_load_nothing_the_oldest_runs_go_and_nothing_else_is_written_or_asked(
    nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_by(nights, keep_runs=2)
    night = installed(nights, 2, *GOOD)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    monkeypatch.setenv("HOME", str(elsewhere))
    monkeypatch.chdir(elsewhere)
    asked: list[object] = []
    connect = socket.socket.connect

    def noted(self: socket.socket, address: object) -> None:
        asked.append(address)
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", noted)
    folders = []
    for number in range(3):
        run = f"nightly/../../{number}<script>"
        check_build(nights.site, attempt(run), Night(run, "main", night.date, "test"))
        folders.append(folder_of_run(nights.site.settings.paths.var, "main", run))
    assert asked == []
    assert list(elsewhere.iterdir()) == []
    assert [one.is_dir() for one in folders] == [False, True, True]
    assert {one.parent for one in folders} == {tmp_path / "var" / "quality" / "main"}
    for page in folders[-1].iterdir():
        text = page.read_text()
        assert "default-src 'none'" in text
        assert "http:" not in text
        assert "https:" not in text
        assert "<script" not in text
