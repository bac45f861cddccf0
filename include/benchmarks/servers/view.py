"""What servers and clients reported during a step. Pure values; campaigns keep them as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from include.benchmarks.servers.machine import MachineUse
from include.benchmarks.servers.osds import OsdLatency, RecoveryLook


@dataclass(frozen=True, slots=True)
class MachineView:
    """A machine during a step."""

    name: str
    server: bool
    """False: it runs the load."""
    use: MachineUse
    """From the begin of the step to its end."""
    over_time: tuple[MachineUse, ...]


@dataclass(frozen=True, slots=True)
class ServersView:
    """What servers and clients reported of themselves during a step; `notes`: what is missing, and why."""

    machines: tuple[MachineView, ...] = ()
    latencies: tuple[OsdLatency, ...] = ()
    commit_ms: Mapping[int, float] = field(default_factory=dict)
    """By OSD, as `osd perf` has it: the mean of all looks."""
    recovery: tuple[RecoveryLook, ...] = ()
    notes: tuple[str, ...] = ()
