"""Settings of shared caches: pairs of marks, repositories that there are, origins by name."""

from __future__ import annotations

import pytest

from include.settings.caches import UseOfObjects
from include.settings.errors import InvalidSettings

FQRN = "nightlies.example.org"
TOP = "stores:\n"


def with_cache(parsed, block: str):
    return parsed((TOP, f"caches:\n  site: {{path: cache, {block}}}\n{TOP}"))


def test_a_cache_of_a_site(parsed, tmp_path):
    site = with_cache(parsed, f"repositories: [{FQRN}], marks: {{free_below: 1GiB, free_until: 2GiB}}")
    cache = site.cache("site")
    assert (cache.name, cache.path, cache.queue) == ("site", tmp_path / "cache", "default")
    assert (cache.use, cache.preloaded, cache.marks.free_until) == (UseOfObjects.AUTO, "refuse", 2 << 30)
    assert cache.marks.any


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (f"repositories: [{FQRN}], marks: {{free_below: 1GiB}}", "belong together"),
        (f"repositories: [{FQRN}], marks: {{free_below: 2GiB, free_until: 1GiB}}", "ends before it begins"),
        (f"repositories: [{FQRN}], marks: {{used_above: 1GiB, used_until: 2GiB}}", "ends before it begins"),
        ("repositories: []", "at least 1 item"),
        ("repositories: [other.example.org]", "not configured: other.example.org"),
        (f"repositories: [{FQRN}], pins: {{paths: [flux]}}", "pattern"),
    ],
)
def test_what_cannot_be_is_named(parsed, block, words):
    with pytest.raises(InvalidSettings) as caught:
        with_cache(parsed, block)
    (problem,) = caught.value.problems
    assert words in str(problem)


def test_sizes_of_chunks_grow(parsed):
    with pytest.raises(InvalidSettings) as caught:
        parsed(("    gateway: gw\n", "    gateway: gw\n    prepare: {chunks: {min: 5MiB, average: 4MiB, max: 9MiB}}\n"))
    assert any("do not grow" in str(problem) for problem in caught.value.problems)
