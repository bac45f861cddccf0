"""What machines and OSDs report of themselves: counters between two looks, and what limits."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest

from include.benchmarks.campaign.campaigns import open_target, run_campaign, watched_servers
from include.benchmarks.errors import RESULT_UNREADABLE, RUNNER_FAILED, TARGET_UNUSABLE
from include.benchmarks.judge.report import server_charts, servers_of
from include.benchmarks.measure import osds as watching
from include.benchmarks.measure.ceph import CephHealth, ClusterClient
from include.benchmarks.measure.loads import LoadAccess
from include.benchmarks.measure.osds import (
    HISTOGRAMS,
    READS,
    ClusterWatch,
    OsdLatency,
    RecoveryLook,
    latencies_between,
    merged_latencies,
    parse_commits,
    parse_histograms,
)
from include.benchmarks.measure.probes import MachineLook, MachineUse, MachineView, ServersView, WatchedServers
from include.benchmarks.measure.programs import BenchmarkProgram, StopSignal, run_program
from include.settings.benchmarks import ClusterBlock
from tests.fakes.benchmarking import START, begin_campaign, benchmark_site, ticking
from tests.fakes.cephprogram import FileCluster
from tests.fakes.refused import refused

READ, WRITE = LoadAccess.READ, LoadAccess.WRITE
US = 1000


def look(uptime=100.0, busy=1000, idle=9000, disk_ms=0, sectors=0, received=0, sent=0, speed="1000"):
    return MachineLook.parse(
        f"""== uptime
{uptime} 1.0
== loadavg
1.50 1.00 0.50 1/200 4242
== diskstats
   8       0 sda 10 0 {sectors} 5 10 0 {sectors} 5 0 {disk_ms} 10 0 0 0 0
   8       1 sda1 10 0 {sectors} 5 10 0 {sectors} 5 0 99999999 10 0 0 0 0
== net/dev
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
  eth0: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0
    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
== stat
cpu  {busy} 0 0 {idle} 0 0 0 0 0 0
== disks
sda
== speed eth0
{speed}
== speed lo
""".splitlines()
    )


def use(after, before=None):
    found = MachineUse.between(before or look(), after, 10.0)
    assert found is not None
    return found


def test_a_machine_is_used_by_what_grew_between_two_looks():
    found = use(look(110.0, busy=1500, idle=9500, disk_ms=4000, sectors=1000, received=250_000_000, sent=500_000_000))
    assert (found.busy_percent, found.load, found.disk, found.disk_percent) == (50.0, 1.5, "sda", 40.0)
    assert found.disk_bytes_per_s == 2 * 1000 * 512 / 10
    assert (found.network, found.network_bytes_per_s, found.network_percent) == ("eth0", 50_000_000.0, 40.0)
    assert found.limit() is None


@pytest.mark.parametrize(
    ("after", "limit"),
    [
        (look(110.0, busy=1900, idle=9100), "processors"),
        (look(110.0, busy=1000, idle=10000, disk_ms=8000), "disk sda"),
        (look(110.0, busy=1000, idle=10000, received=1_000_000_000), "network eth0"),
        (look(110.0, busy=1850, idle=9150, disk_ms=9900), "disk sda"),
        (look(110.0, busy=1000, idle=10000, received=1_000_000_000, speed="-1"), None),
        (look(110.0, busy=1000, idle=10000, received=1_000_000_000, speed=""), None),
    ],
)
def test_what_was_used_most_limits_from_four_fifths_of_the_time_on(after, limit):
    assert use(after).limit() == limit


def test_a_machine_that_was_started_again_or_says_other_things_has_no_use():
    assert MachineUse.between(look(100.0), look(20.0), 1.0) is None
    assert MachineLook.parse(["== uptime", "bash: permission denied"]) is None
    assert MachineLook.parse([]) is None


def dump(**osds):
    """Counts of the buckets up to 100, 200 and 400 microseconds, and above, as OSDs write them."""
    ranges = [{"max": -1}, {"min": 0, "max": 99_999}, {"min": 100_000, "max": 199_999},
              {"min": 200_000, "max": 399_999}, {"min": 400_000}]  # fmt: skip
    text = "\n"
    for name, counts in osds.items():
        axes = [{"name": "Latency (usec)", "ranges": ranges}, {"name": "Request size (bytes)", "ranges": [{}, {}]}]
        values = [[0, 0], *([count, 0] for count in counts)]
        document = {"osd": {name: {"axes": axes, "values": values} for name in HISTOGRAMS.values()}}
        text += f"{name.replace('_', '.')}: {json.dumps(document, indent=4)}\n"
    return text


def test_latencies_of_osds_are_what_grew_between_two_looks():
    before, after = parse_histograms(dump(osd_0=(5, 0, 0, 0), osd_11=(1, 1, 1, 1)), "t"), parse_histograms(
        dump(osd_0=(5, 90, 10, 0), osd_11=(1, 1, 1, 1)), "t"
    )  # fmt: skip
    found = latencies_between(before, after)
    assert [(one.osd, one.access, one.operations) for one in found] == [
        (0, READ, 100), (0, WRITE, 100), (11, READ, 0), (11, WRITE, 0),
    ]  # fmt: skip
    first = found[0]
    assert first.buckets == ((100 * US, 200 * US, 90), (200 * US, 400 * US, 10))
    assert first.mean_ms() == pytest.approx(0.165)
    assert first.percentile_ms(95) == pytest.approx(0.3)
    assert (found[2].mean_ms(), found[2].percentile_ms(95)) == (None, None)
    # an OSD that was started meanwhile has what came since then
    before, after = (parse_histograms(dump(osd_0=counts), "t") for counts in ((50, 50, 0, 0), (3, 60, 0, 1)))
    assert [one.operations for one in latencies_between(before, after)] == [64, 64]
    # rounds are put together by OSD and direction
    rounds = [OsdLatency(1, WRITE, ((0, 100, 3),)), OsdLatency(1, WRITE, ((0, 100, 4), (100, 200, 1)))]
    assert merged_latencies(rounds) == (OsdLatency(1, WRITE, ((0, 100, 7), (100, 200, 1))),)


def test_an_osd_without_an_answer_is_left_out_and_no_answer_at_all_is_an_error():
    text = "osd.3: Error ENXIO: problem getting command descriptions from osd.3\n" + dump(osd_0=(1, 0, 0, 0))
    assert {osd for osd, _ in parse_histograms(text, "t")} == {0}
    for broken in ("", "[]", "osd.0: {}", "osd.0: {", 'osd.0: {"osd": []}'):
        with refused(RESULT_UNREADABLE, subject="t"):
            parse_histograms(broken, "t")


def test_recovery_and_commits_are_read_from_what_ceph_says_of_them():
    status = {"pgmap": {"degraded_objects": 7, "misplaced_objects": 3, "recovering_bytes_per_sec": 1e6}}
    assert RecoveryLook.parse(json.dumps(status), 2.0, "t") == RecoveryLook(2.0, 7, 3, 1e6)
    assert RecoveryLook.parse('{"pgmap": {}}', 2.0, "t") == RecoveryLook(2.0, 0, 0, 0.0)
    infos = {"osd_perf_infos": [{"id": 4, "perf_stats": {"commit_latency_ms": 12}}]}
    assert parse_commits(json.dumps({"osdstats": infos}), "t") == parse_commits(json.dumps(infos), "t") == {4: 12.0}
    for broken in ("", "[]", "{}"):
        for parse in (lambda text: RecoveryLook.parse(text, 0.0, "t"), lambda text: parse_commits(text, "t")):
            with refused(RESULT_UNREADABLE, subject="t"):
                parse(broken)


@pytest.fixture
def steps(tmp_path, measures):
    """Of a campaign whose clusters may not be asked: the file of the key does not exist."""
    measures()
    site = benchmark_site(tmp_path, servers={"ceph": {"conf": f"{tmp_path}/none.conf"}, "every_s": 1})
    folder, target = begin_campaign(site), open_target(site, "scratch")
    run_campaign(folder, target, clock=ticking(), watch=watched_servers(site, target).during)
    return list(folder.steps())


def test_the_cluster_of_a_target_is_asked_unless_another_access_to_it_is_set(tmp_path):
    def asked(**target):
        site = benchmark_site(tmp_path, **target)
        ceph = watched_servers(site, open_target(site, "scratch")).ceph
        return ceph and ceph.conf.name

    cluster, access = {"conf": f"{tmp_path}/a.conf", "pool": "files"}, {"conf": f"{tmp_path}/b.conf"}
    assert asked(cluster=cluster) == "a.conf"
    assert asked(cluster=cluster, servers={"ceph": access}) == "b.conf"
    assert asked() is None


def test_osds_that_reply_are_counted_while_another_one_is_down(tmp_path, monkeypatch):
    cluster = FileCluster(tmp_path, monkeypatch)
    (cluster.folder / "down-1").touch()
    counts = cluster.folder / "counts"
    counts.write_text(dump(osd_0=(5, 0, 0, 0)))
    watched = WatchedServers(1, ceph=cluster.settings())
    with watched.during() as seen:
        counts.write_text(dump(osd_0=(5, 90, 10, 0)))
        view = seen()
    assert view.notes == ()
    assert [(one.osd, one.access, one.operations) for one in view.latencies] == [(0, READ, 100), (0, WRITE, 100)]


@pytest.mark.slow
def test_a_report_has_machines_osds_and_recovery_and_missing_rights_fail_no_step(steps):
    assert [ended.error for ended in steps] == [None] * len(steps)
    rows = servers_of(steps)
    assert len(rows.notes) >= 1
    assert rows.osds == ()
    busy = MachineUse(5.0, 90.0, 1.0, 2.0, "sda", 30.0, 1e6, "eth0", 2e6, 5.0)
    views = [
        ServersView(
            machines=(MachineView("server1", True, busy, (busy,)),),
            latencies=(OsdLatency(0, WRITE, ((0, 100_000, 20),)), OsdLatency(1, READ, ((0, 100_000, 2),))),
            commit_ms={0: 4.0 + number},
            recovery=(RecoveryLook(1.0, 10 * number, 0, 0.0),),
        )
        for number in range(2)
    ]
    seen = [
        type(ended)(
            ended.step, START + timedelta(minutes=number), ended.seconds, ended.noise, ended.space, ended.result,
            servers=views[number],
        )
        for number, ended in enumerate((steps[0], steps[2]))
    ]  # fmt: skip
    rows = servers_of(seen)
    assert [(row.machine, row.use.limit()) for row in rows.machines] == [("server1", "processors")]
    assert [(row.latency.operations, row.commit_ms) for row in rows.osds] == [(40, 4.5), (4, None)]
    charts = {chart.name: chart for chart in server_charts(START, seen)}
    assert set(charts) == {
        "osd-latency", "machines-processors", "machines-disk", "machines-network", "machines-load", "machines-steal",
        "recovery",
    }  # fmt: skip
    assert [{osd for osd, _ in line.points} for line in charts["osd-latency"].lines] == [{0}]
    assert charts["recovery"].lines[0].points == ((1.0, 0.0), (61.0, 10.0))


WELL = CephHealth((), 0)
SLOW = CephHealth(("SLOW_OPS: 3 slow ops",), 0)
PRODUCTION = ClusterBlock.model_validate({"pool": "p", "production": {"pool": "p", "object": "o", "limit_ms": 100}})


class ReportedCluster(ClusterClient):
    """Reports one state after the other, and then the last."""

    def __init__(self, *states, production_ms=5.0):
        super().__init__(PRODUCTION, "t")
        self.states = list(states)
        self.read_ms = production_ms
        self.all_seen = threading.Event()

    def health(self, *, limit_s=0):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if len(self.states) == 1:
            self.all_seen.set()
        if isinstance(state, Exception):
            raise state
        return state

    def production_ms(self):
        return self.read_ms


def watch(cluster, **changes):
    made = ClusterWatch(cluster, **{"stopped": 0, "stop": StopSignal(), **changes})
    made._began = 0
    return made


@pytest.mark.parametrize(
    ("state", "stopped", "reasons"),
    [
        (WELL, 0, 0),
        (SLOW, 0, 1),
        (CephHealth((), 8, osds_down=1), 1, 0),
        (CephHealth((), 8, osds_down=2), 1, 1),
        (TARGET_UNUSABLE("t", "no answer"), 0, 1),
    ],
)
def test_what_the_campaign_has_not_stopped_itself_is_a_reason(state, stopped, reasons):
    assert len(watch(ReportedCluster(state), stopped=stopped).look()) == reasons


def test_production_that_is_slow_is_a_reason_when_most_reads_are_and_so_is_a_timer_that_ended():
    slow = watch(ReportedCluster(WELL, production_ms=500.0))
    assert [len(slow.look()) for _ in range(READS)] == [0] * (READS - 1) + [1]
    assert {sample.production_ms for sample in slow.samples} == {500.0}

    def renew():
        raise RUNNER_FAILED("s1", "the timer has ended")

    assert watch(ReportedCluster(WELL), renew=renew).look()


def test_a_reason_that_lasts_kills_the_program_and_one_that_passes_does_not(monkeypatch):
    monkeypatch.setattr(watching, "EVERY_S", 0.001)
    passing = ReportedCluster(SLOW, SLOW, WELL)
    with watch(passing) as seen:
        passing.all_seen.wait(30)
    assert seen.aborted is None
    monkeypatch.setattr(watching, "HOLD_S", 0.0)
    stop = StopSignal()
    with watch(ReportedCluster(WELL, SLOW), stop=stop) as seen:
        done = run_program(BenchmarkProgram("sleep", "coreutils"), ["600"], subject="step", limit_s=60, stop=stop)
    assert (done.code, seen.aborted) == (-9, "SLOW_OPS: 3 slow ops")
