"""Servers whose OSDs a campaign stops, each with a timer that starts them again by itself unless it is renewed.

The timer is a process of its own on the server, under systemd where there is one, otherwise in a session of its own. It
has no part of Airflow above it, and survives the campaign, its task and the connection that armed it. Before anything
is stopped its commands are run once, so that one that cannot work is found while all OSDs are up.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from include.benchmarks.errors import OUTAGE_FAILED
from include.benchmarks.hosts import BenchmarkHost, LocalHost
from include.publishers.server.open import address_of
from include.settings.secrets import Secrets
from include.settings.storage_benchmark.cluster import OSD, CephServer, ClusterBlock

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
