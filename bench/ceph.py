"""All presets `hlt2-*` on a real Ceph cluster of this machine: CephFS by ceph-fuse, and RADOS pools.

A cluster of three OSDs on files is made below a temporary folder and removed afterwards. Each preset is one campaign
with its report, kept in bench/results/ceph. OSDs are stopped by the commands of the lab, under the timer of a campaign.
It is void (exit code 3) if a campaign lacks a part, if nothing was read while an OSD was down, or if the cluster is not
clean afterwards. Ends in one line of JSON, which is also written to bench/results/ceph.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.publishing.machine import BENCH, Idle, description
from include.benchmarks.campaign.campaigns import begin_campaign, clean_up, conclude, measure, open_target, utc_now
from include.benchmarks.campaign.folder import StepRecord
from include.benchmarks.campaign.plan import CampaignWish
from include.benchmarks.campaign.presets import PRESETS
from include.benchmarks.judge.report import CHARTS, REPORT
from include.benchmarks.measure.ceph import ClusterClient
from include.benchmarks.measure.loads import LoadAccess
from include.settings.benchmarks import TargetKind
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from lab.servers.ceph_lab import FILES, POOL, CephLab

VOID = 3
FREED_BYTES, FREED_S = 100e6, 300.0
"""What all pools together may still hold, and how long that is waited for."""
MB = 1e6
RESULTS = BENCH / "results" / "ceph"
MARKS = {"benchmark": "allowed", "fill": "allowed", "pools": "allowed", "degrade": "allowed"}


@dataclass(frozen=True, slots=True)
class BenchPreset:
    """How much of the time and of the source's size a preset has here."""

    minutes: int = 1
    scale: float = 0.005


USUAL = BenchPreset()
# for about 6 GB at 30 MB/s; a fill ends as soon as it is written, long before its time is over
SHAPES = {
    "hlt2-controlled": BenchPreset(1, 0.001),
    "hlt2-streams": BenchPreset(2, 0.001),
    "hlt2-blocks": BenchPreset(2),
    "hlt2-occupancy": BenchPreset(8, 0.003),
    "hlt2-aged": BenchPreset(30),
    # no longer steps: what they may write would make the OSDs nearly full
    "hlt2-degraded-osd": BenchPreset(3, 0.003),
    "hlt2-degraded-host": BenchPreset(3, 0.003),
    "hlt2-packet-size": BenchPreset(2),
}


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what is started here ends with us
    wanted = [name for name in PRESETS if name.startswith("hlt2-") and (not options.only or name in options.only)]
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    idle, began = Idle(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-ceph-", dir=options.folder) as place:
        lab = CephLab(Path(place) / "ceph")
        try:
            lab.up(osd_gib=options.osd_gib, say=print)
            if not lab.mountpoint.is_mount():
                # without the mount a folder of this machine would be measured in place of CephFS
                sys.exit("CephFS is not mounted: apt-get install ceph-fuse, give access to /dev/fuse, and run it again")
            site = lab_site(lab, Path(place))
            rows = [campaign(site, name, SHAPES.get(name, USUAL)) for name in wanted]
            clean = lab.status().clean
        finally:
            lab.down(purge=True, say=print)
    wrong = [row["preset"] for row in rows if row["missing"] or row["left"] or row.get("read_while_down_mb_s") == 0]
    result = {
        "machine": description(), "seconds": round(time.monotonic() - began), "idle": idle.share(), "clean": clean,
        "void": wrong, "campaigns": rows,
    }  # fmt: skip
    line = json.dumps(result)
    (BENCH / "results" / "ceph.json").write_text(line + "\n")
    print(line)
    return VOID if wrong or not clean else 0


def lab_site(lab: CephLab, place: Path) -> Site:
    """A deployment with the cluster's file system and its pool as targets."""
    folder = lab.mountpoint / "benchmarks"
    folder.mkdir(exist_ok=True)
    cluster = lab.cluster_block()
    limits = {"limits": {"bytes": "200GiB", "fill_percent": 90}}
    targets = {
        "cephfs": {"kind": "path", "path": str(folder), "cluster": {**cluster, "pool": FILES}},
        "rados": {"kind": "pool", "pool": POOL, "conf": str(lab.conf), "cluster": cluster},
    }
    settings = {
        "ledger": f"sqlite:///{place}/ledger.db",
        "paths": {"var": f"{place}/var"},
        "benchmarks": {"targets": {name: {**target, **MARKS, **limits} for name, target in targets.items()}},
    }
    return Site(SiteSettings.model_validate(settings), EnvSecrets({}))


def emptied(site: Site) -> bool:
    """Whether all pools hold nearly nothing, and the monitors have noticed. OSDs keep logs of their own beside it."""
    cluster = ClusterClient.of(open_target(site, "cephfs").settings)
    assert cluster
    held = sum(pool["stats"]["bytes_used"] for pool in json.loads(cluster.ask("df"))["pools"])
    return held <= FREED_BYTES and not cluster.health().stopping


def campaign(site: Site, preset: str, shape: BenchPreset) -> dict[str, Any]:
    """Run one campaign and keep its report; its data are removed whatever becomes of it."""
    target = "cephfs" if TargetKind.PATH in PRESETS[preset].targets else "rados"
    ends = time.monotonic() + FREED_S
    while not emptied(site) and time.monotonic() < ends:
        time.sleep(2.0)  # Ceph frees the space of removed files some time later
    began = time.monotonic()
    folder = begin_campaign(site, CampaignWish(target, preset, shape.scale, 1, shape.minutes), now=utc_now())
    print(f"{folder.id}", flush=True)
    try:
        measure(site, folder, each=_print)
    finally:
        left = clean_up(site, folder).left
    judged = conclude(site, folder).judged
    kept = RESULTS / preset
    shutil.copytree(folder.path / CHARTS, kept)
    shutil.copy(folder.path / REPORT, kept / REPORT)
    speeds = {}
    for ended in folder.steps():
        for load in ended.result.loads if ended.result and ended.step.counted else ():
            speeds[f"{ended.step.load.name} {load.access.value}"] = round(load.throughput / MB, 1)
    row = {
        "preset": preset, "target": target, "seconds": round(time.monotonic() - began), "mb_s": speeds,
        "missing": list(judged.missing), "left": list(left),
    }  # fmt: skip
    return {**row, **_outage(list(folder.steps()))}


def _outage(steps: list[StepRecord]) -> dict[str, Any]:
    """What was read while servers were down, and how soon the cluster was clean again."""
    found: dict[str, Any] = {}
    for ended in steps:
        if ended.step.servers is not None and ended.step.servers.is_outage and ended.result:
            read = [load for load in ended.result.loads if load.access is LoadAccess.READ]
            found["read_while_down_mb_s"] = round(sum(load.throughput for load in read) / MB, 1)
            found["osds_down"] = max((look.osds_down for look in ended.cluster), default=0)
            found["degraded_percent"] = round(max((look.degraded_percent for look in ended.cluster), default=0.0), 2)
        for note in ended.result.notes if ended.result else ():
            if note.startswith("recovering"):
                found["recovery"] = note
    return found


def _print(ended: StepRecord) -> None:
    loads = ended.result.loads if ended.result else ()
    speeds = [f"{load.access.value} {load.throughput / MB:.1f} MB/s" for load in loads]
    print(f"  {ended.step.load.name}: {', '.join(speeds) or ended.error}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], choices=[name for name in PRESETS if name.startswith("hlt2-")])
    parser.add_argument("--osd-gib", type=int, default=3, help="size of each OSD's file")
    parser.add_argument("--folder", default=os.environ.get("TMPDIR", "/var/tmp"), help="where the cluster is made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
