"""Who of a group is at fault is known from what it said of itself, whatever its words."""

from __future__ import annotations

import pytest

from lab.services import NotReadyReason, ServiceNotReady, wait


@pytest.mark.parametrize(
    ("answer", "dead", "services"),
    [
        ("nothing answers", NotReadyReason("it ended", "triggerer"), ("triggerer",)),
        (NotReadyReason("not healthy yet", "scheduler", "triggerer"), None, ("scheduler", "triggerer")),
        ("the scheduler is named in words only", None, ()),
    ],
)
def test_a_service_that_does_not_become_ready_is_named(
    answer: str, dead: str | None, services: tuple[str, ...]
) -> None:
    with pytest.raises(ServiceNotReady) as caught:
        wait(lambda: answer, alive=lambda: dead, timeout_s=0)
    assert caught.value.services == services
