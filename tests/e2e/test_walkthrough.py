"""What the README and the tour tell a newcomer to type works, in a new folder and with an empty environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from include.lab.environment import MARK
from tests.e2e.walkthrough import README, TOUR, Newcomer, commands

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
    assert "0 failed" in said
    assert "created software.example.org" in said
    assert "/tool/1.0/bin/tool" in said
    assert said.count("no problems found") == 2
    assert at_work(newcomer) == []
    before, said = said, newcomer.follow(TOUR, commands(TOUR))
    nights = re.findall(r"main (\S+): (\d+) published, \d+ unchanged, 0 failed", before + said)
    assert len(nights) == 3
    first: dict[str, str] = {}
    for day, published in nights:  # midnight may pass
        assert published == "0" or day not in first, said
        first[day] = published
    assert "Each copy has its content" in said
    assert at_work(newcomer) == []
