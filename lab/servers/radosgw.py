"""Ceph's S3 gateway on a throw-away cluster of its own, with one user for each key pair that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from include.storage.buckets import PolicyServer
from include.storage.errors import StoreError
from include.storage.kinds import Credentials
from include.storage.open import open_store
from lab.ports import LOOPBACK, free_port
from lab.servers.ceph import CephCluster, ObjectStore, ceph_program
from lab.servers.process import ServerProcess
from lab.servers.s3 import S3Server

NAME = "client.rgw.a"


class RadosgwServer(S3Server):
    """An S3 server with one user, to whom more may be added, over a cluster below `directory`."""

    kind = PolicyServer.RADOSGW

    def __init__(
        self,
        directory: Path,
        *,
        credentials: Credentials,
        osds: int = 1,
        objectstore: ObjectStore = ObjectStore.BLUESTORE,
        port: int | None = None,
        cluster: CephCluster | None = None,
        prepare: Callable[[CephCluster], object] | None = None,
    ) -> None:
        """``cluster``: in place of one below ``directory``; ``prepare``: makes pools, before the gateway does."""
        self.cluster = cluster or CephCluster(directory, osds=osds, objectstore=objectstore)
        self._prepare = prepare
        self.credentials = credentials
        self.port = port or free_port()

    @property
    def endpoint(self) -> str:
        """The S3 URL, without bucket."""
        return f"http://{LOOPBACK}:{self.port}"

    def add_user(self, name: str, credentials: Credentials) -> None:
        """One more S3 user, who may do nothing in buckets of others but what their policies say."""
        self.cluster.run(
            "radosgw-admin", "user", "create", f"--uid={name}", f"--display-name={name}",
            f"--access-key={credentials.access_key}", f"--secret-key={credentials.secret_key}",
        )  # fmt: skip

    def set_quota(self, bucket: str, *, max_bytes: int | None) -> None:
        """Let a bucket hold so many bytes; None lifts the quota. Counted in blocks of 4 kB."""
        self.cluster.run("radosgw-admin", "quota", "set", "--quota-scope=bucket", f"--bucket={bucket}",
                         f"--max-size={-1 if max_bytes is None else max_bytes}")  # fmt: skip
        switch = "disable" if max_bytes is None else "enable"
        self.cluster.run("radosgw-admin", "quota", switch, "--quota-scope=bucket", f"--bucket={bucket}")

    def start(self) -> None:
        """Start cluster and gateway, and make the user; ServerStartError, with nothing left running, if that fails."""
        self.cluster.start()
        try:
            if self._prepare is not None:
                self._prepare(self.cluster)
            self.cluster.add_section(NAME, {
                "log_file": self.cluster.directory / f"{NAME}.log",
                "keyring": self.cluster.keyring_of(NAME),
                "rgw_data": self.cluster.directory / "rgw",
                # without tcp_nodelay every small GET waits 40 ms for its body
                "rgw_frontends": f"beast endpoint={LOOPBACK}:{self.port} tcp_nodelay=1",
                "rgw_dns_name": "localhost",
                "rgw_thread_pool_size": 128,
            })  # fmt: skip
            gateway = ServerProcess(
                NAME, self.command(), log=self.cluster.directory / f"{NAME}.out", ready=self.answers,
                env=self.cluster.environment(), ready_timeout_s=120, stop_timeout_s=5,
            )  # fmt: skip
            gateway.start()
            self.cluster.daemons[NAME] = gateway
            self.add_user("nightshift", self.credentials)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop gateway and cluster; the files stay."""
        self.cluster.stop()

    def command(self) -> list[str]:
        """Return what runs the gateway of a cluster that is made."""
        return [ceph_program("radosgw"), "-n", NAME, "-f", "--conf", str(self.cluster.conf)]

    def answers(self) -> bool:
        """Tell whether it replies that there is no such bucket: it has read its own pools by then."""
        store = open_store("s3://nightshift-ready", options=self.options(retries=0, timeout_s=10))
        try:
            store.head("anything")
        except StoreError:
            return False
        return True
