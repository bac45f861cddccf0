"""How an index is read that is written at this moment, is not what an index is, or is far too large."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from include.nightlies.errors import BadIndex, BuildMissing
from include.nightlies.rules.index import MAX_INDEX_BYTES
from include.nightlies.steps.sources import LOOKS, read_again, read_index
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.plainsite import plain_file
from tests.fakes.refused import refused

DAY = date(2026, 11, 21)
WHOLE = json.dumps(
    {"format": 1, "slot": "main", "build_id": "b1", "date": "2026-11-21", "complete": True, "artifacts": []}
).encode()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the index of the day is."""
    found = tmp_path / "builds" / "main" / "2026-11-21" / "index.json"
    found.parent.mkdir(parents=True)
    return found


@pytest.fixture
def site(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(plain_file(tmp_path)))
    return Site(load(), EnvSecrets({}))


def test_a_directory_in_the_place_of_an_index_is_no_build(site: Site, place: Path) -> None:
    place.mkdir()
    with refused(BuildMissing, slot="main", wanted=DAY):
        read_index(site, site.settings.slot("main"), DAY)


@pytest.mark.slow
def test_of_an_endless_index_no_more_is_read_than_an_index_may_have(site: Site, place: Path) -> None:
    place.touch()
    os.truncate(place, 1 << 40)  # sparse: takes no room
    store = site.store("builds")
    with refused(BadIndex):
        read_index(site, site.settings.slot("main"), DAY)
    assert store.counters.bytes_got <= MAX_INDEX_BYTES + (1 << 20)


@pytest.mark.parametrize(
    "half",
    [WHOLE[:-20], b"", WHOLE + WHOLE, WHOLE + b"\0" * 512, WHOLE[: len(WHOLE) // 2] + b"\0" * (len(WHOLE) // 2)],
    ids=["truncated", "empty", "appended to", "preallocated", "half of it zeros"],
)
def test_an_index_that_is_just_written_is_looked_at_again_and_then_taken_or_refused_whole(
    site: Site, place: Path, half: bytes
) -> None:
    slot, waited = site.settings.slot("main"), list[float]()

    def then(data: bytes) -> Callable[[float], None]:
        def pause(seconds: float) -> None:
            waited.append(seconds)
            place.write_bytes(data)

        return pause

    place.write_bytes(half)
    assert read_again(site, slot, DAY, pause=then(WHOLE))[0].build_id == "b1"
    assert len(waited) == 1
    place.write_bytes(half)
    with pytest.raises(BadIndex):
        read_again(site, slot, DAY, pause=then(half))
    assert len(waited) == LOOKS
