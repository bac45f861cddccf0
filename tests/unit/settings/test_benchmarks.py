"""Targets and requirements of storage benchmarks in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.settings.benchmarks import BucketTarget, Mark, PathTarget, PoolTarget
from include.settings.errors import InvalidSettings, SettingsError
from include.settings.load import parse

SCRATCH = "{kind: path, path: var/bench, benchmark: allowed, limits: {bytes: 1GiB, minutes: 5}}"


def load(targets=f"{{scratch: {SCRATCH}}}", rest=""):
    text = f"stores: {{s: {{url: 'file:///s'}}}}\nbenchmarks:\n  targets: {targets}\n{rest}"
    return parse(text, file="site.yaml", root=Path("/root"), environ={}).benchmarks


def test_each_kind_of_target_has_its_own_keys_and_is_refused_everything_that_is_not_marked():
    target = load("{scratch: {kind: path, path: /mnt/bench}}").target("scratch")
    assert isinstance(target, PathTarget)
    assert {target.benchmark, target.fill, target.pools, target.degrade} == {Mark.REFUSED}
    assert load().target("scratch").benchmark is Mark.ALLOWED

    targets = load("{p: {kind: path, path: x}, b: {kind: bucket, store: s}, r: {kind: pool, pool: bench}}").targets
    assert [type(target) for target in targets.values()] == [PathTarget, BucketTarget, PoolTarget]
    assert load().target("scratch").path == Path("/root/var/bench")


def test_an_unknown_target_is_named_with_those_that_exist():
    with pytest.raises(SettingsError) as error:
        load().target("other")
    assert "scratch" in str(error.value)


LOGIN = "{host: h, user: u, known_hosts: k, agent: true}"


@pytest.mark.parametrize(
    ("targets", "key"),
    [
        ("{x: {kind: disk, path: /dev/sda}}", "benchmarks.targets.x"),
        ("{x: {path: /mnt}}", "benchmarks.targets.x"),
        ("{x: {kind: path, path: /mnt, benchmark: yes}}", "benchmarks.targets.x.benchmark"),
        ("{x: {kind: path, path: /mnt, limits: {bytes: -1}}}", "benchmarks.targets.x.limits.bytes"),
        ("{x: {kind: path, path: /mnt, limits: {fill_percent: 99}}}", "benchmarks.targets.x.limits.fill_percent"),
        ("{x: {kind: path, path: /mnt, name: y}}", "benchmarks.targets.x.name"),
        ("{x: {kind: bucket, store: missing}}", "benchmarks.targets.x.store"),
        ("{x: {kind: bucket, store: s, prefix: ../y}}", "benchmarks.targets.x.prefix"),
        ("{x: {kind: pool, pool: bench, user: a b}}", "benchmarks.targets.x.user"),
        ("{x: {kind: remote, path: /mnt, hosts: {}}}", "benchmarks.targets.x.hosts"),
        (f"{{x: {{kind: remote, path: mnt, hosts: {{h: {LOGIN}}}}}}}", "benchmarks.targets.x.path"),
        ("{x: {kind: endpoint, size: 1kB, urls: {nginx: 'ftp://h/f'}}}", "benchmarks.targets.x.urls.nginx"),
        ("{x: {kind: endpoint, size: 1kB, urls: {nginx: 'http://u:p@h/f'}}}", "benchmarks.targets.x.urls.nginx"),
        ("{x: {kind: endpoint, size: 1kB, urls: {nginx: 'http://h/f'}}}", "benchmarks.targets.x"),
        ("{x: {kind: endpoint, size: 1kB, urls: {xroot: 'root://h//d/'}}}", "benchmarks.targets.x"),
        (
            "{x: {kind: endpoint, size: 1kB, urls: {nginx: 'http://h/d/'}, link: {read: [a], set: [b]}}}",
            "benchmarks.targets.x.link.set",
        ),
    ],
)
def test_a_wrong_target_is_refused_at_its_key(targets, key):
    with pytest.raises(InvalidSettings) as error:
        load(targets)
    assert [problem.key for problem in error.value.problems] == [key]
    assert error.value.problems[0].line == 3


@pytest.mark.parametrize(("keys", "cure"), [("benchmrak: allowed", "benchmark"), ("limits: {minuets: 1}", "minutes")])
def test_a_misspelt_key_is_corrected(keys, cure):
    with pytest.raises(InvalidSettings) as error:
        load(f"{{x: {{kind: path, path: /mnt, {keys}}}}}")
    assert error.value.problems[0].cure == f"Did you mean `{cure}`?"


NIGHTLY = "  nightly: {schedule: 0 3 * * *, target: scratch}"
REQUIREMENT = "  requirements: [{target: scratch, step: write, throughput: 20GB, p95_ms: 500}]"


def test_a_nightly_campaign_and_requirements_are_read():
    nightly = load(rest=NIGHTLY).nightly
    assert (nightly.preset, nightly.minutes) == ("hlt2-uncontrolled", 15)
    assert load(rest=REQUIREMENT).requirements


@pytest.mark.parametrize(
    "rest",
    [
        NIGHTLY.replace("0 3 * * *", "often"), NIGHTLY.replace("scratch", "other"),
        NIGHTLY.replace("schedule: 0 3 * * *, ", ""), REQUIREMENT.replace("scratch", "other"),
        REQUIREMENT.replace(", throughput: 20GB, p95_ms: 500", ""), REQUIREMENT.replace("20GB", "fast"),
    ],
)  # fmt: skip
def test_a_wrong_nightly_campaign_or_requirement_is_refused(rest):
    with pytest.raises(InvalidSettings):
        load(rest=rest)
