"""A Ceph cluster of its own: all daemons up, nothing outside of its folder, and nothing left when it is stopped."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from include.storage.kinds import Credentials, StoreOptions
from include.storage.open import open_store
from lab.errors import CEPH_LAB_MISSING, OSD_UNKNOWN
from lab.servers import ceph
from lab.servers.ceph import CephCluster, ObjectStore
from lab.servers.ceph_lab import CephLab
from lab.servers.process import ServerStartError
from lab.servers.radosgw import RadosgwServer
from tests.fakes.refused import refused

KEYS = Credentials("nightshift", "not-a-secret")


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
@pytest.mark.thorough
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
    monkeypatch.setattr(ceph, "find_program", lambda _: None)
    with pytest.raises(ServerStartError, match=r"apt-get install .*ceph-mon ceph-mgr ceph-osd ceph-mds radosgw"):
        RadosgwServer(tmp_path / "c", credentials=KEYS).start()
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.server("radosgw")
def test_a_cluster_that_stays_is_read_and_written_while_an_osd_is_stopped(tmp_path: Path) -> None:
    from include.storage.buckets import ensure_bucket

    lab, lines = CephLab(tmp_path / "ceph"), list[str]()
    try:
        lab.up(osd_gib=2, say=lines.append)
        used = subprocess.check_output(["ceph", "--conf", lab.conf, "osd", "df", "-f", "json"])
        # what an OSD keeps for itself grows to five times of this, and is no room for data
        assert all(0 < osd["utilization"] < 5 for osd in json.loads(used)["nodes"])
        options = StoreOptions(endpoint=lab.status().endpoint)
        ensure_bucket("s3://kept", lab.credentials, options)
        store = open_store("s3://kept/", credentials=lab.credentials, options=options)
        store.put("before", b"x" * 100_000)
        lab.stop_osd(1)
        assert lab.status().osds == {0: True, 1: False, 2: True}
        assert store.get("before") == b"x" * 100_000
        store.put("while", b"y" * 100_000)
        lab.start_osd(1)
        lab.down(say=lines.append)
        assert lab.status().health is None
        lab.up(say=lines.append)  # the same cluster
        assert store.get("while") == b"y" * 100_000
    finally:
        lab.down(purge=True, say=lines.append)
    assert not (tmp_path / "ceph").exists()


def test_without_a_cluster_every_command_says_how_to_make_one(tmp_path: Path) -> None:
    lab = CephLab(tmp_path / "ceph")
    for command in (lab.status, lambda: lab.stop_osd(0), lambda: lab.start_osd(0)):
        with refused(CEPH_LAB_MISSING):
            command()
    with refused(OSD_UNKNOWN):
        lab.stop_osd(7)
    lab.down(say=print)
