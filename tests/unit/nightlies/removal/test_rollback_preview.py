"""Differences of two revisions are counted for the place that they belong to, once, and in bounded memory."""

from __future__ import annotations

import stat
from collections.abc import Sequence

from hypothesis import given, strategies as st

from include.cvmfs.format.dirent import Dirent
from include.cvmfs.revision.revision import Difference, DifferingEntry
from include.nightlies.removal.rollback_preview import ChangedFiles, by_place
from include.nightlies.rules.approval import rollback_digest

ADDED, REMOVED, CHANGED = Difference.ADDED, Difference.REMOVED, Difference.CHANGED


def entry(kind: Difference, path: str, size: int | None = None, *what: str) -> DifferingEntry:
    """``size`` None: a directory. What changed had one byte."""
    mode = stat.S_IFDIR | 0o755 if size is None else stat.S_IFREG | 0o644
    row = Dirent(path.rpartition("/")[2], mode, size=4096 if size is None else size)
    before = None if kind is ADDED else row if kind is REMOVED or size is None else row.changed(size=1)
    return DifferingEntry(kind, path, before, None if kind is REMOVED else row, what)


def test_a_build_is_counted_by_destination_and_its_directory_is_no_path_of_its_own() -> None:
    found = by_place(
        [
            entry(CHANGED, "/n", None, "mtime"),
            entry(REMOVED, "/n/b2"),
            entry(REMOVED, "/n/b2/.cvmfscatalog", 0),
            entry(REMOVED, "/n/b2/A"),
            entry(REMOVED, "/n/b2/A/f", 10),
            entry(REMOVED, "/n/b2/B"),
            entry(REMOVED, "/n/b2/B/f", 20),
            entry(REMOVED, "/n/b2/notes", 3),
        ],
        ["/n/b2/A", "/n/b2/B"],
    )
    assert found.at == {
        "/n/b2/A": ChangedFiles(gone=1, bytes_gone=10),
        "/n/b2/B": ChangedFiles(gone=1, bytes_gone=20),
        "/n/b2/notes": ChangedFiles(gone=1, bytes_gone=3),
    }
    assert found.elsewhere == {"/n/b2/notes": REMOVED}
    assert found.total == ChangedFiles(gone=4, bytes_gone=33)


def test_a_changed_file_and_the_mode_of_a_directory_count_and_its_time_does_not() -> None:
    found = by_place([entry(CHANGED, "/a/f", 7, "content")], ["/a"])
    assert found.total == found.at["/a"] == ChangedFiles(changed=1, bytes_gone=1, bytes_back=7)
    seen = by_place([entry(CHANGED, "/a", None, "mode"), entry(CHANGED, "/b", None, "mtime", "nested catalog")], [])
    assert seen.elsewhere == {"/a": CHANGED}
    found = by_place([entry(ADDED, "/a", 1), entry(ADDED, "/ab", 2)], ["/a"])
    assert (found.at["/a"].bytes_back, found.elsewhere) == (1, {"/ab": ADDED}), "a name that begins like another"


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(0, 9)), max_size=60, unique_by=lambda t: t[:2]
    ),
    st.sets(st.integers(0, 30)),
    st.integers(0, 8),
)
def test_every_entry_is_in_the_total_and_in_one_place_unless_there_are_too_many(
    drawn: Sequence[tuple[int, int, int]], places: set[int], most: int
) -> None:
    entries = [entry(ADDED, f"/d{top:02}/f{number}", size) for top, number, size in sorted(drawn)]
    found = by_place(entries, [f"/d{top:02}" for top in places], most=most)
    kept = sum(found.at.values(), ChangedFiles())
    assert found.total.back == len(entries) == kept.back + found.more
    assert found.total.bytes_back == sum(size for _, _, size in drawn)
    assert len(found.elsewhere) <= most
    for top in places & {one[0] for one in drawn}:
        assert found.at[f"/d{top:02}"].back == sum(one[0] == top for one in drawn)


def test_an_approval_binds_repository_roots_and_tags_in_any_order() -> None:
    digest = rollback_digest("r", "a", "b", ["t", "u"])
    assert digest == rollback_digest("r", "a", "b", ["u", "t"])
    others = [("s", "a", "b", "tu"), ("r", "b", "a", "tu"), ("r", "a", "c", "tu"), ("r", "a", "b", "t")]
    assert digest not in {rollback_digest(fqrn, one, two, list(tags)) for fqrn, one, two, tags in others}
