"""Owner maps are read as the stock tools read them, and put to every entry."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.cvmfs.errors import FormatError
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.sources.source import IdMap, OwnerMap, fixed
from include.cvmfs.sources.tarball import TarSource
from tests.fakes.archives import archive, file, folder
from tests.fakes.memorystore import MemoryStore
from tests.fakes.recount import read_back
from tests.fakes.refused import refused

NOW = datetime(2026, 7, 1, tzinfo=UTC)
IDS = st.integers(0, 0xFFFFFFFF)
TEXT = """
# map UIDs 137 and 138 to 1000
137  1000
  138 1000

# swap two
101  5
5    101
* 0
"""


def test_rules_comments_and_the_default() -> None:
    ids = IdMap.parse(TEXT)
    assert [ids[number] for number in (137, 138, 101, 5, 77)] == [1000, 1000, 5, 101, 0]


def test_ids_without_a_rule_stay() -> None:
    assert IdMap.parse("1 2\n1 3\n")[1] == 3
    assert IdMap.parse("1 2")[9] == 9
    assert IdMap()[9] == 9


@given(st.dictionaries(IDS, IDS), st.none() | IDS)
def test_every_map_is_read_back(rules: dict[int, int], default: int | None) -> None:
    assert IdMap.parse(IdMap(rules, default).format()) == IdMap(rules, default)


@pytest.mark.parametrize(
    "line", ["1", "1 2 3", "a 1", "1 b", "1 *", "* *", "-1 2", "1 4294967296", "1 ²", "1:2", "9" * 5000 + " 1"]
)
def test_bad_lines_are_named(line: str) -> None:
    with refused(FormatError, what="uid.map, line 3"):
        IdMap.parse(f"# head\n1 1\n{line}\n", "uid.map")


def test_a_map_counts_for_all_entries_once() -> None:
    swap = IdMap({1: 2, 2: 1, 0: 7})
    members = [folder("d", uid=1, gid=1), file("d/.cvmfscatalog", uid=2), file("e/f", uid=2, gid=1)]
    store = MemoryStore()
    options = PrepareOptions(owner=OwnerMap(swap, IdMap(default=9)))
    source = TarSource(iter([archive(members)]), "x.tar")
    changeset = prepare(source, store=store, fqrn="r", destination="/x", now=NOW, options=options)
    found, _ = read_back(store, changeset.reference)
    assert {path: one.entry.uid for path, one in found.items()} == {
        "/x": 7,
        "/x/.cvmfscatalog": 7,
        "/x/d": 2,
        "/x/d/.cvmfscatalog": 1,
        "/x/e": 7,
        "/x/e/f": 1,
    }
    assert {one.entry.gid for one in found.values()} == {9}


def test_one_owner_for_everything() -> None:
    assert fixed(3, 4).of(100, 200) == (3, 4)
