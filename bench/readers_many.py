"""Many jobs that read a shared data set by every way to it: one campaign of the preset `readers-many`.

By default a quarter of the paper's size: 32 jobs of a set of 4 GB in at most 25 minutes; FULL=1 is its own, 128 jobs
and 15 GB. The paper's figures 1 and 3 go into bench/results, the report into build. Ends in one line of JSON; code 1 if
a target was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from bench.publishing.machine import BENCH, ROOT, Idle, description
from include.benchmarks.campaign.campaigns import begin_campaign, clean_up, conclude, measure, utc_now
from include.benchmarks.campaign.folder import StepRecord
from include.benchmarks.campaign.plan import CampaignWish
from include.benchmarks.errors import BenchmarkError
from include.benchmarks.judge.report import CHARTS, REPORT
from include.benchmarks.measure.loads import ReaderWay
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site

LEAST_RATIO, MOST_SHARE = 1.7, 1.05
MB = 1e6
RESULTS, PAGE = BENCH / "results", ROOT / "build" / "readers.html"


def main() -> int:
    full = bool(os.environ.get("FULL"))
    parser = argparse.ArgumentParser(
        prog="python -m bench readers-many", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0 if full else 0.25, help="of the paper's size [0.25]")
    parser.add_argument("--minutes", type=int, default=240 if full else 25, help="[25]")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="of the set and the caches")
    options = parser.parse_args()
    print(f"machine: {description()}")
    idle = Idle()
    with tempfile.TemporaryDirectory(prefix="nightshift-readers-", dir=options.folder) as name:
        place = Path(name)
        place.chmod(0o755)  # for the servers, which are not root
        site = _site(place)
        try:
            folder = begin_campaign(
                site, CampaignWish("disk", "readers-many", options.scale, 1, options.minutes), now=utc_now()
            )
        except BenchmarkError as error:
            raise SystemExit(str(error)) from None
        try:
            measure(site, folder, each=_print)
        finally:
            clean_up(site, folder)
        conclude(site, folder)
        for chart in ("jobs", "files"):
            shutil.copy(folder.path / CHARTS / f"{chart}.svg", RESULTS / f"readers-{chart}.svg")
        PAGE.parent.mkdir(exist_ok=True)
        shutil.copy(folder.path / REPORT, PAGE)
        return _conclude(list(folder.steps()), idle.share())


def _site(place: Path) -> Site:
    (place / "data").mkdir(mode=0o755)
    limits = {"minutes": 240, "bytes": "400GiB", "fill_percent": 95}
    target = {"kind": "path", "path": str(place / "data"), "benchmark": "allowed", "limits": limits}
    settings = {
        "ledger": f"sqlite:///{place}/ledger.db",
        "paths": {"var": f"{place}/var"},
        "benchmarks": {"targets": {"disk": target}},
    }
    return Site(SiteSettings.model_validate(settings), EnvSecrets({}))


def _print(ended: StepRecord) -> None:
    if ended.result is None:
        print(f"  {ended.step.load.name}: {ended.error}", flush=True)
        return
    (load,) = ended.result.loads
    share = load.times.origin_share if load.times else None
    print(
        f"  {ended.step.load.name}: {load.seconds:.1f} s, {load.throughput / MB:.0f} MB/s"
        + (f", the origin sent {share:.2f} of the set" if share is not None else "")
        + (f", {load.failed} failed" if load.failed else "")
        + "".join(f"; {reason}" for reason in ended.result.missing),
        flush=True,
    )


def _conclude(steps: list[StepRecord], idle: float) -> int:
    loads = {
        way: ended.result.loads[0]
        for ended in steps
        if ended.result and (way := ended.step.load.loads[0].way) and not ended.result.missing
    }
    stopped = [ended.step.load.name for ended in steps if ended.result is None or ended.result.missing]
    figures: dict[str, float] = {
        "errors": sum(ended.result.loads[0].failed for ended in steps if ended.result),
        "wrong_bytes": sum(times.wrong for ended in steps if ended.result and (times := ended.result.loads[0].times)),
    }
    warmed = loads.get(ReaderWay.ALIEN_WARM)
    if warmed and warmed.times and warmed.times.origin_share is not None:
        figures["origin_share_warmed"] = warmed.times.origin_share
    if {ReaderWay.LIMITED, ReaderWay.REDIRECTING} <= loads.keys():
        figures["redirecting_ratio"] = loads[ReaderWay.LIMITED].seconds / loads[ReaderWay.REDIRECTING].seconds
    missed = [name for name in ("errors", "wrong_bytes") if figures[name]]
    if not figures.get("origin_share_warmed", MOST_SHARE + 1) <= MOST_SHARE:
        missed.append("origin_share_warmed")
    if not figures.get("redirecting_ratio", 0) >= LEAST_RATIO:
        missed.append("redirecting_ratio")
    figures |= {f"{way.value}_s": load.seconds for way, load in loads.items()}
    print(f"missed: {', '.join(missed) or 'nothing'}; not ended: {', '.join(stopped) or 'none'}; "
          f"the machine was idle for {idle:.0%} of it; report: {PAGE}")  # fmt: skip
    line = json.dumps({name: round(value, 3) for name, value in figures.items()} | {"ok": not missed})
    (RESULTS / "readers.json").write_text(line + "\n")
    print(line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
