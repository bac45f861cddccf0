"""A form without what its action needs is refused, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from include.provenance.interventions import BadFreeze
from operators.interventions import InterveneOperator
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
