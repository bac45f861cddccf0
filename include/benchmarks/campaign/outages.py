"""OSDs that a campaign stops, and starts again whatever happens to it.

What will be stopped is kept in the campaign's folder before, and a timer on each server is armed. A campaign that goes
on, or whose data are removed, first restores what its folder names. With nothing left that could, the timers do.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from include.benchmarks.campaign.folder import CampaignFolder, KeptOutage
from include.benchmarks.errors import OUTAGE_FAILED, TARGET_UNUSABLE, BenchmarkError
from include.benchmarks.measure.ceph import LOOK_S, ClusterClient
from include.benchmarks.measure.loads import ServerState
from include.benchmarks.measure.osds import OsdServer
from include.settings.benchmarks import CephServer

NOTICED_S = 120.0
"""Until the monitors report an OSD as down, or up."""


@dataclass(slots=True)
class CampaignOutage:
    """What a campaign has stopped of a cluster."""

    folder: CampaignFolder
    cluster: ClusterClient
    servers: Mapping[str, OsdServer]
    running: KeptOutage | None = None
    """Begun by this process; of another one only the folder knows."""

    @property
    def stopped(self) -> int:
        """Return how many OSDs are stopped now."""
        return len(self.running.osds) if self.running else 0

    def reach(self, state: ServerState) -> None:
        """Bring the servers into the state of a step; they recover while it runs, by `end`. Raises BenchmarkError."""
        if state.is_outage:
            if self.running is None or self.running.state is not state:
                self._begin(state)
        elif state is ServerState.RECOVERING:
            if self.running is None:
                raise OUTAGE_FAILED(self.folder.id, "nothing was stopped that could recover")
        else:
            self.end()
            self.cluster.wait_clean(self.cluster.settings.clean_s)

    def renew(self) -> None:
        """Let the timers begin again, if something is stopped."""
        if self.running is not None:
            for name in self.running.servers:
                self.servers[name].renew(self.running.id, self.cluster.settings.timer_s)

    def end(self) -> None:
        """Start what the folder names, and unset its noout; nothing where it names none.

        Raises:
            BenchmarkError: OUTAGE_FAILED or HOST_UNREACHABLE; it is tried on all servers, and can be called again.
        """
        outage = self.folder.outage()
        if outage is None:
            return
        failures = []
        for name, osds in outage.servers.items():
            if name not in self.servers:
                failures.append(f"{name} is no longer in the configuration, and its OSDs {list(osds)} may be stopped")
                continue
            try:
                self.servers[name].restore(outage.id, osds)
            except BenchmarkError as error:
                failures.append(str(error))
        if failures:
            raise OUTAGE_FAILED(self.folder.id, "; ".join(failures))
        self._await(outage.osds, up=True)
        self.folder.forget_outage()
        self.running = None

    def _begin(self, state: ServerState) -> None:
        self.end()
        cluster = self.cluster
        cluster.wait_clean(cluster.settings.clean_s)
        # flags that people have set are theirs
        cluster.require_health(clean=True)
        chosen = chosen_osds(state, cluster.settings.servers)
        outage = KeptOutage(f"{self.folder.id}-{secrets.token_hex(4)}", state, chosen)
        why = cluster.why_not_stop(outage.osds)
        if why is not None:
            raise OUTAGE_FAILED(self.folder.id, f"OSDs {list(outage.osds)} cannot be stopped: {why}")
        for name, osds in chosen.items():
            self.servers[name].prove(osds)
        self.folder.keep_outage(outage)
        for name, osds in chosen.items():
            self.servers[name].arm(outage.id, osds, cluster.settings.timer_s)
        self.running = outage
        cluster.tell("osd", "set-group", "noout", *(f"osd.{osd}" for osd in outage.osds))
        for name, osds in chosen.items():
            self.servers[name].stop(outage.id, osds)
        self._await(outage.osds, up=False)
        self.renew()

    def _await(self, osds: Sequence[int], *, up: bool) -> None:
        deadline = time.monotonic() + NOTICED_S
        while True:
            down = self.cluster.down() & set(osds)
            if not down if up else len(down) == len(osds):
                return
            if time.monotonic() > deadline:
                late = sorted(down if up else set(osds) - down)
                what = f"OSDs {late} are not {'up' if up else 'down'} after {NOTICED_S:.0f} s"
                raise OUTAGE_FAILED(self.folder.id, what)
            if not up:
                self.renew()
            # there is no event for it
            time.sleep(LOOK_S)


def chosen_osds(state: ServerState, servers: Mapping[str, CephServer]) -> dict[str, tuple[int, ...]]:
    """Return what is stopped for a state: of the first server by name, all OSDs or the first."""
    if not servers:
        raise TARGET_UNUSABLE("cluster", "no servers are configured that can be stopped")
    name = min(servers)
    osds = servers[name].osds
    return {name: osds if state is ServerState.HOST_DOWN else osds[:1]}
