"""What waits in the triggerer while Nightshift is replaced goes on: rows of an earlier commit, tasks of this one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from include.nightlies.records import questions
from operators.approve import AwaitApprovalOperator
from operators.base import NightshiftOperator
from operators.begin import ReadIndexEventsOperator
from operators.night import PlanNightOperator
from operators.reserve import ReserveDestinationsOperator
from sensors.build import BuildSensor
from sensors.lease import LeaseFreeSensor
from sensors.objects import ObjectSensor
from sensors.place import PlaceSensor
from tests.compat.corpus import folders
from tests.compat.deferring import checkout_of, defer_with, event_of, resume, waiting
from tests.compat.keys import FQRN
from tests.compat.ledgers import BY_HAND, opened
from tests.compat.sites import DAY, CompatSite, running
from tests.compat.sqldump import load_into
from tests.fakes.taskcontext import task_context

NIGHT = {
    "run": "nightly_install_main/scheduled__2026-11-21T01:30:00+00:00", "slot": "main", "date": str(DAY),
    "reason": "by hand", "projects": [], "platforms": [], "dry_run": False,
}  # fmt: skip
PLACE = "/nightlies/main/b1/Gaudi/x86_64"


@dataclass
class Deferred:
    """Tasks that wait no longer for anything: their rows, and what a plan handed on to them."""

    site: CompatSite
    rows: dict[str, dict[str, Any]]
    batches: list[dict[str, Any]]

    def event(self, name: str) -> Any:
        return event_of(self.rows[name])

    def resumed(self, name: str, task: Any, **changes: Any) -> Any:
        return resume(task, self.rows[name], self.event(name), task_context(**changes))

    def reserve(self) -> ReserveDestinationsOperator:
        return ReserveDestinationsOperator(task_id="reserve", batches=self.batches)


@pytest.fixture(
    scope="module",
    params=[(folder, way) for folder in folders("deferred") for way in ("recorded", "checkout")],
    ids=lambda param: f"{param[0].name}-{param[1]}",
)
def deferred(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deferred]:
    """Rows as the corpus has them, or deferred now with that commit's code; without that commit those of the corpus."""
    folder, way = request.param
    place = tmp_path_factory.mktemp("deferred")
    recorded = json.loads((folder / "deferred" / "rows.json").read_text())
    with running(place / "site") as site:
        with waiting(site):
            old = checkout_of(folder.name, place / "checkout") if way == "checkout" else None
            if old is not None:
                found = defer_with(old, folder / "defer.py", site)
                assert found["rows"].keys() == recorded.keys()
                yield_of = Deferred(site, found["rows"], found["batches"])
            else:
                batches = PlanNightOperator(task_id="plan", night=NIGHT).execute(task_context())
                yield_of = Deferred(site, recorded, batches)
        yield yield_of


def test_a_task_that_waited_for_a_lease_takes_it(deferred: Deferred) -> None:
    event = deferred.event("lease")
    assert event["free"]
    assert event["since"] == json.loads(deferred.rows["lease"]["kwargs"])["since"]
    done = resume(deferred.reserve(), deferred.rows["lease"], event, task_context())
    assert done["refused"] == []
    assert deferred.site.client().leases() == []


def test_a_sensor_that_waited_for_a_lease_succeeds(deferred: Deferred) -> None:
    assert deferred.resumed("lease sensor", LeaseFreeSensor(task_id="free", repository=FQRN, path="/nightlies")) is None


def test_a_builder_that_waited_for_its_place_has_it(deferred: Deferred) -> None:
    deferred.reserve().execute(task_context())
    found = deferred.resumed("place", PlaceSensor(task_id="place", repository=FQRN, path=PLACE))
    assert (found["repository"], found["path"]) == (FQRN, PLACE)
    assert found["revision"] >= 1


def test_an_object_that_came_is_found(deferred: Deferred) -> None:
    deferred.site.builds.put("later", b"x")
    found = deferred.resumed("object", ObjectSensor(task_id="object", store="builds", key="later"))
    assert found.endswith("/builds/later")


def test_a_night_that_waited_for_its_index_goes_on(deferred: Deferred) -> None:
    day = date.fromisoformat(json.loads(deferred.rows["night"]["kwargs"])["night"]["date"])
    deferred.site.drop(day, "LHCb", build_id="b2")
    at = datetime(day.year, day.month, day.day, 1, 30, tzinfo=UTC)
    night = deferred.resumed(
        "night",
        BuildSensor(task_id="find_build", slot="main"),
        logical_date=at,
        run_type="scheduled",
        allow_future=True,
    )
    assert (night["slot"], night["date"], night["last"]) == ("main", str(day), True)


@pytest.mark.parametrize("name", ["thaw", "pause"])
def test_what_waited_for_a_thaw_or_an_outage_begins_again(deferred: Deferred, name: str) -> None:
    class Begins(ReserveDestinationsOperator):
        def execute(self, context: Any) -> Any:
            return "begun"

    task: NightshiftOperator = Begins(task_id="reserve", batches=deferred.batches)
    assert deferred.resumed(name, task) == "begun"


def test_a_watcher_still_says_which_night_begins(deferred: Deferred) -> None:
    today = datetime.now(UTC).date()
    for day in (today, today + timedelta(days=1)):
        deferred.site.drop(day, "Gaudi", slot="watched", build_id=f"b{day}")
    event = deferred.event("watcher")
    assert deferred.rows["watcher"]["name"] == "first_watched"
    # as Airflow makes an asset's event of it
    heard = SimpleNamespace(extra={"from_trigger": True, "payload": event})
    context = {**task_context(), "triggering_asset_events": {"index_watched": [heard]}}
    assert ReadIndexEventsOperator(task_id="heard", slot="watched").execute(context) == [event["date"]]


@pytest.mark.parametrize("folder", folders("deferred"), ids=lambda folder: folder.name)
@pytest.mark.parametrize(("chosen", "answer"), [("Approve", "approved"), ("Reject", "rejected")])
def test_a_question_that_waited_for_its_answer_is_settled(
    folder: Path, chosen: str, answer: str, tmp_path: Path
) -> None:
    """Airflow keeps such a task in a state of its own, and calls it back by the name of a method of its operator."""
    with running(tmp_path / "site") as site:
        load_into(site.folder / "ledger.db", (folder / "ledger" / "sqlite.sql").read_bytes())
        with opened(f"sqlite:///{site.folder}/ledger.db") as ledger:
            (asked,) = questions.of_run(ledger, BY_HAND)
            question = {"id": asked.id, "number": asked.number, "open": True, "why": "it is asked"}
            event = {
                "chosen_options": [chosen], "params_input": {"comment": "why"}, "timedout": False,
                "responded_by_user": {"id": "1", "name": "shift"}, "responded_at": datetime.now(UTC),
            }  # fmt: skip
            task = AwaitApprovalOperator(task_id="approve", question=question)
            with pytest.raises(AirflowSkipException) if answer == "rejected" else nullcontext():
                task.resume_execution("execute_complete", {"event": event}, task_context())
            (settled,) = questions.of_run(ledger, BY_HAND)
            assert (settled.answer.value, settled.answered_by, settled.comment) == (answer, "shift (1)", "why")
