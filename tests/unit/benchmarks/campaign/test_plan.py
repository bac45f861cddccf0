"""Plans: presets scaled to a target, within its limits and marks, or refused before anything is changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from pydantic import TypeAdapter

from include.benchmarks.campaign.plan import CampaignWish, make_plan, plan_preset, shown_bytes, shown_rate
from include.benchmarks.campaign.presets import BLOCK, CLIENT_RATE, PRESETS, ROUND_TRIPS_MS
from include.benchmarks.errors import PLAN_REFUSED, PRESET_UNKNOWN, BenchmarkError
from include.benchmarks.judge.compare import plan_digest
from include.benchmarks.measure.loads import DataPattern, LoadAccess, LoadStep, ReaderWay, RunnerKind
from include.benchmarks.measure.targets import TargetSpace
from include.settings.benchmarks import BenchmarkSettings, EndpointServer, TargetKind
from tests.fakes.refused import refused

GIB = 1 << 30
SPACE = TargetSpace(total=1000 * GIB, free=900 * GIB)
WISH = CampaignWish("t", "hlt2-uncontrolled", scale=0.01, rounds=3)
LOGIN = {"host": "h.example.org", "user": "u", "known_hosts": "/k", "agent": True}
PLACES = {
    TargetKind.PATH: {"path": "/t"}, TargetKind.BUCKET: {"store": "s"}, TargetKind.POOL: {"pool": "p"},
    TargetKind.REMOTE: {"path": "/t", "hosts": {"h": LOGIN}},
    TargetKind.ENDPOINT: {
        "urls": {server: f"{'root' if server == 'xroot' else 'http'}://h.example.org/file"
                 for server in ("nginx", "apache", "xrdhttp", "xroot")},
        "size": 1_000_001, "sha256": "0" * 64, "link": {"read": ["near"], "set": ["set", "{rtt_ms}", "{window}"]},
    },
}  # fmt: skip


CLUSTER = {"pool": "p", "servers": {"s1": {"osds": [0, 1]}}}
MARKS = {"fill": "allowed", "pools": "allowed", "degrade": "allowed", "cluster": CLUSTER}


def settings(kind=TargetKind.PATH, **changes):
    target = {"kind": kind.value, "benchmark": "allowed", "limits": {"bytes": "100GiB"}, **PLACES[kind], **changes}
    return BenchmarkSettings.model_validate({"targets": {"t": target}}).target("t")


def plan(wish=WISH, kind=TargetKind.PATH, space=SPACE, **changes):
    return make_plan(wish, settings(kind, **changes), kind, space)


def test_the_source_is_planned_at_its_own_size_and_scaled_by_one_factor():
    whole = plan(replace(WISH, scale=1, rounds=1), space=None, limits={"bytes": "100PB"})
    write = whole.steps[0].load.loads[0]
    assert (write.streams, write.block_bytes, write.access) == (192, BLOCK, LoadAccess.WRITE)
    small = plan().steps[0].load.loads[0]
    assert (small.streams, small.block_bytes, small.file_bytes) == (2, BLOCK, 10 * BLOCK)
    assert "connections" not in TypeAdapter(LoadStep).dump_json(plan().steps[0].load).decode()
    for kind in (TargetKind.BUCKET, TargetKind.POOL):  # whole objects
        load = plan(kind=kind, space=None).steps[0].load.loads[0]
        assert (load.files, load.file_bytes) == (10, BLOCK)


def test_rounds_are_interleaved_and_what_is_read_was_written():
    steps = plan().steps
    assert [(step.load.name, step.round) for step in steps] == [
        (name, n) for n in (1, 2, 3) for name in ("write", "read")
    ]
    assert plan().bytes == 3 * plan().peak_bytes == 3 * 2 * 10 * BLOCK
    mixed = plan(replace(WISH, preset="hlt2-mixed")).steps
    assert [step.counted for step in mixed] == [False, True, True, True], "preparations do not count"
    assert {load.access for load in mixed[1].load.loads} == {LoadAccess.WRITE, LoadAccess.READ}


def test_streams_keep_their_rate_and_write_what_it_lets_through():
    load = plan(replace(WISH, preset="hlt2-controlled", minutes=1)).steps[0].load
    (client,) = load.loads
    assert (client.rate, client.streams) == (CLIENT_RATE, 20)
    assert client.file_bytes <= max(BLOCK, CLIENT_RATE * load.seconds)


def test_dd_writes_zeros_and_others_only_if_asked_to_and_each_packet_size_has_a_pool_of_its_own():
    made = plan(replace(WISH, preset="hlt2-packet-size"), TargetKind.POOL, space=None, **MARKS)
    assert made.packets == [4096, 16384, 65536, 262144]
    assert {step.load.name for step in made.steps if step.packet_bytes == 16384} == {"write-016k", "read-016k"}
    steps = {step.load.name: step.load for step in plan(replace(WISH, preset="hlt2-dd")).steps}
    assert steps["write-dd"].runner is RunnerKind.DD
    assert {name: steps[name].loads[0].pattern for name in ("write-dd", "write-zeros", "write-random")} == {
        "write-dd": DataPattern.ZEROS, "write-zeros": DataPattern.ZEROS, "write-random": DataPattern.RANDOM,
    }  # fmt: skip


def test_an_occupancy_preset_fills_what_is_missing_to_each_level():
    wish = CampaignWish("t", "hlt2-occupancy", scale=0.01, rounds=1)
    limits = {"bytes": "2TB", "fill_percent": 85}
    made = plan(wish, fill="allowed", limits=limits)
    fills = [step.load for step in made.steps if not step.counted]
    assert [fill.name for fill in fills] == ["fill-to-20", "fill-to-40", "fill-to-60", "fill-to-80"]
    assert [round(sum(load.bytes for load in fill.loads) / GIB) for fill in fills] == [100, 200, 200, 200]
    small = plan(replace(wish, scale=0.001), fill="allowed", limits=limits, space=TargetSpace(4 * GIB, 4 * GIB))
    level = sum(load.bytes for step in small.steps if not step.counted for load in step.load.loads)
    assert level == pytest.approx(3.2 * GIB, rel=0.01), "a small target is filled as exactly as a large one"
    full = plan(wish, fill="allowed", limits=limits, space=replace(SPACE, free=700 * GIB))
    assert next(step.load.name for step in full.steps) == "write-at-20", "more is in it already"
    # a fill has all the time that the measured steps leave
    wish = CampaignWish("t", "hlt2-occupancy", 0.01, 1, 1000)
    made = plan(wish, fill="allowed", limits={"bytes": "2TB", "fill_percent": 85, "minutes": 1000})
    steps = [[step.load.seconds for step in made.steps if step.fills is fills] for fills in (False, True)]
    assert steps == [[300] * 4, [(0.75 * 60_000 - 4 * 300) / 4] * 4]


def test_a_target_ages_by_writing_a_random_half_of_it_again_among_data_that_are_deleted_then():
    wish = CampaignWish("t", "hlt2-aged", scale=0.01, rounds=1)
    made = plan(wish, fill="allowed", limits={"bytes": "10TB"})
    cycles, steps = ["age", "thin-out"] * 2, [step.load for step in made.steps]
    measured = [[f"write-aged-{count}", f"read-aged-{count}"] for count in (0, 2, 4)]
    assert [step.name for step in steps] == ["fill-to-40", *measured[0], *cycles, *measured[1], *cycles, *measured[2]]
    fill, ages, thin = steps[0], [step for step in steps if step.name == "age"], steps[4]
    halves = [age.loads[:-1] for age in ages]
    assert all(len(half) == len(fill.loads) / 2 and set(half) < set(fill.loads) for half in halves)
    assert len(set(halves)) > 1, "another half each time"
    over = ages[0].loads[-1]
    assert [load.dataset for load in thin.loads] == [over.dataset], "what was between is replaced"
    assert thin.loads[0].bytes < over.bytes / 100
    assert over.bytes == pytest.approx(200 * GIB, rel=0.01)
    assert made.peak_bytes == sum(load.bytes for load in fill.loads) + over.bytes + made.steps[1].bytes
    assert plan_digest(made) == plan_digest(plan(wish, fill="allowed", limits={"bytes": "10TB"}))
    assert made == plan(wish, fill="allowed", limits={"bytes": "10TB"}), "every campaign draws the same halves"
    with refused(PLAN_REFUSED) as error:
        plan(wish, fill="allowed", limits={"bytes": "10TB"}, space=replace(SPACE, free=650 * GIB))
    assert "35 % full already" in str(error.value)


def test_a_publication_is_of_one_size_whatever_its_connections_and_alike_on_s3_and_posix():
    wish = CampaignWish("t", "publication", scale=1, rounds=1)
    made = {kind: plan(wish, kind) for kind in (TargetKind.BUCKET, TargetKind.PATH)}
    loads = [step.load.loads[0] for step in made[TargetKind.PATH].steps]
    assert [load.connections for load in loads] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert {(load.streams, load.files, load.file_bytes) for load in loads} == {(250, 1000, 4096)}
    assert plan_digest(made[TargetKind.BUCKET]) == plan_digest(made[TargetKind.PATH])
    small = plan(replace(wish, scale=0.04)).steps[0].load.loads[0]
    assert (small.streams, small.files) == (10, 200)


def test_many_readers_share_one_data_set_and_the_target_has_room_for_its_copies_in_caches():
    wish = CampaignWish("t", "readers-many", scale=0.25, rounds=1)
    made = plan(wish)
    (data,) = made.datasets.values()
    jobs = [step.load.loads[0] for step in made.steps if step.counted]
    assert (data.streams, data.files, data.file_bytes) == (1, 60, 64 << 20)
    assert {(load.streams, load.each, load.files) for load in jobs} == {(32, 8, 60)}
    assert [load.way for load in jobs] == list(ReaderWay)
    assert made.peak_bytes == made.bytes == 10 * 60 * (64 << 20)
    for why, changes in (
        ("it would write 40.3 GB, over 21.5 GB", {"limits": {"bytes": "20GiB"}}),
        ("the target would be 92 % full", {"space": TargetSpace(100 * GIB, 45 * GIB)}),
        ("the preset is for a path", {"kind": TargetKind.BUCKET}),
    ):
        with refused(PLAN_REFUSED) as error:
            plan(wish, **changes)
        assert why in str(error.value)


@pytest.mark.parametrize(("preset", "steps", "all_steps"), [("cms-transfer", 96, 132), ("cms-strategies", 72, 192)])
def test_reads_at_a_distance_are_of_a_file_as_it_is_and_the_whole_scale_has_more_distances(preset, steps, all_steps):
    wish = CampaignWish("t", preset, scale=0.5, rounds=1, minutes=60)
    made = plan(wish, TargetKind.ENDPOINT, None)
    loads = [step.load.loads[0] for step in made.steps]
    assert (len(loads), {load.file_bytes for load in loads}, made.bytes) == (steps, {1_000_001}, 0)
    distances = {server: {load.distant.rtt_ms for load in loads if load.distant.server is server}
                 for server in EndpointServer}  # fmt: skip
    assert distances[EndpointServer.NGINX] == set(ROUND_TRIPS_MS)
    assert distances[EndpointServer.APACHE] == distances[EndpointServer.XRDHTTP] == {0, 25, 100}
    assert len(plan(replace(wish, scale=1), TargetKind.ENDPOINT, None).steps) == all_steps
    assert len({step.load.name for step in made.steps}) == steps


def test_an_endpoint_without_a_link_is_read_once_at_its_own_distance_and_by_the_servers_that_it_has():
    wish = CampaignWish("t", "cms-transfer", scale=0.5, rounds=1, minutes=60)
    urls = PLACES[TargetKind.ENDPOINT]["urls"]
    made = plan(wish, TargetKind.ENDPOINT, None, link=None, urls={"nginx": urls["nginx"]})
    assert [step.load.name for step in made.steps] == ["curl-nginx-1", "curl-nginx-4", "davix-nginx-1"]
    assert {step.load.loads[0].distant.rtt_ms for step in made.steps} == {None}
    for why, changes in (
        ("no step of it reads from a server", {"preset": "cms-pairs", "urls": {"xroot": urls["xroot"]}}),
        ("the preset is for a", {"preset": "hlt2-streams"}),
    ):
        with refused(PLAN_REFUSED) as error:
            asked = replace(wish, preset=changes.pop("preset"))
            plan(asked, TargetKind.ENDPOINT, None, **changes)
        assert why in str(error.value)


def test_the_file_of_an_endpoint_is_written_first_where_its_urls_are_those_of_a_folder():
    wish = CampaignWish("t", "cms-strategies", scale=0.5, rounds=1, minutes=60)
    urls = {"xroot": "root://h.example.org//d/", "xrdhttp": "http://h.example.org/d/"}
    made = plan(wish, TargetKind.ENDPOINT, None, sha256=None, urls=urls, link=None)
    first, *others = made.steps
    assert (first.load.name, first.load.runner, first.round) == ("write-file", RunnerKind.CURL, 0)
    assert first.load.loads[0].distant.server is EndpointServer.XRDHTTP
    assert made.bytes == 1_000_001
    assert {step.load.runner for step in others} == {RunnerKind.READER}
    with refused(PLAN_REFUSED) as error:
        plan(wish, TargetKind.ENDPOINT, None, sha256=None, urls=urls, link=None, limits={"bytes": "1MB"})
    assert "it would write 1 MB, over 1 MB" in str(error.value)


def test_an_outage_is_measured_between_two_healthy_steps_half_full_and_at_a_limited_rate():
    made = plan(replace(WISH, preset="hlt2-degraded-host", rounds=1, minutes=20), **MARKS, limits={"bytes": "2TB"})
    steps = [step for step in made.steps if step.counted]
    assert [step.servers.value for step in steps] == ["healthy", "host-down", "recovering", "healthy"]
    for step in steps:
        write, read = step.load.loads
        assert (write.rate, read.rate, write.streams, read.streams) == (CLIENT_RATE, CLIENT_RATE, 3, 3)
        assert (write.access, read.access) == (LoadAccess.WRITE, LoadAccess.READ)
    assert [step.load.loads[0].dataset for step in steps] == ["new", "missed", "new", "new"], "it is there to recover"
    assert [step.load.name for step in made.steps if not step.counted] == ["fill-to-50", "prepare"]


@pytest.mark.parametrize(
    ("wish", "changes", "why"),
    [
        (replace(WISH, scale=0), {}, "scale"),
        (replace(WISH, scale=2), {}, "scale"),
        (replace(WISH, rounds=0), {}, "rounds"),
        (replace(WISH, minutes=0), {}, "minutes"),
        (replace(WISH, budget_bytes=GIB), {}, "would write 4.03 GB, over 1.07 GB"),
        (replace(WISH, scale=0.5), {}, "would write"),
        (replace(WISH, preset="objects"), {}, "is for a bucket"),
        (replace(WISH, preset="hlt2-occupancy"), {}, "`fill: allowed`"),
        (replace(WISH, preset="hlt2-degraded-osd"), {"cluster": CLUSTER}, "`fill: allowed` and `degrade: allowed`"),
        (replace(WISH, preset="hlt2-degraded-osd"), {**MARKS, "cluster": None}, "no `cluster:` with `servers:`"),
        (replace(WISH, preset="hlt2-occupancy"), {"fill": "allowed"}, "filled to 80 %"),
        (replace(WISH, preset="hlt2-occupancy"), {"fill": "allowed", "space": None}, "does not report"),
        (WISH, {"space": TargetSpace(10 * GIB, 4 * GIB)}, "72 % full"),
        (replace(WISH, preset="hlt2-blocks", rounds=50, minutes=1), {"limits": {"bytes": "10TB"}}, "minutes"),
    ],
)
def test_what_is_over_limits_or_not_marked_is_refused(wish, changes, why):
    with refused(PLAN_REFUSED, subject=f"{wish.preset} on t") as error:
        plan(wish, **changes)
    assert why in str(error.value)


def test_all_that_is_wrong_is_named_at_once_and_dd_is_not_planned_for_loads_that_have_to_end_together():
    with refused(PLAN_REFUSED) as error:
        plan(CampaignWish("t", "hlt2-occupancy", scale=0, rounds=0))
    assert all(word in str(error.value) for word in ("scale", "rounds", "fill"))
    (phase,) = PRESETS["hlt2-mixed"].phases
    by_dd = replace(phase, steps=tuple(replace(step, runner=RunnerKind.DD) for step in phase.steps))
    with refused(PLAN_REFUSED) as error:
        plan_preset(replace(PRESETS["hlt2-mixed"], phases=(by_dd,)), WISH, settings(), TargetKind.PATH, SPACE)
    assert "mixed: dd cannot end several loads at the same time" in str(error.value)
    with refused(PRESET_UNKNOWN, subject="hlt2-mixd") as error:
        plan(replace(WISH, preset="hlt2-mixd"))
    assert "did you mean hlt2-mixed?" in str(error.value)


@given(
    st.sampled_from(sorted(PRESETS)), st.sampled_from(list(TargetKind)), st.floats(0.001, 1), st.integers(1, 5),
    st.integers(1, 60),
)  # fmt: skip
def test_no_plan_exceeds_its_limits(preset, kind, scale, rounds, minutes):
    wish = CampaignWish("t", preset, scale, rounds, minutes)
    try:
        made = plan(wish, kind, **MARKS, limits={"bytes": "500GiB", "fill_percent": 85})
    except BenchmarkError:
        return
    assert made.bytes <= 500 * GIB
    assert made.seconds <= minutes * 60
    assert SPACE.total - SPACE.free + made.peak_bytes <= 0.85 * SPACE.total
    assert [step.number for step in made.steps] == list(range(1, len(made.steps) + 1))


def test_every_preset_is_possible_on_a_small_machine():
    for name, kind in ((name, kind) for name, preset in PRESETS.items() for kind in preset.targets):
        wish = CampaignWish("t", name, scale=0.005, rounds=2, minutes=10)
        made = plan(wish, kind, **MARKS, limits={"bytes": "5TB", "fill_percent": 90})
        assert made.steps
        counted = {(step.load.name, step.round) for step in made.steps if step.counted}
        assert len(counted) == sum(step.counted for step in made.steps), "names of steps are unique in a round"


def test_sizes_and_rates_are_shown_for_people():
    assert [shown_bytes(size) for size in (5, 1500, 20e9, 8.8e15)] == ["5 B", "1.5 kB", "20 GB", "8.8 PB"]
    assert [shown_rate(rate) for rate in (0.0931, 12.34, 12345.6)] == ["0.0931/s", "12.3/s", "12,346/s"]
