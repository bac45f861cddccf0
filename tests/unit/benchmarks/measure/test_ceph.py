"""What a Ceph cluster reports: reasons to stop, and how full a pool is by its fullest OSD."""

from __future__ import annotations

import json

import pytest

from include.benchmarks.errors import TARGET_UNUSABLE
from include.benchmarks.measure import ceph
from include.benchmarks.measure.ceph import CephHealth, PoolBenchmarkTarget, check_target, pool_space
from include.benchmarks.measure.programs import ProgramOutput
from include.settings.benchmarks import PoolTarget
from tests.fakes.refused import refused

GIB = 1 << 30


def status(*checks, groups=(("active+clean", 8),), up=3):
    found = {name: {"severity": "HEALTH_WARN", "summary": {"message": f"about {name}"}} for name in checks}
    states = [{"state_name": name, "count": count} for name, count in groups]
    pgmap = {"pgs_by_state": states, "degraded_ratio": 0.25}
    osdmap = {"num_osds": 3, "num_up_osds": up, "num_in_osds": 3}
    return json.dumps({"health": {"status": "HEALTH_WARN", "checks": found}, "pgmap": pgmap, "osdmap": osdmap})


def tree(*levels, hosts=(1,)):
    """`hosts`: their sizes."""
    osds = [{"type": "osd", "kb": 1 << 20, "utilization": level} for level in levels]
    return json.dumps({"nodes": [*osds, *({"type": "host", "kb": size << 20, "children": [1]} for size in hosts)]})


def usage(max_avail=None, raw=300 * GIB, available=300 * GIB):
    listed = [] if max_avail is None else [{"name": "bench", "stats": {"max_avail": max_avail}}]
    return json.dumps({"stats": {"total_bytes": raw, "total_avail_bytes": available}, "pools": listed})


def test_slow_operations_inactive_groups_and_full_osds_stop_and_it_is_clean_when_nothing_is_left_to_recover():
    assert CephHealth.parse(status("MGR_MODULE_ERROR", "POOL_NO_REDUNDANCY"), "t").stopping == ()
    found = CephHealth.parse(status("SLOW_OPS", "OSD_NEARFULL", "PG_AVAILABILITY"), "t")
    assert [line.partition(":")[0] for line in found.stopping] == ["OSD_NEARFULL", "PG_AVAILABILITY", "SLOW_OPS"]
    assert CephHealth.parse(status(), "t").clean
    groups = (("active+clean", 5), ("active+clean+scrubbing+deep", 1), ("active+undersized+degraded", 2))
    assert CephHealth.parse(status(groups=groups), "t").unclean == 2
    found = CephHealth.parse(status("OSD_FLAGS", up=1), "t")
    assert (found.clean, found.osds_down, found.degraded) == (False, 2, 0.25)
    assert found.flags == ("OSD_FLAGS: about OSD_FLAGS",)


@pytest.mark.parametrize(
    ("osds", "usable", "gib", "used"),
    [
        (tree(10, 40, 20), 100 * GIB, 100, 40),
        (tree(30, hosts=(1,) * 4), 100 * GIB, 75, 40),
        (tree(30, hosts=(2, 1, 1, 0)), 100 * GIB, 50, 60),
        (tree(0), None, 100, 0),
    ],
    ids=["its fullest OSD", "room for the data of a lost host", "of the largest host", "three replicas"],
)
def test_a_pool_is_as_full_as_its_fullest_osd_and_keeps_room_for_a_host(osds, usable, gib, used):
    space = pool_space(osds, usage(usable), "bench", "t")
    assert (round(space.total / GIB), round(space.used_percent)) == (gib, used)
    assert pool_space(tree(60, hosts=(1, 1)), usage(100 * GIB), "bench", "t").free == 0


@pytest.mark.parametrize("hosts", [(1,), (1, 1), (1,) * 4, (3, 2, 1)])
def test_a_fill_by_what_is_missing_ends_at_its_level(hosts):
    before = pool_space(tree(10, hosts=hosts), usage(100 * GIB), "bench", "t")
    written = before.total * 0.5 - (before.total - before.free)
    # 100 GiB of data are all of the raw space
    after = pool_space(tree(10 + 100 * written / (100 * GIB), hosts=hosts), usage(100 * GIB), "bench", "t")
    assert after.used_percent == pytest.approx(50, abs=0.01)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"health": 1}', '{"nodes": [{"type": "osd"}]}', '{"nodes": []}'])
def test_damaged_reports_are_refused(text):
    with refused(TARGET_UNUSABLE, subject="t"):
        CephHealth.parse(text, "t")
    with refused(TARGET_UNUSABLE, subject="t"):
        pool_space(text, usage(), "bench", "t")
    with refused(TARGET_UNUSABLE, subject="t"):
        pool_space(tree(1), text, "bench", "t")


@pytest.mark.parametrize(
    ("reply", "degrade", "why"),
    [
        (status("SLOW_OPS"), "allowed", "SLOW_OPS"),
        (status(groups=(("active+degraded", 3),)), "refused", "3 placement groups"),
        (status(up=2), "refused", "1 OSDs are down"),
        (status("OSDMAP_FLAGS"), "refused", "about OSDMAP_FLAGS"),
        ("damaged", "allowed", "cannot be read"),
    ],
)
def test_a_cluster_that_is_not_healthy_is_refused(monkeypatch, reply, degrade, why):
    def run(program, arguments, **_):
        return ProgramOutput((program.name, *arguments), 0, "bench\n" if program.name == "rados" else reply, "")

    monkeypatch.setattr(ceph, "run_program", run)
    settings = {"kind": "pool", "name": "t", "pool": "bench", "degrade": degrade}
    with refused(TARGET_UNUSABLE, subject="t") as error:
        check_target(PoolBenchmarkTarget(PoolTarget.model_validate(settings)))
    assert why in str(error.value)
