"""What a task of a collection is asked for, how it gives way, and what it leaves in files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.collect.report import CollectionReport, LostObject
from include.gateway.errors import GatewayError
from include.nightlies.errors import COLLECTION_RUN_REFUSED, NotWell
from include.nightlies.steps import care as step
from include.nightlies.steps.care import ALL_PAUSES_S, GROUP_PAUSE_S, Collected, GiveWay, file_name, parse_options
from tests.fakes.refused import refused

NONE = {"grace_days": None, "audited": None, "accept": None, "all_orphans": False, "dry_run": False}
USUAL = NONE | {"accept": ""}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, {}),
        ({"grace_days": "None", "audited": "", "accept": "None", "dry_run": "None"}, {}),
        ({"grace_days": "1.5", "audited": "20"}, {"grace_days": 1.5, "audited": 20}),
        ({"grace_days": 0, "audited": 0}, {"grace_days": 0.0, "audited": 0}),
        ({"accept": " a slot went ", "all_orphans": "True"}, {"accept": "a slot went", "all_orphans": True}),
        ({"dry_run": True, "all_orphans": "False"}, {"dry_run": True}),
    ],
)
def test_values_are_taken_as_they_are_or_from_a_template(given: dict[str, object], taken: dict[str, object]) -> None:
    assert parse_options(NONE | given) == USUAL | taken


@pytest.mark.parametrize(
    "given",
    [
        {"grace_days": "-1"}, {"grace_days": "nan"}, {"grace_days": "inf"}, {"grace_days": "soon"},
        {"grace_days": True}, {"audited": "1.5"}, {"all_orphans": "perhaps"}, {"dry_run": 7},
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_by_name(given: dict[str, object]) -> None:
    (name,) = given
    with refused(COLLECTION_RUN_REFUSED) as caught:
        parse_options(NONE | given)
    assert str(caught.value).startswith(name)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_sweep_waits_while_a_lease_is_held_for_a_limited_time() -> None:
    clock, held = Clock(), iter(["/a is held", "/a is held", None, None])
    pause = GiveWay(lambda: next(held), clock=clock, sleep=clock.sleep)
    pause()
    pause()
    assert clock.now == 2.0
    clock = Clock()
    pause = GiveWay(lambda: "/a is held", clock=clock, sleep=clock.sleep)
    pause()
    assert clock.now == GROUP_PAUSE_S
    for _ in range(100):
        pause()
    assert clock.now == ALL_PAUSES_S

    def away() -> str | None:
        raise GatewayError("connection refused")

    GiveWay(away, clock=clock, sleep=clock.sleep)()
    assert clock.now == ALL_PAUSES_S, "a gateway that does not answer is not waited for"


def test_a_name_of_a_run_becomes_that_of_a_file_and_keeps_its_end() -> None:
    assert file_name("nightly_gc/manual__2026-11-23T06:58:22+00:00") == "nightly_gc_manual__2026-11-23T06_58_22_00_00"
    assert file_name("../../x") == "_.._x"
    assert len(file_name("d" * 250 + "/" + "r" * 250)) == 200


def test_only_so_many_reports_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "REPORTS", 2)
    for number in range(4):
        report = CollectionReport("r.example.org", number, datetime(2026, 11, 1, tzinfo=UTC))
        (tmp_path / f"run{number}.deleted").write_text("a log\n")
        step._written(report, tmp_path / f"run{number}")
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        f"run{number}.{suffix}" for number in (2, 3) for suffix in ("json", "txt", "deleted")
    )


def test_what_was_not_deleted_or_is_lost_is_named_with_the_report() -> None:
    report = CollectionReport("r.example.org", failed={"data/aa/b": "access denied"}, lost=[LostObject("data/c", None)])
    done = Collected(report, Path("/var/reports/run.json"))
    assert done.to_json()["ok"] is False
    with pytest.raises(NotWell) as caught:
        done.require_whole()
    assert caught.value.problems[:2] == (
        "not deleted: data/aa/b: access denied", "lost: data/c is absent; the next preparation that has it sends it",
    )  # fmt: skip
    assert "/var/reports/run.txt" in str(caught.value)
    Collected(CollectionReport("r.example.org"), Path("/r.json")).require_whole()
