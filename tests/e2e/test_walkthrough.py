"""README, tour and the page to production work as they are typed, in a new folder and an empty environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lab.environment import MARK
from tests.e2e.walkthrough import PRODUCTION, README, TOUR, Newcomer, commands
from tests.fakes.builds import tree

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


TEN_MINUTES_S = 600
TOOK = re.compile(r"(?m)^after (\d+) s: (.*)$")


def test_the_page_to_production_leads_to_a_first_build_of_ones_own_in_ten_minutes(newcomer: Newcomer) -> None:
    """Up to the containers, in folders; the commands for S3 are those of tests/integration/cli/test_init.py."""
    archive = newcomer.folder / "my-archives/tool-x86_64-el9.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(tree({"bin/tool": b"#!/bin/sh\n"}))
    elsewhere = ("docker", "kubectl", "helm", "AWS_", "s3://")
    lines = [line for line in commands(PRODUCTION) if not any(word in line for word in elsewhere)]
    timed = [part for line in lines for part in (line, f"echo; echo after $SECONDS s: {shlex.quote(line)}")]
    said = newcomer.follow(PRODUCTION, [*timed, "nightshift lab down"])
    took_s = {line: int(seconds) for seconds, line in TOOK.findall(said)}
    print(took_s)
    assert list(took_s) == lines
    assert re.search(r"main \S+: 1 published", said), said
    assert "All that is required is there." in said
    assert re.search(r"latest -> \d{4}-\d\d-\d\d", said)
    assert said.count("no problems found") == 2
    assert "a night can run: 0 errors" in said
    assert at_work(newcomer) == []
    (published_s,) = [seconds for line, seconds in took_s.items() if " nightly install " in line]
    assert published_s < TEN_MINUTES_S, took_s
