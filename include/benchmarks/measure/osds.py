"""Servers whose OSDs a campaign stops, each with a timer that starts them again by itself unless it is renewed.

The timer is a process of its own on the server, under systemd where there is one, otherwise in a session of its own. It
has no part of Airflow above it, and survives the campaign, its task and the connection that armed it. Before anything
is stopped its commands are run once, so that one that cannot work is found while all OSDs are up.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Any, Self

from include.benchmarks.errors import OUTAGE_FAILED, RESULT_UNREADABLE, BenchmarkError, readable
from include.benchmarks.measure.ceph import ClusterClient
from include.benchmarks.measure.loads import NS_PER_MS, ClusterSample, LoadAccess
from include.benchmarks.measure.programs import BenchmarkHost, LocalHost, StopSignal
from include.publishers.server.publisher import address_of
from include.settings.benchmarks import OSD, CephServer, ClusterBlock
from include.settings.secrets import Secrets

HISTOGRAMS = {LoadAccess.READ: "op_r_latency_out_bytes_histogram", LoadAccess.WRITE: "op_w_latency_in_bytes_histogram"}
_OSD = re.compile(r"^osd\.(\d{1,6}): ?", re.MULTILINE)
Bucket = tuple[int, int]
"""The shortest and the longest latency in nanoseconds."""


@dataclass(frozen=True, slots=True)
class OsdLatency:
    """How many operations of clients took how long in one OSD: the lower and upper end of a bucket, and its count."""

    osd: int
    access: LoadAccess
    buckets: tuple[tuple[int, int, int], ...]

    @property
    def operations(self) -> int:
        """Return how many there were."""
        return sum(count for *_, count in self.buckets)

    def mean_ms(self) -> float | None:
        """The mean in milliseconds, as if each took as long as the middle of its bucket; None without operations."""
        summed = sum((lower + upper) / 2 * count for lower, upper, count in self.buckets)
        return summed / self.operations / NS_PER_MS if self.operations else None

    def percentile_ms(self, percent: float) -> float | None:
        """The latency in milliseconds that `percent` of the operations do not exceed; None without operations."""
        needed, seen = self.operations * percent / 100, 0
        for lower, upper, count in self.buckets:
            if seen + count >= needed and count:
                return (lower + (upper - lower) * (needed - seen) / count) / NS_PER_MS
            seen += count
        return None


OsdCounts = Mapping[tuple[int, LoadAccess], Mapping[Bucket, int]]
"""What the OSDs had counted at a look."""


def parse_histograms(text: str, subject: str) -> OsdCounts:
    """The reply to `ceph tell osd.* perf histogram dump`: a document after the name of each OSD.

    Raises:
        BenchmarkError: RESULT_UNREADABLE about the subject.
    """
    found: dict[tuple[int, LoadAccess], Mapping[Bucket, int]] = {}
    places = list(_OSD.finditer(text))
    with readable(RESULT_UNREADABLE, subject, "`perf histogram dump`"):
        for place in places:
            # an OSD that is down has an error in place of a document
            if not text[place.end() :].lstrip().startswith("{"):
                continue
            document, _ = json.JSONDecoder().raw_decode(text[place.end() :].lstrip())
            for access, name in HISTOGRAMS.items():
                found[int(place[1]), access] = _counts(document["osd"][name])
    if not found:
        # `ceph tell osd.*` leaves out the name where there is one OSD only
        raise RESULT_UNREADABLE(subject, "no OSD that is named replied to `perf histogram dump`; it takes two at least")
    return found


def latencies_between(before: OsdCounts, after: OsdCounts) -> tuple[OsdLatency, ...]:
    """The operations between two looks; of an OSD that was started meanwhile those since then."""
    return tuple(
        OsdLatency(osd, access, tuple(_grown(before.get((osd, access), {}), counts)))
        for (osd, access), counts in sorted(after.items(), key=lambda item: (item[0][0], item[0][1].value))
    )


def merged_latencies(latencies: Iterable[OsdLatency]) -> tuple[OsdLatency, ...]:
    """Return those of several rounds together, by OSD and direction."""
    totals: dict[tuple[int, LoadAccess], Counter[Bucket]] = {}
    for latency in latencies:
        total = totals.setdefault((latency.osd, latency.access), Counter())
        for lower, upper, count in latency.buckets:
            total[lower, upper] += count
    return latencies_between({}, totals)


def parse_commits(text: str, subject: str) -> Mapping[int, float]:
    """The reply to `ceph osd perf --format json`: how long each OSD takes to commit, in ms, as it reports itself.

    Raises:
        BenchmarkError: RESULT_UNREADABLE about the subject.
    """
    with readable(RESULT_UNREADABLE, subject, "`osd perf`"):
        document = json.loads(text)
        infos = document.get("osdstats", document)["osd_perf_infos"]
        return {int(info["id"]): float(info["perf_stats"]["commit_latency_ms"]) for info in infos}


@dataclass(frozen=True, slots=True)
class RecoveryLook:
    """How much of a cluster was not where it should be, and how fast that was mended."""

    at_s: float
    degraded: int
    """Copies and chunks of objects that were missing."""
    misplaced: int
    """Copies and chunks on another OSD than they belong to."""
    bytes_per_s: float

    @classmethod
    def parse(cls, text: str, at_s: float, subject: str) -> RecoveryLook:
        """The reply to `ceph status --format json`. Raises BenchmarkError (RESULT_UNREADABLE) about the subject."""
        with readable(RESULT_UNREADABLE, subject, "`ceph status`"):
            groups = json.loads(text)["pgmap"]
            # what is zero is left out
            degraded, misplaced = int(groups.get("degraded_objects", 0)), int(groups.get("misplaced_objects", 0))
            return cls(at_s, degraded, misplaced, float(groups.get("recovering_bytes_per_sec", 0)))


def _counts(histogram: dict[str, Any]) -> Mapping[Bucket, int]:
    axis = next(axis for axis in histogram["axes"] if axis["name"].startswith("Latency"))
    found: Counter[Bucket] = Counter()
    for bounds, row in zip(axis["ranges"], histogram["values"], strict=True):
        lower = max(0, int(bounds.get("min", 0)))
        upper = max(0, int(bounds.get("max", 2 * lower - 1)) + 1)
        found[lower, upper] += sum(map(int, row))
    return found


def _grown(before: Mapping[Bucket, int], after: Mapping[Bucket, int]) -> Iterator[tuple[int, int, int]]:
    restarted = any(after.get(bucket, 0) < count for bucket, count in before.items())
    for bucket, count in sorted(after.items()):
        grown = count if restarted else count - before.get(bucket, 0)
        if grown:
            yield (*bucket, grown)


EVERY_S = 2.0
HOLD_S = 10.0
"""A reason ends a step when it lasts so long: groups are inactive for a moment when an OSD stops or starts."""
READS = 3
"""The latency of production is the median of so many reads."""
ANSWER_S = 30.0
PERCENT = 100


class ClusterWatch:
    """A thread beside the runner, as a context manager.

    Args:
        cluster: The cluster.
        stopped: How many OSDs the campaign has stopped itself.
        stop: Ends the runner.
        renew: Called at each look.
    """

    def __init__(
        self, cluster: ClusterClient, *, stopped: int, stop: StopSignal, renew: Callable[[], None] | None = None
    ) -> None:
        self.samples: list[ClusterSample] = []
        self.aborted: str | None = None
        """Why the step was ended."""
        self._cluster = cluster
        self._stopped = stopped
        self._stop = stop
        self._renew = renew
        self._over = threading.Event()
        self._reads: deque[float] = deque(maxlen=READS)
        self._since: float | None = None
        self._thread = threading.Thread(target=self._work, name="cluster-watch", daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> tuple[str, ...]:
        """Return one look, which is kept; the reasons to end the step."""
        try:
            if self._renew is not None:
                self._renew()
            health = self._cluster.health(limit_s=ANSWER_S)
            production = self._cluster.production_ms()
        except BenchmarkError as error:
            return (str(error),)
        if production is not None:
            self._reads.append(production)
        second = time.monotonic() - self._began
        self.samples.append(ClusterSample(
            second, health.osds_down, health.unclean, health.degraded * PERCENT, health.misplaced * PERCENT, production,
        ))  # fmt: skip
        reasons = list(health.stopping)
        if health.osds_down > self._stopped:
            reasons.append(f"{health.osds_down} OSDs are down, and the campaign has stopped {self._stopped}")
        probe = self._cluster.settings.production
        if probe is not None and len(self._reads) == READS and median(self._reads) > probe.limit_ms:
            reasons.append(f"a read of production takes {median(self._reads):.0f} ms, limit {probe.limit_ms:.0f} ms")
        return tuple(reasons)

    def _work(self) -> None:
        while not self._over.is_set():
            reasons = self.look()
            now = time.monotonic()
            self._since = (now if self._since is None else self._since) if reasons else None
            if self._since is not None and now - self._since >= HOLD_S:
                self.aborted = "; ".join(reasons)
                self._stop.stop()
                return
            self._over.wait(EVERY_S)


COMMAND_S = 180.0
"""A server may take so long to start or stop its OSDs."""
FOLDER = "nightshift-outage-"
EXPIRED = 75
# times are those of /proc/uptime: the time of day may be set meanwhile
_TIMER = """cd -- "$(dirname -- "$0")" || exit 1
: > alive
while until=$(cat until 2>/dev/null); do
  now=$(cut -d. -f1 /proc/uptime)
  if [ "$now" -lt "$until" ]; then sleep 1
  elif sh ./restore >>log 2>&1; then rm -rf -- "$PWD"
  else sleep 5; fi
done"""
_SET = """now=$(cut -d. -f1 /proc/uptime)
echo $((now + $2)) > until.part && mv until.part until"""
_ARM = f"""set -e
umask 077
mkdir -- "$1"
cd -- "$1"
printf '%s\\n' "$3" > restore
printf '%s\\n' "$4" > timer
{_SET}
unit=$(basename -- "$1")
if [ ! -d /run/systemd/system ] || ! systemd-run --quiet --collect --unit="$unit" sh "$1/timer" 2>/dev/null
then env -i PATH="$PATH" HOME="${{HOME:-/}}" setsid -f sh "$1/timer" </dev/null >/dev/null 2>&1
fi
# where this machine is slow it may have ended by now, and have removed itself: `_STOP` and `_RENEW` refuse then
for try in $(seq 100); do
  if [ -f alive ] || [ ! -f timer ]; then exit 0; fi
  sleep 0.1
done
echo "the timer did not start"
exit 1"""
_RENEW = f"""cd -- "$1" 2>/dev/null && [ -f until ] || exit {EXPIRED}
{_SET}"""
_DISARM = """rm -rf -- "$1" """
# the timer may end in between: then what was stopped is started again here
_STOP = f"""at=$(cat "$1/until" 2>/dev/null) || exit {EXPIRED}
[ "$at" -gt $(($(cut -d. -f1 /proc/uptime) + 5)) ] || exit {EXPIRED}
sh -c "$2"; code=$?
[ -f "$1/until" ] || {{ sh -c "$3"; exit {EXPIRED}; }}
exit $code"""


class OsdServer:
    """One server, reached by its login. Every call raises BenchmarkError (HOST_UNREACHABLE, OUTAGE_FAILED)."""

    def __init__(self, settings: CephServer, host: BenchmarkHost) -> None:
        self.settings = settings
        self._host = host

    def prove(self, osds: Sequence[int]) -> None:
        """Run what the timer would run, while these OSDs are up."""
        self._run(self._restore(osds), what="start OSDs and unset their noout")

    def arm(self, outage: str, osds: Sequence[int], seconds: int) -> None:
        """Start the timer, which restores these OSDs after so many seconds."""
        self._run(_ARM, self._folder(outage), str(seconds), self._restore(osds), _TIMER, what="arm the timer")

    def renew(self, outage: str, seconds: int) -> None:
        """Let the timer begin again; OUTAGE_FAILED if it has ended."""
        self._run(_RENEW, self._folder(outage), str(seconds), what="renew the timer")

    def stop(self, outage: str, osds: Sequence[int]) -> None:
        """Stop OSDs under an armed timer."""
        stop = _each(self.settings.stop, osds)
        self._run(_STOP, self._folder(outage), stop, self._restore(osds), what="stop OSDs")

    def restore(self, outage: str, osds: Sequence[int]) -> None:
        """Start OSDs, unset their noout and end the timer; again, it changes nothing."""
        self._run(self._restore(osds), what="start OSDs and unset their noout")
        self._run(_DISARM, self._folder(outage), what="end the timer")

    def _folder(self, outage: str) -> str:
        return f"{self.settings.folder}/{FOLDER}{outage}"

    def _restore(self, osds: Sequence[int]) -> str:
        return _each(self.settings.start, osds, self.settings.unset)

    def _run(self, script: str, *arguments: str, what: str) -> None:
        done = self._host.script(script, *arguments, limit_s=COMMAND_S)
        if done.code == EXPIRED:
            raise OUTAGE_FAILED(self._host.name, f"cannot {what}: the timer has ended and restored the OSDs")
        if done.code:
            last = " | ".join(done.lines[-3:])[-300:] or f"exit code {done.code}"
            raise OUTAGE_FAILED(self._host.name, f"cannot {what}: {last}")


def open_servers(settings: ClusterBlock | None, secrets: Secrets) -> Mapping[str, OsdServer]:
    """The servers of a cluster by their names; nothing is connected yet."""
    if settings is None:
        return {}
    hosts = {
        name: BenchmarkHost(name, address_of(name, server.login, secrets)) if server.login else LocalHost(name)
        for name, server in settings.servers.items()
    }
    return {name: OsdServer(settings.servers[name], host) for name, host in hosts.items()}


def _each(command: Sequence[str], osds: Sequence[int], *more: Sequence[str]) -> str:
    """A script that runs commands for each OSD, and fails if one of them does."""
    lines = [
        f"{shlex.join(word.replace(OSD, str(osd)) for word in each)} || code=1"
        for osd in osds
        for each in (command, *more)
    ]
    return "\n".join(["code=0", *lines, "exit $code"])
