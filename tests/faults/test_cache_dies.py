"""A cache stays right for its readers while those who look after it are killed, again and again."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import cachedrill


def test_readers_see_right_bytes_while_warmers_and_trimmers_are_killed(tmp_path: Path) -> None:
    outcome = cachedrill.run(tmp_path, seconds=20)
    assert (outcome.errors, outcome.wrong, outcome.faults) == (0, 0, ())
    assert outcome.reads > 500
    assert outcome.kills > 5
