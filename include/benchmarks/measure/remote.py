"""A target on several hosts, and fio on them at the same time: each has its share of the streams."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from include.benchmarks.errors import (
    AREA_FOREIGN,
    HOST_UNREACHABLE,
    RESULT_UNREADABLE,
    RUNNER_FAILED,
    RUNNER_MISSING,
    TARGET_UNUSABLE,
    BenchmarkError,
)
from include.benchmarks.measure.fio import CACHED, LOGS, RESULT, FioRunner, fio_arguments, parse_fio
from include.benchmarks.measure.loads import (
    LatencyHistogram,
    LoadAccess,
    LoadStep,
    MeasuredLoad,
    RunnerResult,
    SeriesPoint,
)
from include.benchmarks.measure.objects import up_to
from include.benchmarks.measure.programs import FIO, BenchmarkHost, HostClock, hosts_of
from include.benchmarks.measure.targets import (
    AREA,
    MARKER,
    AreaRemoval,
    BenchmarkTarget,
    RunArea,
    Runner,
    TargetSpace,
    longest_s,
)
from include.settings.benchmarks import RemoteTarget, TargetKind
from include.settings.secrets import Secrets

T = TypeVar("T")
FOREIGN, MISSING = 65, 66
"""Exit codes of the scripts."""
_AT_ONCE = 500
_IS_OURS = f'{{ [ ! -L {MARKER} ] && [ "$(cat {MARKER} 2>/dev/null)" = "$run" ]; }}'
_ENTER = f"""run=$2
[ -d "$1" ] && [ ! -L "$1" ] || exit {MISSING}
cd -- "$1" || exit 1
{_IS_OURS} || exit {FOREIGN}"""
_CREATE = f"""run=$2
mkdir -m 700 -- "$1" 2>/dev/null
[ -d "$1" ] && [ ! -L "$1" ] && cd -- "$1" || exit 1
[ -z "$(ls -A)" ] || {_IS_OURS} || exit {FOREIGN}
printf %s "$run" > {MARKER}"""
_REMOVE_FILES = f"""{_ENTER}
shift 2
for name in "$@"; do
  case $name in */*) echo "left $name"; continue;; esac
  if [ -f "$name" ] && [ ! -L "$name" ]; then rm -f -- "$name" && echo "removed $name"
  elif [ -e "$name" ] || [ -L "$name" ]; then echo "left $name"; fi
done"""
_REMOVE = f"""{_ENTER}
left=$(ls -A | grep -vxF {MARKER})
[ -z "$left" ] || {{ echo "$left"; exit 0; }}
rm -f -- {MARKER}; cd / && rmdir -- "$1\""""
_CHECK = f"""[ ! -b "$1" ] && [ -d "$1" ] && [ -w "$1" ] || exit 1
command -v {FIO.name} >/dev/null || exit {MISSING}"""
_SPACE = """stat -f -c '%b %a %S' -- "$1\""""


class RemoteArea(RunArea):
    """A folder of the run on each host. What cannot be removed since its host does not answer is named."""

    def __init__(self, parent: str, run: str, hosts: Iterable[BenchmarkHost]) -> None:
        self._parent = parent
        self._run = run
        self.hosts = tuple(hosts)
        self.where = f"{parent}/{AREA}{run} on {', '.join(host.name for host in self.hosts)}"

    def folder(self, host: BenchmarkHost) -> str:
        """Return where the run has its files on a host."""
        return f"{self._parent}/{AREA}{self._run}-{host.name}"

    def create(self) -> None:
        found = each(self.hosts, lambda host: host.script(_CREATE, self.folder(host), self._run).code)
        for host, code in found.items():
            if code == FOREIGN:
                raise AREA_FOREIGN(host.name, f"{self.folder(host)} has files and no marker of this run")
        _require_one(self.where, found)

    def remove_files(self, names: Iterable[str]) -> AreaRemoval:
        listed = list(names)
        found = each(self.hosts, lambda host: list(self._remove_from(host, listed)))
        removed, left = 0, []
        for host, lines in found.items():
            if isinstance(lines, BenchmarkError):
                left.append(f"{host.name}: all of {self.folder(host)}")
                continue
            removed += sum(line.startswith("removed ") for line in lines)
            left += [f"{host.name}: {line[5:]}" for line in lines if line.startswith("left ")]
        return AreaRemoval(removed, tuple(left))

    def remove(self) -> AreaRemoval:
        found = each(self.hosts, lambda host: self._script(host, _REMOVE))
        silent = [error for error in found.values() if isinstance(error, BenchmarkError)]
        if silent:
            raise TARGET_UNUSABLE(self.where, f"files may be left: {silent[0]}") from silent[0]
        left = tuple(
            f"{host.name}: {line}"
            for host, lines in found.items()
            if not isinstance(lines, BenchmarkError)
            for line in lines
        )
        return AreaRemoval(0 if left else 1, left)

    def _remove_from(self, host: BenchmarkHost, names: list[str]) -> Iterator[str]:
        for start in range(0, len(names), _AT_ONCE):
            yield from self._script(host, _REMOVE_FILES, *names[start : start + _AT_ONCE])

    def _script(self, host: BenchmarkHost, text: str, *arguments: str) -> tuple[str, ...]:
        done = host.script(text, self.folder(host), self._run, *arguments)
        if done.code == MISSING:
            return ()
        if done.code == FOREIGN:
            raise AREA_FOREIGN(host.name, f"{self.folder(host)} has no marker of this run")
        if done.code:
            raise TARGET_UNUSABLE(host.name, f"{self.folder(host)}: {' | '.join(done.lines[-3:])[-300:]}")
        return done.lines


class RemoteBenchmarkTarget(BenchmarkTarget):
    """The folder that the settings name, on all of their hosts. One host that answers is enough to begin."""

    kind = TargetKind.REMOTE

    def __init__(self, settings: RemoteTarget, secrets: Secrets) -> None:
        self.settings: RemoteTarget = settings
        self._hosts = hosts_of(settings.hosts, secrets)

    def check(self) -> None:
        path = self.settings.path
        found = each(self._hosts, lambda host: host.script(_CHECK, path).code)
        for host, code in found.items():
            if code == MISSING:
                what = f"{FIO.name} is not installed on host {host.name}; apt-get install {FIO.package}"
                raise RUNNER_MISSING(self.name, what)
            if isinstance(code, int) and code:
                raise TARGET_UNUSABLE(self.name, f"{path} on host {host.name} is not a folder that we may write to")
        _require_one(self.name, found)

    def space(self) -> TargetSpace | None:
        found = each(self._hosts, lambda host: _space(host.require(_SPACE, self.settings.path)))
        known = [space for space in found.values() if isinstance(space, TargetSpace)]
        return min(known, key=lambda space: space.free, default=None)

    def area(self, run: str) -> RemoteArea:
        return RemoteArea(self.settings.path, run, self._hosts)


def each(hosts: Iterable[BenchmarkHost], call: Callable[[BenchmarkHost], T]) -> dict[BenchmarkHost, T | BenchmarkError]:
    """Return what a call gave for each host, all at the same time; the error of a host that failed is in its place."""

    def called(host: BenchmarkHost) -> T | BenchmarkError:
        try:
            return call(host)
        except BenchmarkError as error:
            return error

    listed = tuple(hosts)
    with ThreadPoolExecutor(max(1, len(listed))) as pool:
        return dict(zip(listed, pool.map(called, listed), strict=True))


def _require_one(subject: str, found: dict[BenchmarkHost, int | BenchmarkError]) -> None:
    if not any(code == 0 for code in found.values()):
        first = next((code for code in found.values() if isinstance(code, BenchmarkError)), None)
        raise TARGET_UNUSABLE(subject, f"no host can be used: {first or 'the folder cannot be created'}")


def _space(lines: tuple[str, ...]) -> TargetSpace | None:
    try:
        blocks, free, size = map(int, lines[-1].split())
    except (IndexError, ValueError):
        return None
    return TargetSpace(blocks * size, free * size)


LEAD_S = 2.0
"""From the agreement to the start, for all hosts to be ready."""
LATE_S = 0.5
NO_FIO = 127
_FILE = "== "
_BEGAN = "began "
_SIZES = 'cd -- "$1" && shift && stat -c %s -- "$@"'
_DIRECT = """cd -- "$1" || exit 1
dd if=/dev/zero of=.direct-io bs=4096 count=1 oflag=direct 2>/dev/null && echo direct
rm -f .direct-io"""
# what stays of it is bounded: fio is ended by the host itself, and its files go with the shell
_RUN = f"""at=$1 limit=$2; shift 2
command -v {FIO.name} >/dev/null || exit {NO_FIO}
place=$(mktemp -d) && cd -- "$place" || exit 1
trap 'rm -rf -- "$place"' EXIT
sleep "$(awk -v at="$at" -v now="$(date +%s.%N)" 'BEGIN {{print (at > now) ? at - now : 0}}')"
echo "{_BEGAN}$(date +%s.%N)"
timeout -k 5 "$limit" {FIO.name} "$@"; code=$?
for file in {RESULT} {LOGS}_bw.*.log; do [ -f "$file" ] && echo "{_FILE}$file" && cat "$file" && echo; done
exit $code"""


@dataclass(frozen=True, slots=True)
class HostShare:
    """What one host will do, and what was found there before."""

    step: LoadStep
    direct: bool
    clock: HostClock


@dataclass(frozen=True, slots=True)
class HostPart:
    """What one host measured, by dataset and direction; `late_s`: how long after the agreed moment it began."""

    version: str
    command: tuple[str, ...]
    loads: Mapping[tuple[str, LoadAccess], MeasuredLoad]
    notes: tuple[str, ...]
    late_s: float


class RemoteRunner(Runner[RemoteArea]):
    """Streams on files of several hosts. No percentiles over time: their log is too long for a terminal."""

    abilities = FioRunner.abilities

    def run(self, step: LoadStep, area: RemoteArea, scratch: Path) -> RunnerResult:
        count = len(area.hosts)
        shares = {host: share for index, host in enumerate(area.hosts) if (share := share_of(step, index, count))}
        ready = each(shares, lambda host: _prepare(host, shares[host], area.folder(host)))
        start = time.time() + LEAD_S

        def measure(host: BenchmarkHost) -> HostPart:
            share = ready[host]
            if isinstance(share, BenchmarkError):
                raise share
            return _measure(host, share, area.folder(host), start, scratch)

        parts = each(shares, measure)
        good = {host.name: part for host, part in parts.items() if isinstance(part, HostPart)}
        missing = tuple(f"host {host.name}: {part}" for host, part in parts.items() if isinstance(part, BenchmarkError))
        if not good:
            raise RUNNER_FAILED(step.name, f"no host has a result; {'; '.join(missing)[:400]}")
        notes = tuple(f"host {name}: {note}" for name, part in good.items() for note in part.notes)
        version = ", ".join(sorted({part.version for part in good.values()}))
        commands = tuple(part.command for part in good.values())
        return RunnerResult(version, commands, merged_loads(list(good.values())), notes, missing)


def share_of(step: LoadStep, index: int, hosts: int) -> LoadStep | None:
    """The step with the streams of one of several hosts; None where it has none."""
    streams = [load.streams // hosts + (index < load.streams % hosts) for load in step.loads]
    loads = tuple(replace(load, streams=count) for load, count in zip(step.loads, streams, strict=True) if count)
    return replace(step, loads=loads) if loads else None


def merged_loads(parts: Sequence[HostPart]) -> tuple[MeasuredLoad, ...]:
    """The loads of all hosts together, each from the agreed moment to the end of the last stream."""
    theirs: defaultdict[tuple[str, LoadAccess], list[tuple[MeasuredLoad, float]]] = defaultdict(list)
    for part in parts:
        for key, load in part.loads.items():
            theirs[key].append((load, part.late_s))
    return tuple(map(_merged, theirs.values()))


def _merged(late: Sequence[tuple[MeasuredLoad, float]]) -> MeasuredLoad:
    loads = [load for load, _ in late]
    histogram = LatencyHistogram.merged(load.latencies for load in loads if load.latencies)
    speeds: defaultdict[int, float] = defaultdict(float)
    for load, late_s in late:
        for point in load.series:
            speeds[point.second + round(late_s)] += point.bytes_per_s
    return MeasuredLoad(
        access=loads[0].access,
        bytes=sum(load.bytes for load in loads),
        operations=sum(load.operations for load in loads),
        failed=sum(load.failed for load in loads),
        seconds=max(load.seconds + late_s for load, late_s in late),
        first_done_s=min(load.first_done_s + late_s for load, late_s in late),
        latencies=histogram,
        mean_ms=histogram.mean_ms(),
        series=tuple(SeriesPoint(second, speed) for second, speed in sorted(speeds.items())),
    )


def _prepare(host: BenchmarkHost, step: LoadStep, folder: str) -> HostShare:
    loads = tuple(
        up_to(step, load, _shortest(host, folder, list(load.names()))) if load.needs_data else load
        for load in step.loads
    )
    direct = host.require(_DIRECT, folder) == ("direct",)
    return HostShare(replace(step, loads=loads), direct, host.clock())


def _measure(host: BenchmarkHost, share: HostShare, folder: str, start: float, scratch: Path) -> HostPart:
    step, clock = share.step, share.clock
    arguments = [
        argument
        for argument in fio_arguments(step, Path(folder), direct=share.direct)
        if not argument.startswith(("--write_hist_log", "--log_hist_msec"))
    ]
    limit = longest_s(step)
    done = host.script(_RUN, f"{start + clock.offset_s:.6f}", f"{limit:.0f}", *arguments, limit_s=limit + LEAD_S)
    (scratch / f"{host.name}.txt").write_text("\n".join(done.lines))
    if done.code == NO_FIO:
        raise RUNNER_MISSING(host.name, f"{FIO.name} is not installed there; apt-get install {FIO.package}")
    began, files = read_output(done.lines)
    if RESULT not in files or began is None:
        last = " | ".join(done.lines[-3:])[-200:]
        raise HOST_UNREACHABLE(host.name, f"fio ended there with {done.code} and no result: {last}")
    version, measured, errors = parse_fio(files[RESULT], files, step)
    if not any(load.operations for load in measured):
        raise RESULT_UNREADABLE(host.name, f"fio ended there with {done.code} and did nothing")
    keys = [(load.dataset, access) for load in step.loads for access in load.directions]
    late = max(0.0, began - clock.offset_s - start)
    notes = [f"its clock is {clock.offset_s * 1000:+.1f} ms from ours, within {clock.error_s * 1000:.1f} ms", *errors]
    notes += [f"it began {late:.1f} s after the agreed moment"] if late > LATE_S else []
    notes += [] if share.direct else [CACHED]
    loads = dict(zip(keys, measured, strict=True))
    return HostPart(version, (FIO.name, *arguments), loads, tuple(notes), late)


def read_output(lines: Sequence[str]) -> tuple[float | None, Mapping[str, str]]:
    """When fio began, by the host's clock, and the files that it wrote."""
    began, name = None, ""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for line in lines:
        if line.startswith(_FILE):
            name = line.removeprefix(_FILE)
        elif name:
            files[name].append(line)
        elif line.startswith(_BEGAN) and line.removeprefix(_BEGAN).replace(".", "", 1).isdigit():
            began = float(line.removeprefix(_BEGAN))
    return began, {name: "\n".join(text) for name, text in files.items()}


def _shortest(host: BenchmarkHost, folder: str, names: Sequence[str]) -> int:
    sizes = host.require(_SIZES, folder, *names)
    if len(sizes) != len(names) or not all(size.isdigit() for size in sizes):
        raise RUNNER_FAILED(host.name, "files that are to be read were not written before")
    return min(map(int, sizes))
