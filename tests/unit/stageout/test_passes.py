"""Passes of components: in turns, bounded, and none stopped by the failure of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from include.fts.errors import FtsUnreachable
from include.notify import DeliveryOutcome, Notifier
from include.stageout.files import FileToTransfer, StageoutRequest
from include.stageout.passes import PassAccount, PassEnd, remind, reminder, run_pass, waiting_for_credentials
from include.stageout.requests import record_request
from include.stageout.states import TransferState
from include.stageout.tables import stageout_transfers
from tests.fakes.plainsite import plain_site
from tests.fakes.refused import refused

NOW = datetime(2026, 11, 23, tzinfo=UTC)


@dataclass(frozen=True)
class Report:
    rows: int = 0
    held: Mapping[str, int] = field(default_factory=dict)


def component(log: list[str], name: str, *rows: int, error: Exception | None = None) -> Callable[..., Report]:
    """Takes so many rows in each batch, and then fails with the error, or finds nothing."""
    left = list(rows)

    def batch(_: Any, *, now: Callable[[], datetime], limit: int) -> Report:
        assert (now(), limit) == (NOW, 10)
        log.append(name)
        if not left and error is not None:
            raise error
        return Report(left.pop(0) if left else 0, {"banned": 2})

    return batch


def run(components: Mapping[str, Any], left: Iterator[bool] | None = None, said: Any = None) -> PassAccount:
    times = repeat(True) if left is None else left
    told = [] if said is None else said
    return run_pass(
        None,  # type: ignore[arg-type]
        components,
        now=lambda: NOW,
        left=lambda: next(times),
        limit=10,
        say=lambda name, counts: told.append((name, counts)),
    )


def test_components_take_turns_until_nothing_is_due_for_any() -> None:
    log: list[str] = []
    said: list[Any] = []
    done = run({"one": component(log, "one", 3, 4), "two": component(log, "two", 5)}, said=said)
    assert log == ["one", "two", "one", "two", "one", "two"]
    assert done.ended is PassEnd.IDLE
    assert done.to_json() == {
        "ended": "nothing is due",
        "one": {"batches": 3, "rows": 7, "held: banned": 6},
        "two": {"batches": 3, "rows": 5, "held: banned": 6},
    }
    assert [name for name, _ in said] == ["one", "two", "one"], "what is only held is not due"
    done.require_sound()


def test_a_pass_ends_with_its_time_between_two_batches() -> None:
    log: list[str] = []
    done = run({"one": component(log, "one", *[1] * 99)}, left=iter([True, True, False]))
    assert (done.ended, log) == (PassEnd.TIME, ["one", "one"])


def test_a_component_that_fails_stops_no_other_and_fails_the_pass_in_the_end() -> None:
    log: list[str] = []
    fault = FtsUnreachable("away")
    done = run({"one": component(log, "one", 1, error=fault), "two": component(log, "two", 1, 1, 1)})
    assert log == ["one", "two", "one", "two", "two", "two"]
    assert done.to_json()["one"] == {"batches": 1, "rows": 1, "held: banned": 2, "fault": fault.code}
    with refused(FtsUnreachable):
        done.require_sound()


def test_each_user_is_named_once_with_the_files_of_each_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = plain_site(tmp_path)
    assert list(remind(site, now=NOW)) == []
    for owner, sites in (("ada", ("pisa", "bari")), ("ada", ("bari", "pisa")), ("ben", ("pisa", "bari"))):
        files = tuple(
            FileToTransfer(sites[0], f"/a/{name}", sites[1], f"/b/{owner}/{'-'.join(sites)}/{name}") for name in "xy"
        )
        record_request(site.ledger, StageoutRequest(owner, f"{owner} {sites[0]}", "w", files), now=NOW)
    with site.ledger.begin() as connection:
        needy = update(stageout_transfers).where(stageout_transfers.c.id < 6)
        connection.execute(needy.values(state=TransferState.NEEDS_CREDENTIAL.value))
    expected = {"ada": {("pisa", "bari"): 2, ("bari", "pisa"): 2}, "ben": {("pisa", "bari"): 1}}
    assert waiting_for_credentials(site.ledger) == expected
    assert dict(remind(site, now=NOW)) == {"ada": DeliveryOutcome.NOBODY, "ben": DeliveryOutcome.NOBODY}
    with_a_way = Notifier(site.settings.notify, site.ledger, {"fake": lambda *_: None})
    monkeypatch.setattr(Notifier, "of", classmethod(lambda *_: with_a_way))
    assert dict(remind(site, now=NOW)) == {"ada": DeliveryOutcome.TOLD, "ben": DeliveryOutcome.TOLD}
    assert dict(remind(site, now=NOW)) == {"ada": DeliveryOutcome.KNOWN, "ben": DeliveryOutcome.KNOWN}


def test_a_message_names_some_links_and_the_number_of_the_others() -> None:
    message = reminder("ada", {(f"site{number}", "bari"): 1 for number in range(7)})
    assert (message.key, message.event.value) == ("credential:ada", "credential")
    assert message.text.count(" to bari") == 5
    assert message.text.endswith("; and 2 more links.")
