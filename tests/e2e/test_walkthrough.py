"""What the README and the tour tell a newcomer to type works, in a new folder and with an empty environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lab.environment import MARK
from tests.e2e.walkthrough import README, TOUR, Newcomer, commands

NIGHT = re.compile(r"main (\S+): (\d+) published, \d+ unchanged, 0 failed.*\n\S+ revision (\d+)")
"""In the account of a night: its date, how many artifacts it published, and the revision."""

pytestmark = [pytest.mark.server("weed"), pytest.mark.thorough, pytest.mark.timeout(2400)]


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    made = Newcomer(tmp_path)
    yield made
    made.leave()


def at_work(newcomer: Newcomer) -> list[str]:
    """The processes of the newcomer's lab."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(newcomer.places.var):
                found.append(process.name())
        except psutil.Error:
            continue
    return found


def test_the_readme_and_then_the_tour_can_be_typed_as_they_are(newcomer: Newcomer) -> None:
    said = newcomer.follow(README, commands(README))
    assert "created software.example.org" in said
    assert (newcomer.places.var / "software/software.example.org/.cvmfspublished").exists()
    assert "/tool/1.0/bin/tool" in said
    assert said.count("no problems found") == 2
    assert at_work(newcomer) == []
    before, said = said, newcomer.follow(TOUR, commands(TOUR))
    nights = re.findall(NIGHT, before + said)
    assert len(nights) == 3, before + said
    first: dict[str, str] = {}
    for day, published, revision in nights:  # midnight may pass
        if day in first:
            assert (published, revision) == ("0", first[day]), said
        first[day] = revision
    assert re.search(r"latest -> \d{4}-\d\d-\d\d", said)
    assert "would go from revision" in said
    assert "nightlies.example.org is thawed" in said
    assert "Each copy has its content" in said
    assert at_work(newcomer) == []
