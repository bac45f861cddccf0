"""A folder on several hosts as a target. Each host has an area of its own in it, so that it may be a shared one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from include.benchmarks.errors import AREA_FOREIGN, RUNNER_MISSING, TARGET_UNUSABLE, BenchmarkError
from include.benchmarks.hosts import BenchmarkHost, hosts_of
from include.benchmarks.programs import FIO
from include.benchmarks.targets.base import AREA, MARKER, AreaRemoval, BenchmarkTarget, RunArea, TargetSpace
from include.settings.secrets import Secrets
from include.settings.storage_benchmark.blocks import RemoteTarget, TargetKind

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
        """Where the run has its files on a host."""
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
    """What a call gave for each host, all at the same time; the error of a host that failed is in its place."""

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
