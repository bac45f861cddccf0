"""Stock publishers publish through the real service into real stores: nothing lost, nothing reverted, `check` clean."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.objects import load
from include.storage.store import Store
from tests.fakes.collector import Collector
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.refused import refused
from tests.fakes.stockpublisher import DIRECTORY, StockPanic, StockPublisher, StockWire
from tests.fakes.together import together
from tests.integration.conftest import AGAIN_ON_S3
from tests.site import DESTINATIONS, FQRN, Deployment


@pytest.fixture
def file_site(tmp_path: Path) -> Iterator[Deployment]:
    """A repository in files."""
    site = Deployment(tmp_path).with_gateway()
    yield site
    site.close()


@pytest.fixture
def any_site(known_store: Store, any_public_url: str, tmp_path: Path) -> Iterator[Deployment]:
    """A repository in each kind of store."""
    site = Deployment(tmp_path, known_store, any_public_url).with_gateway()
    yield site
    site.close()


def stock(site: Deployment) -> StockPublisher:
    return StockPublisher(FQRN, StockWire(site.url, KEY_ID, SECRET), site.readers)


def contents(site: Deployment, base: str = "") -> dict[str, bytes]:
    """All files below a path as readers get them, chunks put together."""
    repository, found = site.readers(), {}
    pending = [base]
    while pending:
        above = pending.pop()
        for entry in repository.revision.listing(above):
            path = f"{above}/{entry.name}"
            if entry.is_directory:
                pending.append(path)
            elif entry.is_regular:
                names = [one.hash for one in repository.revision.chunks(path)] if entry.chunked else [entry.hash]
                found[path] = b"".join(load(site.store, name) for name in names if name)
    return found


def tree(seed: int, *, large: int = 200_000) -> dict[str, bytes]:
    """Some files in plain and nested directories, one of many chunks."""
    randomly = random.Random(seed)
    files = {f"d{n % 4}/f{n}": randomly.randbytes(randomly.randrange(2000)) for n in range(40)}
    files |= {f"lib/sub{n}/g{n}": b"%d" % n for n in range(10)}
    files |= {"lib/.cvmfscatalog": b"", "lib/sub3/.cvmfscatalog": b"", "big": randomly.randbytes(large)}
    return files


@AGAIN_ON_S3
def test_an_ingested_tree_is_there_for_everybody_and_check_is_clean(any_site: Deployment) -> None:
    publisher, files = stock(any_site), tree(1)
    with publisher.transaction("/soft") as transaction:
        publisher.ingest(transaction, "/soft", files)
        assert publisher.publish(transaction, tag="v1") == 1
    assert publisher.payloads > 3, "several packs"
    found = contents(any_site, "/soft")
    assert {path: data for path, data in found.items() if not path.endswith("catalog")} == {
        f"/soft/{path}": data for path, data in files.items() if not path.endswith("catalog")
    }
    repository = any_site.readers()
    assert repository.revision.nested_at("/soft/lib/sub3") is not None
    assert len(repository.revision.chunks("/soft/big")) > 3
    assert {tag.name for tag in repository.tags()} >= {"v1"}
    any_site.assert_sound()


def test_a_second_publication_changes_replaces_and_removes(file_site: Deployment) -> None:
    publisher = stock(file_site)
    with publisher.transaction("/soft") as transaction:
        publisher.ingest(transaction, "/soft", tree(1))
        publisher.publish(transaction)
    with publisher.transaction("/soft") as transaction:
        edit = transaction.edit
        publisher.write(transaction, "/soft/big", os.urandom(150_000))
        publisher.write(transaction, "/soft/lib/sub3/g3", b"another")
        edit.remove("/soft/d0")
        edit.remove("/soft/d1/f1")
        publisher.write(transaction, "/soft/d0", b"a file where a directory was")
        edit.remove("/soft/lib/sub4/g4")
        edit.add("/soft/lib/sub4/g4", DIRECTORY)
        publisher.write(transaction, "/soft/lib/sub4/g4/inner", b"a directory where a file was")
        assert publisher.publish(transaction) == 2
        wanted = transaction.edit
    found = contents(file_site, "/soft")
    assert found["/soft/lib/sub3/g3"] == b"another"
    assert found["/soft/d0"] == b"a file where a directory was"
    assert found["/soft/lib/sub4/g4/inner"] == b"a directory where a file was"
    assert "/soft/d1/f1" not in found
    assert wanted.lookup("/soft/big") == file_site.readers().revision.lookup("/soft/big")
    file_site.assert_sound()


def test_owners_attributes_links_and_specials_are_kept(file_site: Deployment) -> None:
    publisher = stock(file_site)
    with publisher.transaction("/d") as transaction:
        transaction.edit.add("/d", DIRECTORY)
        for name in ("one", "two"):
            publisher.write(transaction, f"/d/{name}", b"shared", linkcount=2, hardlink_group=7)
        publisher.write(transaction, "/d/owned", b"x", xattr=bytes.fromhex("01010803757365722e666f6f626172"))
        transaction.edit.add("/d/pipe", Dirent("", stat.S_IFIFO | 0o600, mtime=1))
        publisher.publish(transaction)
    other = bytes.fromhex("01010803757365722e666f6f42415a")
    with publisher.transaction("/d") as transaction:
        catalog = transaction.edit.holder("/d/owned")
        entry = transaction.edit.lookup("/d/owned")
        transaction.edit.remove("/d/owned")
        transaction.edit.add("/d/owned", entry.changed(uid=1000, gid=1001, xattr=other))
        assert catalog.lookup("/d/owned").uid == 1000
        publisher.publish(transaction)
    repository = file_site.readers()
    entry = repository.revision.lookup("/d/owned")
    assert (entry.uid, entry.gid, entry.xattr) == (1000, 1001, other)
    links = [repository.revision.lookup(f"/d/{name}") for name in ("one", "two")]
    assert {(one.linkcount, one.hardlink_group) for one in links} == {(2, links[0].hardlink_group)}
    assert links[0].hardlink_group
    assert repository.revision.lookup("/d/pipe").is_special
    file_site.assert_sound()


def test_what_lies_outside_of_the_lease_is_refused_by_name_and_not_dropped_in_silence(file_site: Deployment) -> None:
    publisher = stock(file_site)
    with publisher.transaction("/d") as transaction:
        publisher.ingest(transaction, "/d", {"f": b"1"})
        publisher.ingest(transaction, "/elsewhere", {"f": b"2"})
        with refused(StockPanic, reason="merge_error") as caught:
            publisher.publish(transaction)
    assert "/elsewhere" in str(caught.value)
    publisher.wire.drop(transaction.token)
    assert contents(file_site) == {}
    file_site.assert_sound()


def test_a_stale_mount_takes_back_nothing_that_was_published_there_meanwhile(file_site: Deployment) -> None:
    first, second = stock(file_site), stock(file_site)
    with first.transaction("/d") as transaction:
        first.ingest(transaction, "/d", {"x": b"0"})
        first.publish(transaction)
    second.mount()
    with first.transaction("/d") as transaction:
        first.ingest(transaction, "/d", {"z": b"of the first"})
        first.publish(transaction)
    with second.transaction("/d") as transaction:
        second.ingest(transaction, "/d", {"y": b"of the second"})
        with pytest.raises(StockPanic) as caught:
            second.publish(transaction)
    assert caught.value.reason == "base_mismatch"
    second.wire.drop(transaction.token)
    assert contents(file_site) == {"/d/x": b"0", "/d/z": b"of the first"}
    second.mount()
    with second.transaction("/d") as transaction:
        second.ingest(transaction, "/d", {"y": b"of the second"})
        assert second.publish(transaction) == 3
    assert contents(file_site) == {"/d/x": b"0", "/d/y": b"of the second", "/d/z": b"of the first"}
    file_site.assert_sound()


@AGAIN_ON_S3
def test_two_stock_publishers_and_a_native_one_at_once_lose_nothing(any_site: Deployment) -> None:
    any_site.reserve(DESTINATIONS[:1])
    rounds = 4

    def stock_work(name: str) -> None:
        publisher = stock(any_site)
        for number in range(rounds):
            with publisher.transaction(f"/{name}") as transaction:
                publisher.ingest(transaction, f"/{name}", {f"r{number}/f{n}": b"%d" % n for n in range(20)})
                publisher.publish(transaction)

    def native_work() -> None:
        for number in range(rounds):
            changeset = any_site.prepared(DESTINATIONS[0], {f"f{n}": b"%d %d" % (number, n) for n in range(20)})
            any_site.worker().publish(changeset, holder="native", now=datetime.now(UTC))

    together([partial(stock_work, "one"), partial(stock_work, "two"), native_work])
    found = contents(any_site)
    expected = {f"/{name}/r{r}/f{n}": b"%d" % n for name in ("one", "two") for r in range(rounds) for n in range(20)}
    expected |= {f"{DESTINATIONS[0]}/f{n}": b"%d %d" % (rounds - 1, n) for n in range(20)}
    assert {path: data for path, data in found.items() if not path.endswith(".cvmfscatalog")} == expected
    any_site.assert_sound()


# -- beside a collection


OLD = {"bin/tool": b"both versions have it" * 100}


@pytest.fixture
def collecting(file_site: Deployment) -> Collector:
    """A collector with its list out: it condemns what the first version of ``/soft`` had."""
    publisher = stock(file_site)
    for files in (OLD, {"other": b"another"}):
        with publisher.transaction("/soft") as transaction:
            if transaction.edit.lookup("/soft") is not None:
                transaction.edit.remove("/soft")
            publisher.ingest(transaction, "/soft", files)
            publisher.publish(transaction)
    collector = file_site.collector()
    collector.to_the_list()
    return collector


def install(site: Deployment, files: dict[str, bytes], before_commit: Callable[[], object] = lambda: None) -> int:
    """Put a tree at ``/new`` in a transaction of its own; ``before_commit`` runs once all is sent."""
    publisher = stock(site)

    class Wire(StockWire):
        def commit(self, *arguments: object) -> dict[str, object]:
            before_commit()
            return super().commit(*arguments)  # type: ignore[arg-type]

    publisher.wire = Wire(site.url, KEY_ID, SECRET)
    with publisher.transaction("/new") as transaction:
        publisher.ingest(transaction, "/new", files)
        return publisher.publish(transaction)


def test_a_publication_that_needs_nothing_condemned_always_goes_on(
    file_site: Deployment, collecting: Collector
) -> None:
    revision = file_site.readers().manifest.revision
    publisher = stock(file_site)
    for number, step in enumerate(
        (lambda: None, lambda: collecting.sweep_shards(0), lambda: collecting.sweep_shards(128), collecting.end)
    ):
        with publisher.transaction(f"/new{number}") as transaction:
            publisher.ingest(transaction, f"/new{number}", {"file": b"%d" % number})
            step()  # between the mount and the first payload
            assert publisher.publish(transaction) == revision + 1 + number
    file_site.assert_sound()


def test_a_list_that_comes_out_between_payloads_and_commit_refuses_only_what_it_names(
    file_site: Deployment, collecting: Collector
) -> None:
    collecting.sweep_shards(256)
    collecting.end()

    def next_collection() -> None:
        collecting.begin()
        collecting.mark()
        collecting.condemn()

    install(file_site, {"bin/fresh": b"fresh"}, next_collection)
    file_site.assert_sound()


def test_what_needs_a_condemned_object_waits_until_its_shard_is_swept(
    file_site: Deployment, collecting: Collector
) -> None:
    before = file_site.readers().manifest.revision
    with refused(StockPanic, reason="generation_moved"):
        install(file_site, OLD)
    with refused(StockPanic, reason="generation_moved"):
        install(file_site, OLD, lambda: collecting.sweep_shards(256))
    assert file_site.readers().manifest.revision == before
    assert install(file_site, OLD) == before + 1
    collecting.end()
    file_site.assert_sound()
    assert contents(file_site, "/new") == {f"/new/{path}": data for path, data in OLD.items()}


def test_what_was_sent_before_a_collection_took_it_is_refused_when_that_has_ended(
    file_site: Deployment, collecting: Collector
) -> None:
    def swept_and_ended() -> None:
        collecting.sweep_shards(256)
        collecting.end()

    with refused(StockPanic, reason="generation_moved"):
        install(file_site, OLD, swept_and_ended)
    install(file_site, OLD)
    file_site.assert_sound()
