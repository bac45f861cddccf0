"""What a run says of itself when it begins."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hooks.dag_runs import note_of, on_dag_run_running
from include.settings.load import load
from tests.fakes.plainsite import FQRN, plain_file

AT = datetime(2026, 11, 22, 23, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = plain_file(tmp_path, ("main", "weekly"), timezone="Europe/Zurich")
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(file))


@pytest.mark.parametrize(
    ("dag_id", "conf", "logical_date", "note"),
    [
        ("nightly_install", {"slot": "weekly", "build_date": "2026-11-21"}, None, "Slot weekly, build of 2026-11-21"),
        ("nightly_install_main", {}, AT, "Slot main, build of 2026-11-23"),
        ("nightly_install_main", {"build_date": None, "projects": None, "dry_run": False}, AT,
         "Slot main, build of 2026-11-23"),
        ("nightly_install_main", {"build_date": "2026-11-21", "projects": ["A", "B"], "dry_run": True}, None,
         "Dry run. Slot main, build of 2026-11-21; projects A, B"),
        ("nightly_install_main", {"build_date": "sometime"}, None, "Slot main"),
        ("nightly_install", {}, None, None),
        ("nightly_install_gone", {}, AT, None),
        ("publication", {"repository": FQRN, "path": "/a", "source": "s3://b/a.tar"}, None,
         f"s3://b/a.tar to {FQRN}:/a"),
        ("undo_build", {"slot": "main", "build_id": "b1", "reason": "crashes", "dry_run": True}, None,
         "Dry run. Undo of build b1, slot main: crashes"),
        ("rollback", {"repository": FQRN, "tag": "good", "revision": None, "reason": "bad night"}, None,
         f"Rollback of {FQRN} to good: bad night"),
        ("rollback", {"repository": FQRN, "revision": 7, "reason": "bad night"}, None,
         f"Rollback of {FQRN} to revision 7: bad night"),
        ("undo_build", {"slot": "main"}, None, None),
        ("leases", {"dry_run": True}, AT, None),
    ],
)  # fmt: skip
def test_a_run_says_its_slot_and_date_or_what_it_changes(
    dag_id: str, conf: dict[str, Any], logical_date: datetime | None, note: str | None
) -> None:
    assert note_of(load(), dag_id, conf, logical_date) == note


def test_braces_in_what_people_wrote_are_kept_and_a_long_text_is_cut() -> None:
    conf = {"slot": "main", "build_id": "b1", "reason": "{repository} " * 500}
    note = note_of(load(), "undo_build", conf, None)
    assert note is not None
    assert note.startswith("Undo of build b1, slot main: {repository} {repository}")
    assert len(note) == 1000


def test_a_note_that_a_person_or_an_earlier_pass_gave_stays() -> None:
    for given, note in (("mine", "mine"), (None, "Slot main, build of 2026-11-23")):
        run = SimpleNamespace(dag_id="nightly_install_main", conf=None, logical_date=AT, note=given, dag=None)
        on_dag_run_running(dag_run=run)
        assert run.note == note
