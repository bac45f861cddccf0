"""What a Ceph cluster reports of itself, as far as it decides whether and how much may be measured. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from include.benchmarks.errors import TARGET_UNUSABLE
from include.benchmarks.targets.base import TargetSpace

STOPPING = frozenset({
    "OSD_NEARFULL", "OSD_BACKFILLFULL", "OSD_FULL", "POOL_NEAR_FULL", "POOL_BACKFILLFULL", "POOL_FULL",
    "PG_AVAILABILITY", "PG_DAMAGED", "SLOW_OPS", "MON_DOWN",
})  # fmt: skip
"""Health checks on which no benchmark begins, and a running one ends."""
CLEAN = "active+clean"
SCRUBBED = frozenset({f"{CLEAN}+scrubbing", f"{CLEAN}+scrubbing+deep"})
FLAGS = frozenset({"OSDMAP_FLAGS", "OSD_FLAGS"})
"""Health checks about flags that people set, as noout."""
UNKNOWN_OVERHEAD = 3.0
"""Raw bytes of a byte of data, for a pool that has no figures yet: those of three replicas."""


@dataclass(frozen=True, slots=True)
class CephHealth:
    """The state of a cluster: why nothing may be measured now, and whether all of it is clean."""

    stopping: tuple[str, ...]
    unclean: int
    """Placement groups that are not active and clean."""
    osds_down: int = 0
    flags: tuple[str, ...] = ()
    degraded: float = 0.0
    """The share of copies and shards that are missing."""
    misplaced: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing is left to recover."""
        return not self.unclean and not self.osds_down

    @classmethod
    def parse(cls, text: str, subject: str) -> CephHealth:
        """The reply to `ceph status --format json`. Raises BenchmarkError (TARGET_UNUSABLE) about the subject."""
        try:
            document = json.loads(text)
            checks = dict(document["health"]["checks"])
            pgmap, osdmap = document["pgmap"], document["osdmap"]
            groups = [(str(state["state_name"]), int(state["count"])) for state in pgmap.get("pgs_by_state", ())]
            return cls(
                stopping=_messages(checks, STOPPING),
                unclean=sum(count for name, count in groups if name != CLEAN and name not in SCRUBBED),
                osds_down=int(osdmap["num_osds"]) - int(osdmap["num_up_osds"]),
                flags=_messages(checks, FLAGS),
                degraded=float(pgmap.get("degraded_ratio", 0)),
                misplaced=float(pgmap.get("misplaced_ratio", 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TARGET_UNUSABLE(subject, f"`ceph status` cannot be read ({type(error).__name__})") from None


def _messages(checks: dict[str, Any], names: frozenset[str]) -> tuple[str, ...]:
    return tuple(f"{name}: {checks[name]['summary']['message']}" for name in sorted(names & checks.keys()))


def pool_space(tree: str, usage: str, pool: str, subject: str) -> TargetSpace:
    """How full a pool is by its fullest OSD, as if its largest host were lost and its data were on the others.

    Level and total are both those of the hosts that remain: what is written raises the level by its share of the total.

    Args:
        tree: The reply to `ceph osd df tree --format json`.
        usage: The reply to `ceph df --format json`.
        pool: The name of the pool.
        subject: What the error is about.

    Raises:
        BenchmarkError: TARGET_UNUSABLE if one of them is not what it should be.
    """
    try:
        nodes: list[dict[str, Any]] = json.loads(tree)["nodes"]
        osds = [float(node["utilization"]) for node in nodes if node["type"] == "osd" and int(node["kb"]) > 0]
        hosts = [int(node["kb"]) for node in nodes if node["type"] == "host" and int(node["kb"]) > 0]
        document = json.loads(usage)
        raw, available = int(document["stats"]["total_bytes"]), int(document["stats"]["total_avail_bytes"])
        overhead = _overhead(document["pools"], pool, available)
        fullest = max(osds)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TARGET_UNUSABLE(subject, f"`ceph df` cannot be read ({type(error).__name__})") from None
    # a single host leaves nothing that its data could move to
    remaining = 1 - max(hosts) / sum(hosts) if len(hosts) > 1 else 1.0
    level = min(1.0, fullest / 100 / remaining)
    total = raw * remaining / overhead
    return TargetSpace(int(total), int(total * (1 - level)))


def _overhead(pools: Iterable[dict[str, Any]], pool: str, available: int) -> float:
    for found in pools:
        if found["name"] == pool and int(found["stats"]["max_avail"]) > 0:
            return max(1.0, available / int(found["stats"]["max_avail"]))
    return UNKNOWN_OVERHEAD
