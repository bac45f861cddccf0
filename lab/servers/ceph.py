"""A throw-away Ceph cluster of Debian's packages: monitor, manager, OSDs and an optional MDS, as plain processes.

Everything is on loopback and below one folder; nothing of a system's own Ceph is read or touched.
"""

from __future__ import annotations

import enum
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from lab.ports import LOOPBACK, free_port
from lab.secrets import write_private
from lab.servers.process import OwnServer, ServerProcess, ServerStartError, find_program

PACKAGES = "ceph-mon ceph-mgr ceph-osd ceph-mds radosgw ceph-common"
_GIB = 1 << 30


class ObjectStore(enum.Enum):
    """Where OSDs keep what they hold."""

    BLUESTORE = "bluestore"
    """In a sparse file, through the write path of production."""
    MEMSTORE = "memstore"
    """In memory: up sooner and two to three times faster; gone when the OSD stops."""


@dataclass(eq=False)
class CephCluster(OwnServer):
    """A cluster with all its files in `directory`, which must not exist yet. Started once.

    `modules`: the manager loads its modules, seconds of Python, without which the cluster's health is an error.
    `sockets`: a folder with a short path that is kept; None: a temporary one.
    """

    directory: Path
    _: KW_ONLY
    osds: int = 1
    objectstore: ObjectStore = ObjectStore.BLUESTORE
    osd_bytes: int = 8 * _GIB
    mds: bool = False
    modules: bool = False
    sockets: Path | None = None
    daemons: dict[str, ServerProcess] = field(default_factory=dict, init=False)
    _own_sockets: Path | None = field(default=None, init=False)

    def start(self) -> None:
        """Make the cluster's files and start its daemons; ServerStartError, with nothing left running, if one fails."""
        try:
            self._write_files()
            monmap, keys = self.directory / "monmap", self.directory / "all.keyring"
            self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", str(monmap), "--keyring", str(keys))
            keys.unlink()
            self.start_daemon("mon.a", "ceph-mon", "-i", "a")
            self.start_daemon("mgr.a", "ceph-mgr", "-i", "a", wait=False)
            for number in range(self.osds):
                identity = str(uuid.uuid4())
                (self.directory / f"osd.{number}").mkdir()
                self.ceph("osd", "new", identity, str(number))
                self.run("ceph-osd", "-i", str(number), "--mkfs", "--osd-uuid", identity)
                self.start_daemon(f"osd.{number}", "ceph-osd", "-i", str(number), wait=False)
            if self.mds:
                self.ceph("osd", "pool", "create", "cephfs.meta", "8")
                self.ceph("osd", "pool", "create", "cephfs.data", "8")
                self.ceph("fs", "new", "labfs", "cephfs.meta", "cephfs.data")
                (self.directory / "mds.a").mkdir()
                self.start_daemon("mds.a", "ceph-mds", "-i", "a")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all daemons, those last that the others need; the files stay."""
        for name in reversed(list(self.daemons)):
            self.daemons[name].stop()
        if self._own_sockets is not None:
            shutil.rmtree(self._own_sockets, ignore_errors=True)

    def ceph(self, *arguments: str) -> str:
        """Return what `ceph …` prints; it takes a third of a second."""
        return self.run("ceph", "--connect-timeout", "30", *arguments)

    def run(self, program: str, *arguments: str) -> str:
        """Return what a program of Ceph prints on this cluster; ServerStartError with what it said if it fails."""
        command = [ceph_program(program), *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.environment(), timeout=120
        )
        if done.returncode:
            raise ServerStartError(
                program, f"{' '.join(arguments[:4])}… ended with {done.returncode}: {done.stderr[-800:]}"
            )
        return done.stdout

    def start_daemon(
        self, name: str, program: str, *arguments: str, ready_timeout_s: float = 60, wait: bool = True
    ) -> ServerProcess:
        """Start a daemon in the foreground; unless `wait` is False, wait until it reports that it is active."""
        ready = (lambda: self.active(name)) if wait else (lambda: True)
        daemon = ServerProcess(
            name,
            [ceph_program(program), *arguments, "-f", "--conf", str(self.conf)],
            log=self.directory / f"{name}.out",
            ready=ready,
            env=self.environment(),
            ready_timeout_s=ready_timeout_s,
            stop_timeout_s=5,
        )
        daemon.start()
        self.daemons[name] = daemon
        return daemon

    def keyring_of(self, entity: str) -> Path:
        """The file with the key of one daemon."""
        return self.directory / f"{entity}.keyring"

    def add_section(self, entity: str, settings: Mapping[str, object]) -> None:
        """More of the configuration file, for a daemon that is started after this."""
        with self.conf.open("a") as file:
            file.write(_section(entity, settings))

    def socket_of(self, name: str) -> Path:
        """A daemon's admin socket; in a short folder, since paths of sockets may have 107 bytes only."""
        if self.sockets is None and self._own_sockets is None:
            self._own_sockets = Path(tempfile.mkdtemp(prefix="ceph-"))
        return (self.sockets or self._own_sockets or Path()) / f"{name}.asok"

    def environment(self) -> dict[str, str]:
        """Return what programs of Ceph need, and nothing that points them to another cluster."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CEPH_")}
        return {**kept, "CEPH_CONF": str(self.conf)}

    @property
    def conf(self) -> Path:
        """The configuration file."""
        return self.directory / "ceph.conf"

    def _write_files(self) -> None:
        ceph_program("ceph-mon")  # refuses before a folder is made
        self.directory.mkdir(parents=True)
        (self.directory / "no-modules").mkdir()
        port, fsid = free_port(), str(uuid.uuid4())
        self.conf.write_text("".join(_section(name, keys) for name, keys in self._settings(port, fsid).items()))
        self._write_keys()
        address = f"[v1:{LOOPBACK}:{port}]"
        self.run("monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, str(self.directory / "monmap"))

    def _write_keys(self) -> None:
        """All keys are made here and given to the monitor at its birth, which spares asking it for each."""
        rights = {
            "mon.": ("mon", "allow *"),
            "client.admin": ("mon", "allow *", "osd", "allow *", "mds", "allow *", "mgr", "allow *"),
            "mgr.a": ("mon", "allow profile mgr", "osd", "allow *", "mds", "allow *"),
            "client.rgw.a": ("mon", "allow rwx", "osd", "allow rwx", "mgr", "allow rw"),
            "mds.a": ("mon", "profile mds", "osd", "allow rwx", "mds", "allow *", "mgr", "profile mds"),
            **{
                f"osd.{number}": ("mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *")
                for number in range(self.osds)
            },
        }
        everything = ""
        for entity, capabilities in rights.items():
            key = self.run("ceph-authtool", "--gen-print-key").strip()
            pairs = zip(capabilities[::2], capabilities[1::2], strict=True)
            caps = "".join(f'\tcaps {service} = "{allowed}"\n' for service, allowed in pairs)
            everything += f"[{entity}]\n\tkey = {key}\n{caps}"
            write_private(self.keyring_of(entity), f"[{entity}]\n\tkey = {key}\n{caps}")
        write_private(self.directory / "all.keyring", everything)

    def active(self, name: str) -> bool:
        """Tell whether a daemon reports that it does its work."""
        if name.startswith("mgr."):
            return bool(json.loads(self.ceph("mgr", "stat", "-f", "json")).get("available"))
        if name.startswith("mon."):
            return self._ask(name, "mon_status").get("state") == "leader"
        return self._ask(name, "status").get("state") in ("active", "up:active")

    def _ask(self, name: str, command: str) -> dict[str, Any]:
        """A daemon's answer at its admin socket: a command up to a NUL there, a length and JSON back."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(5)
            try:
                asking.connect(str(self.socket_of(name)))
                asking.sendall(json.dumps({"prefix": command, "format": "json"}).encode() + b"\0")
                (length,) = struct.unpack(">I", _receive(asking, 4))
                answer: dict[str, Any] = json.loads(_receive(asking, length))
            except (OSError, ValueError, struct.error):
                return {}
        return answer

    def _settings(self, port: int, fsid: str) -> dict[str, dict[str, object]]:
        place = self.directory
        return {
            "global": {
                "fsid": fsid,
                "mon_host": f"v1:{LOOPBACK}:{port}",
                "mon_initial_members": "a",
                "public_addr": LOOPBACK,
                "cluster_addr": LOOPBACK,
                "ms_bind_msgr2": "false",  # one port each is enough
                "keyring": f"{place}/$name.keyring",
                "log_file": f"{place}/$name.log",
                "crash_dir": place,
                "run_dir": place,
                "pid_file": "",
                "admin_socket": "",
                # One machine, few placement groups: enough for tests, and up at once.
                "osd_crush_chooseleaf_type": 0,
                "osd_pool_default_size": min(self.osds, 2),
                "osd_pool_default_min_size": 1,
                "osd_pool_default_pg_num": 8,
                "osd_pool_default_pg_autoscale_mode": "off",
                "mon_max_pg_per_osd": 1000,
                "mon_allow_pool_size_one": "true",
                "mon_allow_pool_delete": "true",
                "mon_warn_on_pool_no_redundancy": "false",
                "paxos_propose_interval": 0.05,  # a new map at once, not once a second: each new pool takes some
                "auth_allow_insecure_global_id_reclaim": "false",
                "mon_data_avail_warn": 2,
                "mon_data_avail_crit": 1,
            },
            "client": {"log_file": ""},
            "mon": {"mon_data": place / "mon", "admin_socket": self.socket_of("mon.a")},
            "mgr": {
                "mgr_data": place / "mgr",
                "mgr_initial_modules": "",
                **({} if self.modules else {"mgr_module_path": place / "no-modules"}),
            },
            "osd": {
                "osd_data": f"{place}/osd.$id",
                "admin_socket": self.socket_of("osd.$id"),
                "osd_objectstore": self.objectstore.value,
                "osd_memory_target": _GIB,
                "osd_op_num_shards": 2,
                "bluestore_block_size": self.osd_bytes,
                "bluestore_block_create": "true",
                # Five logs of this size are kept for reuse: those of the usual 256 MiB would take half of a small OSD.
                "bluestore_rocksdb_options_annex": "write_buffer_size=16777216",
                "memstore_device_bytes": self.osd_bytes,
            },
            "mds": {
                "mds_data": f"{place}/mds.$id",
                "admin_socket": self.socket_of("mds.$id"),
                "mds_cache_memory_limit": 256 << 20,
            },
        }


def _section(name: str, settings: Mapping[str, object]) -> str:
    return "".join([f"[{name}]\n", *(f"{key} = {value}\n" for key, value in settings.items())])


def ceph_program(name: str) -> str:
    """The path of a program of Ceph; ServerStartError where it is not installed."""
    path = find_program(name)
    if path is None:
        raise ServerStartError(name, f"the program is missing; apt-get install --no-install-recommends {PACKAGES}")
    return path


def _receive(source: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (piece := source.recv(length - len(data))):
        data += piece
    return data
