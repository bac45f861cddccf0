"""A form without what its action needs is refused; the watch asks Airflow about the runs of a night in few calls."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from include.monitoring.alerts import Runs, Tick
from include.nightlies.rules.passes import Pass
from include.provenance.interventions import BadFreeze
from operators.operations import AskAirflow, InterveneOperator
from tests.fakes.plainsite import FQRN, plain_site
from tests.fakes.taskcontext import task_context


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"action": "freeze", "repository": FQRN}, BadFreeze),
        ({"action": "freeze", "reason": "no repository"}, AirflowFailException),
        ({"action": "thaw"}, AirflowFailException),
        ({"action": "redo", "slot": "main"}, AirflowFailException),
    ],
)
def test_a_form_without_what_its_action_needs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: dict[str, str], error: type[Exception]
) -> None:
    monkeypatch.setattr(InterveneOperator, "site", lambda _: plain_site(tmp_path))
    with pytest.raises(error):
        InterveneOperator(task_id="it").execute(task_context(**form))
    assert list(tmp_path.iterdir()) == []


AT = datetime(2026, 11, 21, 1, tzinfo=UTC)
NIGHT = Tick("main", AT, date(2026, 11, 21), AT + timedelta(hours=6))


class Ti:
    """Counts runs as Airflow does: `runs` maps ids to states, `scheduled` is the one of the schedule's time."""

    def __init__(self, scheduled: str | None = None, **runs: str) -> None:
        self.runs, self.scheduled, self.calls = dict(runs), scheduled, 0

    def get_dr_count(self, dag_id: str, logical_dates: Any = None, run_ids: Any = None, states: Any = None) -> int:
        assert dag_id == "nightly_install_main"
        self.calls += 1
        if logical_dates is not None:
            found = [self.scheduled] if self.scheduled and logical_dates == [AT] else []
        else:
            found = [self.runs[one] for one in run_ids if one in self.runs]
        return len([state for state in found if states is None or state in states])


def asked(ti: Ti) -> Runs:
    return AskAirflow(ti).runs_of(NIGHT)


def test_a_night_that_nobody_began_has_no_run_and_one_that_is_only_queued_waits() -> None:
    assert asked(Ti()) == Runs(there=False, waiting=False)
    assert asked(Ti("queued")) == Runs(there=True, waiting=True)
    assert asked(Ti("running")) == Runs(there=True, waiting=False)
    assert asked(Ti(**{"night__2026-11-21__first": "running"})) == Runs(there=True, waiting=False)
    airflow = AskAirflow(Ti(a="success", b="failed", c="running", d="queued"))
    assert [run for run in "abcde" if airflow.has_ended(f"nightly_install_main/{run}")] == ["a", "b"]


def test_every_pass_that_failed_is_named_however_many_there_were() -> None:
    ids = [Pass("scheduled__2026-11-21T01:00:00+00:00").run_id(NIGHT.date, number) for number in range(2, 100)]
    ti = Ti("failed", **(dict.fromkeys(ids, "success") | {ids[3]: "failed", ids[90]: "failed"}))
    assert asked(ti).failed == ("scheduled__2026-11-21T01:00:00+00:00", ids[3], ids[90])
    assert ti.calls < 50
    ids = [Pass("night__2026-11-21__first").run_id(NIGHT.date, number) for number in (1, 2)]
    assert asked(Ti(**{ids[0]: "success", ids[1]: "failed"})).failed == ("night__2026-11-21__first__pass2",)
