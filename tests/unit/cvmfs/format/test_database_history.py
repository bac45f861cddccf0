"""The history keeps named revisions and the two undo tags, and a damaged one is refused."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs.errors import FormatError, RepositoryError, TagError
from include.cvmfs.format.database import Branch, History, Tag, check_tag_name
from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import decompress
from tests.fakes.refused import refused

FQRN = "nightlies.example.org"


def some_tag(number: int, name: str | None = None, **fields: object) -> Tag:
    root = hash_bytes(b"%d" % number, suffix="C")
    values: dict[str, object] = {"revision": number, "timestamp": 1000 + number, "size": 4096 * number, **fields}
    return Tag(name or f"tag-{number}", root, **values)  # type: ignore[arg-type]


def filled(count: int = 3) -> History:
    history = History.create(FQRN)
    for number in range(1, count + 1):
        history.add(some_tag(number))
    return history


def plain(history: History) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(history.to_bytes())
    return connection


def changed(statement: str) -> bytes:
    database = plain(filled())
    database.executescript(statement)
    database.commit()
    return database.serialize()


NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=30)
TAGS = st.builds(
    Tag,
    NAMES.filter(lambda name: name not in {"trunk", "trunk-previous"}),
    st.builds(ObjectHash, st.binary(min_size=20, max_size=20), st.sampled_from(Algorithm), st.just("C")),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60),
)


def test_the_tables_are_those_of_schema_1_0_revision_3() -> None:
    database = plain(filled(1))
    tables = {
        name: [row[1:3] for row in database.execute(f"PRAGMA table_info({name})")]
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    assert tables == {
        "properties": [("key", "TEXT"), ("value", "TEXT")],
        "branches": [("branch", "TEXT"), ("parent", "TEXT"), ("initial_revision", "INTEGER")],
        "tags": [
            ("name", "TEXT"),
            ("hash", "TEXT"),
            ("revision", "INTEGER"),
            ("timestamp", "INTEGER"),
            ("channel", "INTEGER"),
            ("description", "TEXT"),
            ("size", "INTEGER"),
            ("branch", "TEXT"),
        ],
        "recycle_bin": [("hash", "TEXT"), ("flags", "INTEGER")],
    }
    properties = dict(database.execute("SELECT * FROM properties"))
    assert properties == {"schema": "1.0", "schema_revision": "3", "fqrn": FQRN}
    assert database.execute("SELECT * FROM branches").fetchall() == [("", None, 0)]
    tag = some_tag(1)
    assert database.execute("SELECT * FROM tags").fetchall() == [("tag-1", str(tag.hash), 1, 1001, 0, "", 4096, "")]
    assert [row[2:5] for row in database.execute("PRAGMA foreign_key_list(tags)")] == [("branches", "branch", "branch")]


@pytest.mark.parametrize("row", [("", "", 0), ("side", None, 0)])
def test_only_the_default_branch_has_no_parent(row: tuple[object, ...]) -> None:
    database = plain(History.create(FQRN))
    database.execute("DELETE FROM branches")
    with refused(sqlite3.IntegrityError, sqlite_errorname="SQLITE_CONSTRAINT_CHECK"):
        database.execute("INSERT INTO branches VALUES (?, ?, ?)", row)


@settings(max_examples=30)
@given(st.lists(TAGS, max_size=10, unique_by=lambda tag: tag.name))
def test_a_history_reads_back_as_what_was_written(tags: list[Tag]) -> None:
    history = History.create(FQRN)
    for tag in tags:
        history.add(tag)
    loaded = History.load(history.to_bytes())
    assert set(loaded.tags()) == set(tags)
    assert all(loaded.tag(tag.name) == tag for tag in tags)
    assert [tag.revision for tag in loaded.tags()] == sorted((tag.revision for tag in tags), reverse=True)


def test_each_commit_moves_trunk_and_keeps_the_one_before_as_undo_target() -> None:
    history = filled(1)
    history.rotate_trunk(some_tag(2, "ignored", description="ignored"))
    assert history.tags() == [some_tag(2, "trunk", description="current HEAD"), some_tag(1)]
    for number in (3, 4):
        history.rotate_trunk(some_tag(number), hash_bytes(b"%d" % number, suffix="H"))
    assert history.tags() == [
        some_tag(4, "trunk", description="current HEAD"),
        some_tag(3, "trunk-previous", description="default undo target"),
        some_tag(1),
    ]
    assert history.previous_revision == hash_bytes(b"4", suffix="H")
    history.rotate_trunk(some_tag(5), rollback=True)
    assert [tag.name for tag in history.tags()] == ["trunk", "tag-1"]


def test_a_tag_that_cannot_be_changes_nothing() -> None:
    history = filled(1)
    history.rotate_trunk(some_tag(2))
    before = history.tags()
    with refused(TagError, name="trunk"):
        history.rotate_trunk(some_tag(3, branch="nowhere"))
    with refused(TagError, name="tag-8"):
        history.add(some_tag(8, branch="side"))
    with refused(TagError, name="tag-1"):
        history.add(some_tag(9, "tag-1"))
    assert history.tags() == before


def test_the_preceding_history_is_named_without_its_suffix() -> None:
    history = filled(1)
    assert history.previous_revision is None
    history.set_previous(hash_bytes(b"before", suffix="H"))
    assert history.get_property("previous_revision") == str(hash_bytes(b"before"))
    assert History.load(history.to_bytes()).previous_revision == hash_bytes(b"before", suffix="H")


@pytest.mark.parametrize("name", ["trunk", "trunk-previous"])
def test_undo_tags_are_not_made_moved_or_removed_by_hand(name: str) -> None:
    history = filled(1)
    history.rotate_trunk(some_tag(1))
    for step in (
        lambda: history.add(some_tag(2, name)),
        lambda: history.move(some_tag(2, name)),
        lambda: history.remove(name),
    ):
        with refused(TagError, name=name):
            step()


@pytest.mark.parametrize("name", ["", "two words", "a\tb", "line\n", "n" * 256, "ü" * 128, "\ud800"])
def test_names_that_the_format_cannot_hold_are_refused(name: str) -> None:
    with refused(TagError, name=name):
        check_tag_name(name)


def test_moving_returns_the_tag_before_and_removing_counts() -> None:
    history = filled(2)
    assert history.move(some_tag(9, "tag-1")) == some_tag(1)
    assert history.tag("tag-1") == some_tag(9, "tag-1")
    assert history.move(some_tag(5, "new")) is None
    assert history.remove("tag-1", "new", "never-was") == 2
    assert history.remove("tag-1") == 0
    assert history.tags() == [some_tag(2)]


def test_removing_many_tags_makes_the_file_small_again() -> None:
    history = filled(2000)
    large = len(history.to_bytes())
    history.remove(*[f"tag-{number}" for number in range(2, 2001)])
    assert len(history.to_bytes()) < large / 5


def with_branches() -> History:
    return History.load(
        changed(
            "INSERT INTO branches VALUES ('side', '', 2), ('twig', 'side', 3);"
            "INSERT INTO tags VALUES ('on-twig', '%s', 5, 1, 0, '', 1, 'twig')" % ("ab" * 20)
        )
    )


def test_branches_left_without_tags_are_pruned() -> None:
    history = with_branches()
    assert history.branches() == [Branch("", None, 0), Branch("side", "", 2), Branch("twig", "side", 3)]
    assert history.problems() == ["branch 'side' is not used by any tag"]
    history.add(some_tag(7, "also", branch="side"))
    assert history.problems() == []
    history.remove("on-twig")
    assert [branch.name for branch in history.branches()] == ["", "side"]
    history.remove("also")
    assert [branch.name for branch in history.branches()] == [""]
    assert history.problems() == []


def test_problems_are_those_of_the_stock_check() -> None:
    assert filled().problems() == []
    assert History.create(FQRN).problems() == ["holds no tag", "branch '' is not used by any tag"]
    history = with_branches()
    history.add(some_tag(1, "early", branch="side"))
    assert history.problems() == ["tag early is older than its branch 'side'"]
    lost = History.load(changed("UPDATE tags SET branch = 'gone' WHERE name = 'tag-1'"))
    assert lost.problems() == ["tag tag-1 is on branch 'gone', which does not exist"]


def test_a_history_without_a_tag_is_not_published() -> None:
    with refused(RepositoryError, fqrn=FQRN):
        History.create(FQRN).pack()


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_packed_history_is_named_by_the_hash_of_its_stored_bytes(algorithm: Algorithm) -> None:
    history = filled()
    name, data = history.pack(algorithm)
    assert name == hash_bytes(data, algorithm, "H")
    assert decompress(data) == history.to_bytes()


def test_the_same_steps_give_the_same_bytes() -> None:
    assert filled(50).to_bytes() == filled(50).to_bytes()
    data = filled(50).to_bytes()
    assert History.load(data).to_bytes() == data
    first, second = History.load(data), History.load(data)
    for history in (first, second):
        history.rotate_trunk(some_tag(99), hash_bytes(b"x"))
        history.remove("tag-7")
    assert first.to_bytes() == second.to_bytes()


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE tags",
        "DROP TABLE tags; DROP TABLE branches",
        "UPDATE properties SET value = '2.5' WHERE key = 'schema'",
        "DROP TABLE tags; CREATE VIEW tags AS SELECT 1 AS name",
    ],
)
def test_another_schema_is_refused(statement: str) -> None:
    data = changed(statement)
    with refused(FormatError, what="history"):
        History.load(data)


@pytest.mark.parametrize("change", ["hash = 'x'", "hash = NULL", "revision = 'x'", "name = NULL", "size = x'00'"])
def test_rows_that_make_no_sense_are_refused(change: str) -> None:
    with pytest.raises(FormatError):
        History.load(changed(f"UPDATE tags SET {change} WHERE name = 'tag-1'")).tags()


@pytest.mark.parametrize("change", ["initial_revision = NULL", "initial_revision = 'x'"])
def test_branches_that_make_no_sense_are_refused(change: str) -> None:
    history = History.load(changed(f"UPDATE branches SET {change}"))
    with refused(FormatError, what="history"):
        history.problems()
