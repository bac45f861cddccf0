"""What is read back is a sample, spread over all of a destination, and choosing it needs no list of its files."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.errors import DestinationError
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import hash_bytes
from include.nightlies.steps import verify
from include.nightlies.steps.verify import Spread
from tests.fakes.refused import refused

SAMPLE = 5
FILES = 10_000


class Path(str):
    """Counts how many of its kind there are at once."""

    __slots__ = ()
    alive = most = 0

    def __new__(cls, text: str) -> Path:
        cls.alive += 1
        cls.most = max(cls.most, cls.alive)
        return super().__new__(cls, text)

    def __del__(self) -> None:
        Path.alive -= 1


class Published:
    """A repository with one destination of very many files."""

    manifest = SimpleNamespace(revision=7)

    def __init__(self) -> None:
        self.read: list[str] = []
        self.revision = self

    def walk(self, _path: str) -> Iterator[tuple[str, Dirent]]:
        yield "/d", Dirent("d", stat.S_IFDIR | 0o755)
        for number in range(FILES):
            entry = Dirent(str(number), stat.S_IFREG | 0o644, size=1, hash=hash_bytes(b"%d" % number))
            yield Path(f"/d/{number}"), entry

    def stream(self, path: str) -> Iterator[bytes]:
        self.read.append(str(path))
        yield b"x"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Published:
    monkeypatch.setattr(verify, "standing", lambda *_: SimpleNamespace(hash="h", path="/d"))
    monkeypatch.setattr(Path, "most", 0)
    return Published()


def read_back(published: Published, files: int | None) -> verify.ReadBack:
    publication: Any = SimpleNamespace(destination="/d", nested_hash="h", files=files)
    return verify._read_back(verify._Reader(published), publication, SAMPLE)  # type: ignore[arg-type]


@pytest.mark.parametrize("files", [FILES, None], ids=["number known", "number not known"])
def test_a_destination_is_read_back_without_holding_its_files(published: Published, files: int | None) -> None:
    found = read_back(published, files)
    assert (found.files, found.sampled) == (FILES, SAMPLE)
    assert (published.read[0], published.read[-1], len(published.read)) == ("/d/0", f"/d/{FILES - 1}", SAMPLE)
    assert Path.most <= 2 * SAMPLE + 4, "the files held, and the ones that are looked at"
    assert Path.alive == 0


def test_another_number_of_files_than_was_published_is_refused_unread(published: Published) -> None:
    with refused(DestinationError):
        read_back(published, 3)
    assert published.read == []


@given(number=st.integers(0, 2_000), sample=st.integers(0, 9))
def test_the_sample_is_spread_over_all(number: int, sample: int) -> None:
    spread: Spread[int] = Spread(sample)
    for item in range(number):
        spread.add(item)
        assert len(spread._held) + len(spread._last) <= 2 * sample + 2
    chosen = spread.chosen()
    assert spread.seen == number
    assert len(chosen) == min(number, sample)
    assert chosen == sorted(set(chosen))
    if number and sample:
        assert chosen[0] == 0
    if number > 1 and sample > 1:
        assert chosen[-1] == number - 1
        gaps = [later - earlier for earlier, later in pairwise(chosen)]
        assert max(gaps) <= 2 * (number / (len(chosen) - 1)) + 1
