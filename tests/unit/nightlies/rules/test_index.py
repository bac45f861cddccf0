"""A build's index: what is read, what rejects one artifact, what rejects the document."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest
from hypothesis import given, strategies as st

from include.nightlies.errors import BadIndex
from include.nightlies.rules.index import Artifact, BuildIndex, ParentBuild
from tests.fakes.refused import refused

SHA = "0123456789abcdef" * 4
GOOD = {"project": "Gaudi", "platform": "x86_64-el9-gcc13-opt", "url": "a/Gaudi.tar.zst", "size": 10, "sha256": SHA}
OTHER = {**GOOD, "project": "LHCb", "dependencies": ["Gaudi"], "priority": 5}


def document(*artifacts, **changes) -> bytes:
    fields = {"format": 1, "slot": "main", "build_id": "b42", "date": "2026-11-21", "complete": True}
    return json.dumps({**fields, "artifacts": list(artifacts), **changes}).encode()


def parse(*artifacts, **changes) -> BuildIndex:
    return BuildIndex.parse(document(*artifacts, **changes), slot="main", build_date=date(2026, 11, 21), file="i.json")


def test_a_right_index_is_read():
    index = parse(GOOD, OTHER)
    assert (index.build_id, index.date, index.complete, index.rejected) == ("b42", date(2026, 11, 21), True, ())
    assert index.artifacts[1] == Artifact("LHCb", "x86_64-el9-gcc13-opt", "a/Gaudi.tar.zst", 10, SHA, ("Gaudi",), 5)


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,8}", fullmatch=True)
artifacts = st.builds(
    Artifact,
    project=names,
    platform=names,
    url=st.lists(names, min_size=1, max_size=3).map("/".join),
    size=st.integers(1, 1 << 40),
    sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    dependencies=st.lists(names, max_size=3, unique=True).map(tuple),
    priority=st.integers(-100, 100),
).map(lambda one: replace(one, dependencies=tuple(name for name in one.dependencies if name != one.project)))
indices = st.builds(
    BuildIndex,
    slot=names,
    build_id=names,
    date=st.dates(),
    complete=st.booleans(),
    artifacts=st.lists(artifacts, max_size=4, unique_by=lambda one: one.name).map(tuple),
    base=st.none() | st.builds(ParentBuild, build_id=st.just("an-earlier-one"), date=st.dates()),
    serial=st.none() | st.integers(0, 1 << 62),
    created=st.none() | st.integers(0, 1 << 37).map(lambda at: datetime.fromtimestamp(at, UTC)),
)


@given(indices)
def test_what_is_written_is_read_back_the_same(index):
    assert BuildIndex.parse(index.format(), slot=index.slot, build_date=index.date) == index


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data):
    with pytest.raises(BadIndex):
        BuildIndex.parse(data, slot="main")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*OTHER, "x"]), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(JSON | st.builds(lambda extra: {**OTHER, **extra}, st.dictionaries(st.sampled_from([*OTHER]), JSON))))
def test_whatever_the_artifacts_are_each_is_read_or_rejected_and_a_good_one_goes_on(listed):
    good = {**GOOD, "project": "the-good-one"}
    index = parse(*listed, good)
    # of several entries with the very same file one is left
    assert len(index.artifacts) + len(index.rejected) <= len(listed) + 1
    assert {one.name for one in index.artifacts}.isdisjoint(one.name for one in index.rejected)
    assert any(one.project == "the-good-one" for one in index.artifacts)
    assert all(one.reason for one in index.rejected)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("project", "../etc", "`project`"),
        ("project", ".hidden", "`project`"),
        ("project", "", "is empty"),
        ("project", 3, "whole number, not text"),
        ("platform", "a/b", "`platform`"),
        ("platform", "a" * 129, "longer than 128"),
        ("platform", "é", "`platform`"),
        ("platform", "a\n", "`platform`"),
        ("sha256", SHA.upper(), "lower-case"),
        ("sha256", SHA[:-1], "64"),
        ("sha256", SHA + "\n", "64"),
        ("size", -1, "not between"),
        ("size", 0, "not between"),
        ("size", 1 << 62, "not between"),
        ("size", True, "true or false, not a whole number"),
        ("size", 1.5, "fraction"),
        ("size", "10", "text, not a whole number"),
        ("priority", 10**9, "not between"),
        ("dependencies", "Gaudi", "text, not a list"),
        ("dependencies", [1], "`dependencies.0` is a whole number, not text"),
        ("dependencies", {"Gaudi": 1}, "an object, not a list"),
        ("dependencies", ["Gaudi", "../x"], "`dependencies.1` '../x'"),
        ("\ud800", 1, "lone surrogate"),
        ("url", "", "empty"),
        ("url", "/abs/file", "absolute"),
        ("url", "../other/file", ".."),
        ("url", "a/../../file", ".."),
        ("url", "a/%2e%2e/file", ".."),
        ("url", "s3://bucket/a/../b", ".."),
        ("url", "https://me:hunter2@host/f", "login"),
        ("url", "https://host/f?sig=hunter2", "query"),
        ("url", "file:///etc/shadow", "scheme"),
        ("url", "//host/f", "absolute"),
        ("url", "a\\b", "backslash"),
        ("url", "a\x00b", "control"),
        ("url", "a\ud800b", "surrogate"),
        ("url", "http://[bad/f", "parsed"),
    ],
)
def test_a_bad_artifact_is_rejected_by_name_and_the_others_go_on(field, value, says):
    index = parse(GOOD, {**OTHER, field: value})
    (rejected,) = index.rejected
    assert [one.project for one in index.artifacts] == ["Gaudi"]
    assert says in rejected.reason
    assert "hunter2" not in rejected.reason
    assert rejected.name == ("artifacts[1]" if field in {"project", "platform"} else f"LHCb/{OTHER['platform']}")


@pytest.mark.parametrize("field", ["project", "platform", "url", "size", "sha256"])
def test_an_artifact_that_lacks_a_field_is_rejected(field):
    index = parse({key: value for key, value in GOOD.items() if key != field}, OTHER)
    assert f"`{field}` is missing" in index.rejected[0].reason
    assert len(index.artifacts) == 1


def test_the_same_artifact_twice_is_taken_once_after_all_that_either_entry_wants_before_it():
    twin = {**GOOD, "url": "elsewhere.tar.zst", "priority": 7, "dependencies": ["Zlib"]}
    index = parse({**GOOD, "dependencies": ["LHCb"]}, OTHER, twin)
    assert index.rejected == ()
    gaudi, other = index.artifacts
    assert (gaudi.url, gaudi.priority, gaudi.dependencies) == (GOOD["url"], 7, ("LHCb", "Zlib"))
    assert other.project == "LHCb"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": 11}, "2 times with different sizes"),
        ({"sha256": SHA[::-1]}, "2 times with 2 different sums"),
        ({"sha256": "x"}, ""),
    ],
)
def test_twins_that_contradict_each_other_are_both_rejected(change, says):
    index = parse(GOOD, {**GOOD, **change}, OTHER)
    assert [one.project for one in index.artifacts] == ["LHCb"]
    assert any(says in one.reason for one in index.rejected)


def test_a_partial_build_names_the_one_that_it_stands_on_and_a_dependency_on_itself_binds_nothing():
    own = {**GOOD, "dependencies": [GOOD["project"], "LHCb"]}
    index = parse(own, partial=True, base={"build_id": "b41", "date": "2026-11-20"}, serial=3)
    assert (index.base, index.serial) == (ParentBuild("b41", date(2026, 11, 20)), 3)
    assert index.artifacts[0].dependencies == ("LHCb",)


def test_full_urls_must_lie_in_the_store_of_the_index():
    data = document({**GOOD, "url": "s3://builds/x/f"}, {**OTHER, "url": "s3://builds-of-others/f"})
    index = BuildIndex.parse(data, slot="main", store="s3://builds")
    assert [one.project for one in index.artifacts] == ["Gaudi"]
    assert "outside the store of the index, s3://builds" in index.rejected[0].reason


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b"\xff{}", "not UTF-8"),
        (b"[]", "not an object"),
        (document(GOOD)[:-20], "truncated"),
        (b"[" * 200_000, "nested"),
        (b'{"format": NaN}', "NaN"),
        (b'{"slot": "main", "slot": "other"}', "twice"),
        (b'{"format": ' + b"1" * 5000 + b"}", "not JSON"),
    ],
)
def test_the_message_says_why_a_document_is_no_json(data, says):
    with pytest.raises(BadIndex, match=f"^index builds/i.json: .*{says}"):
        BuildIndex.parse(data, slot="main", file="builds/i.json")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, "`format` is not 1"),
        ({"format": "1"}, "text, not a whole number"),
        ({"slot": "other"}, "slot 'other', not 'main'"),
        ({"build_id": "../b"}, "`build_id`"),
        ({"date": "2026-11-20"}, "2026-11-20, not of 2026-11-21"),
        ({"date": "21.11.2026"}, "YYYY-MM-DD"),
        ({"complete": 1}, "`complete`"),
        ({"artifacts": {}}, "`artifacts`"),
        ({"partial": True}, "`base` is missing"),
        ({"partial": "yes"}, "`partial`"),
        ({"base": {"build_id": "b1", "date": "2026-11-20"}}, "is not partial"),
        ({"partial": True, "base": {"build_id": "b42", "date": "2026-11-20"}}, "this very build"),
        ({"partial": True, "base": {"build_id": "../b", "date": "2026-11-20"}}, "`base.build_id`"),
        ({"partial": True, "base": {"build_id": "b1"}}, "`base.date` is missing"),
        ({"partial": True, "base": "b1"}, "`base` is text"),
        ({"serial": -1}, "`serial`"),
        ({"serial": True}, "`serial`"),
        ({"created": "yesterday"}, "`created`"),
        ({"created": "2026-11-21T02:00:00"}, "zone"),
    ],
)
def test_a_fault_of_the_document_refuses_it(changes, says):
    with pytest.raises(BadIndex) as caught:
        parse(GOOD, **changes)
    assert says in str(caught.value)
    assert "i.json" in str(caught.value)


@pytest.mark.parametrize("field", ["format", "slot", "build_id", "date", "complete", "artifacts"])
def test_a_missing_field_of_the_document_refuses_it(field):
    data = {key: value for key, value in json.loads(document(GOOD)).items() if key != field}
    with refused(BadIndex, file="i.json"):
        BuildIndex.parse(json.dumps(data).encode(), slot="main", file="i.json")
