"""Runners on real targets: what was written is measured, read again and removed."""

from __future__ import annotations

import json
import random
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from include.benchmarks.campaign.plan import RUNNERS
from include.benchmarks.errors import RUNNER_FAILED
from include.benchmarks.measure.ceph import ClusterClient, NamespaceArea, PoolBenchmarkTarget
from include.benchmarks.measure.loads import (
    DataPattern,
    LoadAccess,
    LoadStep,
    ReaderWay,
    RunnerKind,
    RunnerResult,
    StreamLoad,
)
from include.benchmarks.measure.osds import merged_latencies
from include.benchmarks.measure.probes import WatchedServers
from include.benchmarks.measure.publisher import FQRN
from include.benchmarks.measure.readers import FQRN as DATA_FQRN
from include.benchmarks.measure.targets import (
    BucketBenchmarkTarget,
    FolderArea,
    ObjectArea,
    PathBenchmarkTarget,
    RunArea,
)
from include.cvmfs.commit.commit import read_head
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash
from include.settings.benchmarks import BucketTarget, CephAccess, PathTarget, PoolTarget
from include.storage.open import open_store
from include.storage.store import Store
from lab.servers.ceph import CephCluster, ObjectStore
from lab.servers.weed import WeedServer
from lab.services import wait
from tests.fakes.refused import refused
from tests.integration.conftest import BUCKET

MIB = 1 << 20
WRITE = StreamLoad(LoadAccess.WRITE, "data", streams=2, file_bytes=4 * MIB, block_bytes=MIB)
OBJECTS = StreamLoad(LoadAccess.WRITE, "data", streams=4, file_bytes=4096, block_bytes=4096, files=25)


def run(area: RunArea, runner: RunnerKind, scratch: Path, *loads: StreamLoad, seconds: int = 1) -> RunnerResult:
    folder = scratch / f"step-{len(list(scratch.iterdir()))}"
    folder.mkdir()
    return RUNNERS[runner].run(LoadStep("step", runner, loads, seconds), area, folder)


def reading(load: StreamLoad) -> StreamLoad:
    return replace(load, access=LoadAccess.READ)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> RunArea:
    (tmp_path / "target").mkdir()
    settings = PathTarget.model_validate({"kind": "path", "name": "t", "path": tmp_path / "target"})
    target = PathBenchmarkTarget(settings)
    target.check()
    area = target.area("run-1")
    area.create()
    return area


@pytest.fixture
def bucket(weed: WeedServer, s3_prefix: str) -> RunArea:
    def opened(connections: int, *, sign_payload: bool = True) -> Store:
        options = weed.options(retries=0, connections=connections, sign_payload=sign_payload)
        return open_store(f"s3://{BUCKET}/{s3_prefix}", credentials=weed.credentials, options=options)

    settings = BucketTarget.model_validate({"kind": "bucket", "name": "t", "store": "s"})
    target = BucketBenchmarkTarget(settings, opened)
    target.check()
    area = target.area("run-1")
    area.create()
    return area


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CephCluster]:
    with CephCluster(tmp_path_factory.mktemp("ceph") / "c", osds=2, objectstore=ObjectStore.MEMSTORE) as made:
        made.ceph("osd", "pool", "create", "bench", "8", "8", "replicated")
        yield made


@pytest.fixture
def pool(cluster: CephCluster) -> RunArea:
    settings = PoolTarget.model_validate({"kind": "pool", "name": "t", "pool": "bench", "conf": cluster.conf})
    target = PoolBenchmarkTarget(settings)
    asked = ClusterClient(settings.ceph, "t")
    wait(lambda: "peering" if asked.health().unclean else None, alive=lambda: None, timeout_s=120)
    target.check()
    return target.area("run-1")


def removed(area: RunArea, *loads: StreamLoad) -> bool:
    for load in loads:
        area.remove_files(load.names())
    return area.remove().left == ()


@pytest.mark.server("fio")
def test_fio_writes_then_reads_what_was_written(folder: RunArea, scratch: Path) -> None:
    written = run(folder, RunnerKind.FIO, scratch, WRITE)
    assert (written.loads[0].bytes, written.loads[0].operations, written.loads[0].failed) == (8 * MIB, 8, 0)
    assert written.commands[0][0].endswith("fio")
    assert written.loads[0].percentiles().keys() == {"p50"}, "8 operations"
    # slow enough for the reader to begin: in memory all is written at once
    more = replace(WRITE, dataset="more", rate=8 * MIB)
    both = run(folder, RunnerKind.FIO, scratch, reading(WRITE), more)
    assert [load.access for load in both.loads] == [LoadAccess.READ, LoadAccess.WRITE]
    assert both.loads[0].bytes > 0
    # with the first stream that ends all end, so what two of them write is not fixed
    slow = replace(WRITE, dataset="slow", streams=1, file_bytes=8 * MIB, rate=4 * MIB)
    mixed = run(folder, RunnerKind.FIO, scratch, slow, reading(WRITE), seconds=60)
    assert mixed.loads[0].bytes == 8 * MIB, "all of it is written"
    assert max(load.seconds for load in mixed.loads) < 20, "readers end with the first writer"
    # it reads no further than files go, and creates none
    read = run(folder, RunnerKind.FIO, scratch, replace(reading(WRITE), file_bytes=64 * MIB))
    assert (read.loads[0].failed, len(read.notes)) == (0, 1)
    with refused(RUNNER_FAILED, subject="step"):
        run(folder, RunnerKind.FIO, scratch, reading(replace(WRITE, dataset="missing")))
    assert removed(folder, WRITE, more, slow)


def test_dd_writes_zeros_and_reads_them(folder: RunArea, scratch: Path) -> None:
    written = run(folder, RunnerKind.DD, scratch, WRITE)
    assert (written.loads[0].bytes, len(written.commands)) == (8 * MIB, 2)
    read = run(folder, RunnerKind.DD, scratch, reading(WRITE))
    assert (read.loads[0].bytes, read.loads[0].percentiles()) == (8 * MIB, {})
    assert removed(folder, WRITE)


@pytest.mark.server("weed")
def test_objects_are_put_read_mixed_listed_and_deleted(bucket: RunArea, scratch: Path) -> None:
    put = run(bucket, RunnerKind.OBJECTS, scratch, OBJECTS, seconds=60).loads[0]
    assert (put.operations, put.bytes, put.failed) == (100, 100 * 4096, 0)
    got, listed = run(
        bucket, RunnerKind.OBJECTS, scratch, reading(OBJECTS), replace(OBJECTS, access=LoadAccess.LIST, streams=1)
    ).loads
    assert (got.failed, listed.failed, got.bytes) == (0, 0, got.operations * 4096)
    mixed = run(bucket, RunnerKind.OBJECTS, scratch, replace(OBJECTS, access=LoadAccess.MIXED)).loads
    assert [load.access for load in mixed] == [LoadAccess.READ, LoadAccess.WRITE]
    assert all(load.operations for load in mixed)
    more = run(bucket, RunnerKind.OBJECTS, scratch, replace(OBJECTS, dataset="more"), reading(OBJECTS), seconds=60)
    assert [load.access for load in more.loads] == [LoadAccess.WRITE, LoadAccess.READ]
    assert max(load.seconds for load in more.loads) < 20, "readers end with the first writer"
    bucket.remove_files(replace(OBJECTS, dataset="more").names())
    deleted = run(bucket, RunnerKind.OBJECTS, scratch, replace(OBJECTS, access=LoadAccess.DELETE), seconds=60).loads[0]
    assert deleted.operations == 100
    assert removed(bucket)


@pytest.mark.server("weed")
def test_large_objects_are_read_whole_in_pieces_and_failed_requests_are_counted(bucket: RunArea, scratch: Path) -> None:
    large = replace(OBJECTS, streams=2, files=2, file_bytes=3 * MIB)
    run(bucket, RunnerKind.OBJECTS, scratch, large, seconds=60)
    got = run(bucket, RunnerKind.OBJECTS, scratch, reading(large)).loads[0]
    assert (got.failed, got.bytes) == (0, got.operations * 3 * MIB)
    bucket.remove_files(large.names())
    run(bucket, RunnerKind.OBJECTS, scratch, replace(OBJECTS, streams=1), seconds=60)
    partly = run(bucket, RunnerKind.OBJECTS, scratch, reading(replace(OBJECTS, streams=2)))
    assert partly.loads[0].failed > 0
    assert partly.loads[0].bytes == partly.loads[0].operations * 4096
    with refused(RUNNER_FAILED, subject="step"):
        run(bucket, RunnerKind.OBJECTS, scratch, reading(replace(OBJECTS, dataset="missing")))
    assert removed(bucket, OBJECTS)


def compressed_share(data: bytes) -> float:
    return len(zlib.compress(data, 1)) / len(data)


@pytest.mark.server("fio", "weed")
def test_data_cannot_be_compressed_except_zeros(folder: FolderArea, bucket: ObjectArea, scratch: Path) -> None:
    loads = {
        (RunnerKind.FIO, WRITE, folder): 1.0,
        (RunnerKind.FIO, replace(WRITE, dataset="zeros", pattern=DataPattern.ZEROS), folder): 0.0,
        (RunnerKind.DD, replace(WRITE, dataset="dd", pattern=DataPattern.ZEROS), folder): 0.0,
        (RunnerKind.OBJECTS, OBJECTS, bucket): 1.0,
    }
    for (runner, load, area), share in loads.items():
        run(area, runner, scratch, load, seconds=60)
        name = next(load.names())
        data = (folder.folder / name).read_bytes() if area is folder else bucket.store(1).get(name)
        assert compressed_share(data) == pytest.approx(share, abs=0.02), load


PUBLISH = StreamLoad(
    LoadAccess.PUBLISH, "repository", streams=3, file_bytes=4096, block_bytes=4096, files=20, connections=4
)


@pytest.mark.server("weed")
@pytest.mark.parametrize("kind", ["folder", pytest.param("bucket", marks=pytest.mark.thorough)])
def test_directories_are_published_each_with_a_catalog(
    kind: str, request: pytest.FixtureRequest, scratch: Path
) -> None:
    area: FolderArea | ObjectArea = request.getfixturevalue(kind)
    result = run(area, RunnerKind.PUBLISHER, scratch, PUBLISH)
    (load,) = result.loads
    assert (load.operations, load.bytes, load.failed) == (60, 60 * 4096, 0)
    assert load.seconds > 0
    store = open_store((area.folder / "repository").as_uri()) if isinstance(area, FolderArea) else area.store(1)
    store = store if isinstance(area, FolderArea) else store.child("repository")
    root = read_head(store, FQRN).manifest.root
    total = CatalogCache(store).open(root).statistics.total
    assert (total.regular, total.nested) == (60 + 1 + 3, 1 + 3), "files and markers, that of the destination among them"
    assert any(line.startswith("prepare ") for line in (scratch / "step-0" / "phases.txt").read_text().splitlines())
    with refused(RUNNER_FAILED, subject="step"):
        run(area, RunnerKind.PUBLISHER, scratch, PUBLISH)
    assert removed(area, PUBLISH)


@pytest.fixture
def open_folder() -> Iterator[FolderArea]:
    """An area that Squid and XRootD can enter, which have no rights of root."""
    with tempfile.TemporaryDirectory(prefix="nightshift-readers-") as name:
        Path(name).chmod(0o755)
        area = FolderArea(Path(name), "run-1")
        area.create()
        yield area


DATA_SET = StreamLoad(LoadAccess.PUBLISH, "set", streams=1, file_bytes=6 * MIB, block_bytes=MIB, files=4)


@pytest.mark.server("nginx", "squid", "xrootd")
def test_jobs_read_right_bytes_by_every_way_and_caches_spare_the_origin(open_folder: FolderArea, scratch: Path) -> None:
    folder = open_folder
    (made,) = run(folder, RunnerKind.READERS, scratch, DATA_SET).loads
    assert (made.operations, made.bytes) == (4, 24 * MIB)
    shares = {}
    for way in ReaderWay:
        load = replace(DATA_SET, access=LoadAccess.READ, streams=3, way=way, each=2)
        (folder.folder / "set" / "origin_s").unlink(missing_ok=True)  # what others may take: a busy moment is longer
        (read,) = run(folder, RunnerKind.READERS, scratch, load, seconds=120).loads
        assert read.times
        assert (read.operations, read.failed, read.times.wrong) == (12, 0, 0), way
        assert (len(read.times.jobs), len(read.times.files), read.bytes) == (3, 6, 12 * 6 * MIB)
        shares[way] = read.times.origin_share
    set_read = len({name for number in range(3) for name in random.Random(f"flux/{number}").sample(range(4), 2)}) / 4
    assert shares[ReaderWay.ORIGIN] == shares[ReaderWay.SQUID] == 3, "objects are above the default limit of Squid"
    assert shares[ReaderWay.NGINX] == shares[ReaderWay.SQUID_RAISED] == set_read
    assert shares[ReaderWay.XCACHE] == pytest.approx(set_read, abs=0.05)
    assert shares[ReaderWay.ALIEN_WARM] == pytest.approx(1, abs=0.01), "all of it, once"
    assert shares[ReaderWay.LOCAL] == 1.5, "a job each: the second time is spared"
    assert shares[ReaderWay.ALIEN_COLD] <= 1.5


@pytest.mark.server("nginx")
def test_damage_is_counted_and_a_way_that_takes_too_long_is_stopped(folder: FolderArea, scratch: Path) -> None:
    run(folder, RunnerKind.READERS, scratch, DATA_SET)
    place = folder.folder / "set"
    for name in json.loads((place / "set.json").read_text()):
        path = place / "www" / DATA_FQRN / ObjectHash.parse(name).key
        path.write_bytes(b"x" * path.stat().st_size)
    load = replace(DATA_SET, access=LoadAccess.READ, streams=2, way=ReaderWay.NGINX, each=4)
    (read,) = run(folder, RunnerKind.READERS, scratch, load, seconds=60).loads
    assert read.times
    assert (read.failed, read.times.wrong, read.operations) == (16, 16, 0)
    slow = replace(load, way=ReaderWay.LIMITED, streams=8)
    stopped = run(folder, RunnerKind.READERS, scratch, slow, seconds=1)
    assert stopped.missing[0].startswith("not ended: 0 of 8 jobs were done after 1 s, which is its step's limit")


@pytest.mark.server("radosgw")
def test_osds_count_what_a_step_did_and_what_may_not_be_asked_is_a_note(
    pool: NamespaceArea, cluster: CephCluster, scratch: Path
) -> None:
    rights = ("mon", "allow r", "osd", "allow rwx pool=bench")
    cluster.ceph("auth", "get-or-create", "client.weak", *rights, "-o", str(cluster.keyring_of("client.weak")))
    admin, weak = (CephAccess(conf=cluster.conf, user=user) for user in ("admin", "weak"))
    with WatchedServers(0.5, ceph=admin).during() as seen, WatchedServers(0.5, ceph=weak).during() as dimly:
        before = osd_writes(cluster)
        run(pool, RunnerKind.RADOS, scratch, replace(WRITE, files=10), seconds=60)
        operations, seconds = (after - old for after, old in zip(osd_writes(cluster), before, strict=True))
        view, poor = seen(), dimly()
    writes = merged_latencies(replace(one, osd=0) for one in view.latencies if one.access is LoadAccess.WRITE)
    assert (view.notes, writes[0].operations) == ((), operations)
    mean_ms = writes[0].mean_ms()
    assert mean_ms is not None
    assert 0.5 < mean_ms / (1000 * seconds / operations) < 2, "buckets double; nanoseconds, whatever their axis says"
    assert view.commit_ms.keys() == {0, 1}
    assert [machine.name for machine in view.machines] == ["this machine"]
    assert (poor.latencies, len(poor.notes) > 0, len(poor.recovery) > 0) == ((), True, True)


def osd_writes(cluster: CephCluster) -> tuple[int, float]:
    """How many operations wrote, and their time in seconds, as the OSDs sum them."""
    dumps = [json.loads(cluster.ceph("tell", f"osd.{osd}", "perf", "dump", "osd")) for osd in range(2)]
    sums = [dump["osd"]["op_w_latency"] for dump in dumps]
    return sum(int(one["avgcount"]) for one in sums), sum(float(one["sum"]) for one in sums)


@pytest.mark.server("radosgw")
def test_rados_bench_measures_a_pool_in_namespaces_of_the_run(pool: RunArea, scratch: Path) -> None:
    load = replace(WRITE, files=10)
    written = run(pool, RunnerKind.RADOS, scratch, load, seconds=5).loads[0]
    assert 0 < written.operations <= 80
    assert written.mean_ms is not None
    read = run(pool, RunnerKind.RADOS, scratch, reading(load)).loads[0]
    assert read.bytes == read.operations * MIB
    assert len(pool.remove().left) > 1
    assert removed(pool, load)
