"""A Ceph cluster of its own: all daemons up, nothing outside of its folder, and nothing left when it is stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from include.lab.servers import ceph
from include.lab.servers.ceph import CephCluster, ObjectStore
from include.lab.servers.process import ServerStartError
from include.lab.servers.radosgw import RadosgwServer
from include.storage.options import Credentials

KEYS = Credentials("nightshift", "not-a-secret")


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.server("ceph-mds")
def test_osds_and_a_file_system_come_up_and_all_of_it_goes(tmp_path: Path) -> None:
    cluster = CephCluster(tmp_path / "c", osds=2, objectstore=ObjectStore.MEMSTORE, mds=True)
    with cluster:
        pids = [daemon.pid for daemon in cluster.daemons.values()]
        assert set(cluster.daemons) == {"mon.a", "mgr.a", "osd.0", "osd.1", "mds.a"}
        assert json.loads(cluster.ceph("osd", "stat", "-f", "json"))["num_up_osds"] == 2
        sockets = cluster.socket_of("x").parent
        cluster.daemons["osd.1"].kill()
        cluster.daemons["osd.1"].start()
        assert (cluster.keyring_of("client.admin").stat().st_mode & 0o077) == 0
    assert alive(pids) == []
    assert not sockets.exists()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.server("radosgw")
def test_what_is_on_disk_is_there_again_after_a_crash_of_everything(tmp_path: Path) -> None:
    from include.storage.buckets import ensure_bucket

    with RadosgwServer(tmp_path / "c", credentials=KEYS, objectstore=ObjectStore.BLUESTORE) as server:
        ensure_bucket("s3://kept", KEYS, server.options())
        store = server.store("kept")
        store.put("data/ab/cd", b"acknowledged")
        daemons = list(server.cluster.daemons.values())
        for daemon in reversed(daemons):
            daemon.kill()
        for daemon in daemons:
            daemon.start()
        assert store.get("data/ab/cd") == b"acknowledged"


def test_without_the_programs_it_says_which_packages_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setattr(ceph, "_PLACES", os.devnull)
    with pytest.raises(ServerStartError, match=r"apt-get install .*ceph-mon ceph-mgr ceph-osd radosgw"):
        RadosgwServer(tmp_path / "c", credentials=KEYS).start()
    assert not (tmp_path / "c").exists()
