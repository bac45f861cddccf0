"""A Ceph cluster that stays up: monitor, manager, OSDs on files, MDS and radosgw on one machine, under supervisord.

Data pools are erasure-coded, 2+1 over the OSDs, metadata is replicated: with one OSD stopped, everything is still read
and written. The lab of `nightshift lab up` is another one; neither knows of the other.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.storage.kinds import Credentials
from lab.environment import MARK, LabFolders
from lab.errors import CEPH_LAB_MISSING, OSD_UNKNOWN, LabError, ServiceFailed
from lab.ports import free_port
from lab.secrets import load_or_create
from lab.servers.ceph import CephCluster, ObjectStore, ceph_program
from lab.servers.process import find_program
from lab.servers.radosgw import NAME as RADOSGW, RadosgwServer
from lab.services import ServiceNotReady, wait
from lab.supervise import Program, Supervisor, end_marked

OSDS = 3
PROFILE = "k2m1"
POOL = "bench"
"""The erasure-coded pool for RADOS."""
FILES = "cephfs.data.ec"
"""The erasure-coded pool for the files of CephFS."""
REPLICATED = "bench-replicated"
FUSE = "cephfs"
"""The program that mounts CephFS; only where ceph-fuse is installed."""
READY_S = 120.0
STOP_S = 30.0
_GIB = 1 << 30
_NIGHTSHIFT = str(Path(sys.executable).with_name("nightshift"))

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CephLabStatus:
    """State of the cluster, of each OSD, of all placement groups together, and the place where CephFS is mounted."""

    health: str | None  # None: no answer
    osds: Mapping[int, bool]
    clean: bool
    endpoint: str
    mount: Path | None


class CephLab:
    """The cluster below the folder `var`."""

    def __init__(self, var: Path) -> None:
        self.place = LabFolders(var.resolve())
        self._made = self.place.var / "made.json"

    @property
    def conf(self) -> Path:
        """Return what `ceph --conf` takes."""
        return self._cluster().conf

    @property
    def credentials(self) -> Credentials:
        """The key pair of the S3 user."""
        known = load_or_create(self.place.secrets)
        return Credentials(known.s3_access_key, known.s3_secret_key)

    @property
    def mountpoint(self) -> Path:
        """Return where CephFS is mounted."""
        return self.place.var / "mnt"

    def up(self, *, osd_gib: int = 8, say: Say) -> None:
        """Make the cluster where there is none, and start what does not run.

        `osd_gib`: the size of each OSD's file in GiB; files are sparse. It counts when the cluster is made. Raises
        ServerStartError: a program is missing; LabError: an earlier start left an unfinished cluster; ServiceFailed: a
        daemon ended or does not answer.
        """
        self.place.make()
        if not self._made.exists():
            self._make(osd_gib, say)
        supervisor = Supervisor(self.place)
        programs = self._programs()
        if not supervisor.running():
            end_marked(self.place)
            self.mountpoint.mkdir(exist_ok=True)
            supervisor.start(programs, {**self._cluster().environment(), MARK: str(self.place.var)})
        names = [program.name for program in programs]
        # ceph-fuse gives up where no MDS is active yet
        for part in ([name for name in names if name != FUSE], [name for name in names if name == FUSE]):
            for name in part:
                supervisor.start_program(name)
            for name in part:
                self._await(supervisor, name)
        self._await_pools()
        if self.mountpoint.is_mount():
            # the first data pool of a file system is its default, and is replicated
            os.setxattr(self.mountpoint, "ceph.dir.layout.pool", FILES.encode())
        say(f"Ceph is up: S3 at {self._server().endpoint}, configuration in {self.conf}")

    def down(self, *, purge: bool = False, say: Say) -> None:
        """Stop all daemons; with `purge`, remove the cluster and all that it holds."""
        supervisor = Supervisor(self.place)
        if supervisor.running():
            running = supervisor.alive()
            clients = [name for name in running if name in (FUSE, RADOSGW)]
            osds = [name for name in running if name.startswith(("osd.", "mds."))]
            for names in (clients, osds, [name for name in running if name not in (*clients, *osds)]):
                supervisor.stop_programs(names, timeout_s=STOP_S)
            supervisor.shutdown(timeout_s=STOP_S)
            say(f"stopped {len(running)} daemons")
        end_marked(self.place)
        if purge:
            if self.mountpoint.is_mount():
                raise LabError(f"{self.mountpoint} is still mounted; unmount it and run it again")
            shutil.rmtree(self.place.var, ignore_errors=True)
            say(f"removed {self.place.var}")

    def cluster_block(self) -> dict[str, Any]:
        """Return what `cluster:` of a benchmark target has: each OSD is a server of its own, stopped by the lab's
        command."""
        lab = ["env", f"NIGHTSHIFT_VAR={self.place.var.parent}", _NIGHTSHIFT, "lab", "ceph"]
        unset = ["ceph", "--conf", str(self.conf), "osd", "unset-group", "noout", "osd.{osd}"]
        commands = {"stop": [*lab, "stop-osd", "{osd}"], "start": [*lab, "start-osd", "{osd}"], "unset": unset}
        servers = {
            f"server{number}": {"osds": [number], "folder": str(self.place.var), **commands} for number in range(OSDS)
        }
        erasure = {"k": 2, "m": 1, "failure_domain": "osd", "groups": 8}
        cluster = {"conf": str(self.conf), "pool": POOL, "servers": servers, "erasure": erasure}
        return {**cluster, "clean_s": 300, "timer_s": 60}

    def stop_osd(self, number: int) -> None:
        """Stop an OSD; it stays stopped until `start_osd`, also if supervisord would start it again."""
        Supervisor(self.place).stop_programs([self._osd(number)], timeout_s=STOP_S)

    def start_osd(self, number: int) -> None:
        """Start an OSD that was stopped, and wait until it is up; ServiceFailed if it is not."""
        supervisor, name = Supervisor(self.place), self._osd(number)
        supervisor.start_program(name)
        self._await(supervisor, name)

    def status(self) -> CephLabStatus:
        """Return how the cluster is; it is asked."""
        mount = self.mountpoint if self.mountpoint.is_mount() else None
        endpoint = self._server().endpoint
        if not Supervisor(self.place).running():
            return CephLabStatus(None, dict.fromkeys(range(OSDS), False), False, endpoint, mount)
        health = json.loads(self._cluster().ceph("health", "-f", "json"))["status"]
        dump = json.loads(self._cluster().ceph("osd", "dump", "-f", "json"))
        osds = {int(osd["osd"]): bool(osd["up"]) for osd in dump["osds"]}
        clean = all(group["state_name"].startswith("active+clean") for group in self._groups())
        return CephLabStatus(health, osds, clean, endpoint, mount)

    def _groups(self) -> list[dict[str, Any]]:
        """The placement groups by state, each with its `state_name` and `count`."""
        status = json.loads(self._cluster().ceph("status", "-f", "json"))
        groups: list[dict[str, Any]] = status["pgmap"].get("pgs_by_state", [])
        return groups

    def _make(self, osd_gib: int, say: Say) -> None:
        if self._directory.exists():
            raise LabError(f"{self._directory} is unfinished; run nightshift lab ceph down --purge, then up again")
        say(f"making a cluster of {OSDS} OSDs, {osd_gib} GiB each, below {self.place.var}")
        port = free_port()
        with self._server(port, osd_gib * _GIB):
            pass  # made and tried once; from here on supervisord runs it
        self._made.write_text(json.dumps({"port": port, "osd_gib": osd_gib}))

    def _cluster(self, osd_bytes: int = 8 * _GIB) -> CephCluster:
        sockets = self.place.sockets
        return CephCluster(
            self._directory, osds=OSDS, objectstore=ObjectStore.BLUESTORE, osd_bytes=osd_bytes, mds=True,
            modules=True, sockets=sockets,
        )  # fmt: skip

    def _server(self, port: int | None = None, osd_bytes: int = 8 * _GIB) -> RadosgwServer:
        if port is None:
            try:
                port = int(json.loads(self._made.read_text())["port"])
            except FileNotFoundError:
                raise CEPH_LAB_MISSING(f"there is no Ceph lab in {self.place.var}; {CEPH_LAB_MISSING.hint}") from None
        cluster = self._cluster(osd_bytes)
        return RadosgwServer(
            self._directory, credentials=self.credentials, port=port, cluster=cluster, prepare=make_pools
        )

    def _programs(self) -> tuple[Program, ...]:
        conf = str(self.conf)
        daemons = [("mon.a", "ceph-mon"), ("mgr.a", "ceph-mgr")]
        daemons += [(f"osd.{number}", "ceph-osd") for number in range(OSDS)]
        daemons += [("mds.a", "ceph-mds")]
        programs = [
            Program(name, (ceph_program(program), "-i", name.partition(".")[2], "-f", "--conf", conf))
            for name, program in daemons
        ]
        programs.append(Program(RADOSGW, tuple(self._server().command())))
        fuse = find_program("ceph-fuse")
        if fuse is not None and Path("/dev/fuse").exists():
            command = (fuse, "-f", "--conf", conf, "-n", "client.admin", str(self.mountpoint))
            programs.append(Program(FUSE, command))
        return tuple(programs)

    def _await(self, supervisor: Supervisor, name: str) -> None:
        cluster, server = self._cluster(), self._server()
        ready: dict[str, Callable[[], bool]] = {RADOSGW: server.answers, FUSE: self.mountpoint.is_mount}
        question = ready.get(name, lambda: cluster.active(name))
        try:
            wait(
                lambda: None if question() else "it does not answer yet",
                alive=lambda: None if supervisor.process(name).state.alive else supervisor.process(name).detail,
                timeout_s=READY_S,
            )
        except ServiceNotReady as why:
            raise ServiceFailed(name, str(why), str(self.place.log / f"{name}.log")) from None

    def _await_pools(self) -> None:
        """Until the manager knows the size of each OSD, from which follows how full a pool is, and all groups serve."""

        def fault() -> str | None:
            nodes = json.loads(self._cluster().ceph("osd", "df", "-f", "json"))["nodes"]
            sizes = [int(node["kb"]) for node in nodes if node["status"] == "up"]
            if not sizes or not all(sizes):
                return "OSDs have not reported their sizes"
            idle = sum(int(group["count"]) for group in self._groups() if not group["state_name"].startswith("active"))
            return f"{idle} placement groups are not active" if idle else None

        try:
            wait(fault, alive=lambda: None, timeout_s=READY_S)
        except ServiceNotReady as why:
            raise ServiceFailed("mgr.a", str(why), str(self.place.log / "mgr.a.log")) from None

    @property
    def _directory(self) -> Path:
        return self.place.var / "cluster"

    def _osd(self, number: int) -> str:
        if number not in range(OSDS):
            raise OSD_UNKNOWN(f"there is no OSD {number}, only 0 to {OSDS - 1}; {OSD_UNKNOWN.hint}")
        if not Supervisor(self.place).running():
            raise CEPH_LAB_MISSING(f"the Ceph lab in {self.place.var} is not up; {CEPH_LAB_MISSING.hint}")
        return f"osd.{number}"


def make_pools(cluster: CephCluster) -> None:
    """Pools of a cluster of three OSDs: data 2+1, metadata twice."""
    ceph = cluster.ceph
    ceph("osd", "erasure-code-profile", "set", PROFILE, "k=2", "m=1", "crush-failure-domain=osd")
    for name, application, groups in ((POOL, "lab", 16), ("default.rgw.buckets.data", "rgw", 16)):
        ceph("osd", "pool", "create", name, str(groups), str(groups), "erasure", PROFILE)
        ceph("osd", "pool", "set", name, "min_size", "2")
        ceph("osd", "pool", "application", "enable", name, application)
    ceph("osd", "pool", "create", REPLICATED, "8")
    ceph("osd", "pool", "application", "enable", REPLICATED, "lab")
    ceph("osd", "pool", "create", FILES, "16", "16", "erasure", PROFILE)
    ceph("osd", "pool", "set", FILES, "min_size", "2")
    ceph("osd", "pool", "set", FILES, "allow_ec_overwrites", "true")
    ceph("fs", "add_data_pool", "labfs", FILES)
