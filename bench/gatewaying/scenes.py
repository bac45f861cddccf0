"""The measurements: each has a gateway and a repository of its own, a load on it, and a look at what stands then."""

from __future__ import annotations

import os
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from typing import Any

from bench.gatewaying import pasts, standing
from bench.gatewaying.changes import Work, prepared, reserve
from bench.gatewaying.processes import Crew, percentile
from bench.gatewaying.stock import Merged, merge_commits
from bench.publishing import lab
from bench.publishing.machine import Idle, tree
from bench.publishing.places import Place
from bench.publishing.repositories import PAST, Templates

PROBE_PAUSE_S = 0.02
SILENT_CONNECTIONS = 32
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Load:
    """What so many publishers got in so many seconds; times in ms, those of commits from the call to its answer."""

    publishers: int
    seconds: float
    commits_per_s: float
    revisions_per_s: float
    commit_ms: list[float]
    publish_ms: list[float]
    own_ms: list[float]
    lease_ms: dict[str, list[float]]
    idle: float
    gateway_cpu: float
    load_cpu: float
    acknowledged: list[dict[str, Any]] = field(repr=False)

    def figures(self) -> dict[str, float]:
        """For plots and JSON."""
        return {
            "publishers": self.publishers,
            "commits_per_s": round(self.commits_per_s, 1),
            "revisions_per_s": round(self.revisions_per_s, 2),
            "commit_p50_ms": round(percentile(self.commit_ms, 0.5), 1),
            "commit_p95_ms": round(percentile(self.commit_ms, 0.95), 1),
            "lease_p50_ms": round(percentile(self.leases(), 0.5), 1),
            "lease_p95_ms": round(percentile(self.leases(), 0.95), 1),
        }

    def leases(self) -> list[float]:
        """Of taking and of listing."""
        return self.lease_ms.get("acquire", []) + self.lease_ms.get("list", [])


@dataclass(slots=True)
class Bench:
    """Where measurements take place: ``scratch`` is on a real disk, for the gateway's state."""

    place: Place
    templates: Templates
    scratch: Path
    processes: int
    faults: list[str] = field(default_factory=list)

    def many(self, publishers: list[int], seconds: list[float], slots: int) -> list[Load]:
        """Publishers in closed loops on a repository with a past, one number of them after another."""
        place = self.place.repository("many")
        self.templates.copy(PAST, place.open())
        with self._gateway(place, "many") as client:
            works = prepared(place, max(publishers), slots)
            first = reserve(place, self.templates.public_key, client, [work.destination for work in works])
            turns: Counter[str] = Counter()
            loads = []
            for count, length in zip(publishers, seconds, strict=True):
                loads.append(self._load(place, client, works[:count], turns, length, prober=True))
                turns.update(commit["destination"] for commit in loads[-1].acknowledged)
        self._look(place, [commit for load in loads for commit in load.acknowledged], first)
        return loads

    def beside_silence(self, publishers: int, seconds: float) -> Load:
        """Publishers, while the store of another repository of the gateway takes connections and never answers."""
        place = self.place.repository("silence")
        self.templates.copy(PAST, place.open())
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
            endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
            with self._gateway(place, "silence", endpoint) as client:
                works = prepared(place, publishers, publishers)
                first = reserve(place, self.templates.public_key, client, [work.destination for work in works])
                job = {**client, "work": "silence", "connections": SILENT_CONNECTIONS, "seconds": 10 * seconds}
                with Crew("leases", [job]) as asking:
                    asking.go()
                    load = self._load(place, client, works, Counter(), seconds, prober=True)
                server.close()  # only now, so that the gateway can end
        self._look(place, load.acknowledged, first)
        return load

    def single(self, revisions: int, tags: int, turns: int) -> Load:
        """One publisher alone, on a repository with so many revisions and tags."""
        place = self.place.repository(f"single{revisions}")
        pasts.age(self.templates, place.open(), revisions=revisions, tags=tags)
        with self._gateway(place, f"single{revisions}") as client:
            works = prepared(place, 1, 1)
            first = reserve(place, self.templates.public_key, client, [works[0].destination])
            load = self._load(place, client, works, Counter(), 600.0, turns=turns)
        self._look(place, load.acknowledged, first)
        return load

    def pairs(self, connections: int, seconds: float) -> float:
        """Leases taken and dropped over so many connections, per second, while nobody commits."""
        place = self.place.repository("pairs")
        self.templates.copy("empty", place.open())
        paths = [f"/pairs/path{number}" for number in range(connections)]
        shares = [paths[at :: self.processes] for at in range(self.processes)]
        with self._gateway(place, "pairs") as client:
            jobs = [{**client, "work": "pairs", "paths": share, "seconds": seconds} for share in shares if share]
            with Crew("leases", jobs) as crew:
                crew.go()
                return float(sum(found["pairs"] for found in crew.outcomes())) / seconds

    def merges(self, entries: int, commits: int) -> Merged:
        """Commits of stock shape on a repository with a past."""
        place = self.place.repository(f"merges{entries}")
        self.templates.copy(PAST, place.open())
        with self._gateway(place, f"merges{entries}") as client:
            merged = merge_commits(place, self.templates.public_key, client, entries=entries, commits=commits)
        self._look(place, merged.acknowledged, merged.first_revision)
        return merged

    # -- private

    @contextmanager
    def _gateway(self, place: Place, name: str, silent: str | None = None) -> Iterator[dict[str, str]]:
        with lab.gateway(place, self.templates.keys, self.scratch / f"{name}.db", silent) as client:
            yield client

    def _load(
        self, place: Place, client: dict[str, str], works: list[Work], done: Counter[str], seconds: float,
        *, prober: bool = False, turns: int = 0,
    ) -> Load:  # fmt: skip
        jobs = [
            {
                **client,
                "place": place.with_connections(8).as_json(),
                "public_key": str(self.templates.public_key),
                "works": [{**work.as_json(), "turn": done[work.destination]} for work in share],
                "seconds": seconds,
                "turns": turns,
            }
            for at in range(self.processes)
            if (share := works[at :: self.processes])
        ]
        probe = [{**client, "work": "probe", "seconds": seconds, "pause_s": PROBE_PAUSE_S}] if prober else []
        pid = _pid(client)
        with Crew("publishers", jobs) as crew, Crew("leases", probe) as probing:
            idle, cpu = Idle(), _cpu_s(pid)
            crew.go()
            probing.go()
            found, probed = crew.outcomes(), probing.outcomes()
            idle_share, used = idle.share(), _cpu_s(pid) - cpu
        acknowledged = [commit for one in found for commit in one["acknowledged"]]
        self.faults += [failure for one in found for failure in one["failures"]]
        counted = [commit for commit in acknowledged if commit["at"] <= seconds] if not turns else acknowledged
        length = seconds if not turns else max(commit["at"] for commit in acknowledged)
        load_cpu = sum(one["cpu_s"] for one in found) / length
        return Load(
            len(works), length, len(counted) / length, len({commit["revision"] for commit in counted}) / length,
            [commit["commit_ms"] for commit in counted], [commit["publish_ms"] for commit in counted],
            [commit["own_ms"] for commit in counted], probed[0] if probed else {}, idle_share, used / length, load_cpu,
            acknowledged,
        )  # fmt: skip

    def _look(self, place: Place, acknowledged: list[dict[str, Any]], first: int) -> None:
        self.faults += standing.faults(place, self.templates.public_key, acknowledged, first)


def _pid(client: dict[str, str]) -> int:
    with urllib.request.urlopen(f"{client['gateway']}/health", timeout=30) as reply:
        return int(loads(reply.read())["pid"])


def _cpu_s(pid: int) -> float:
    """Processor time of the gateway and of the processes that it started and that still run."""
    ticks = 0
    for one in tree(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS
