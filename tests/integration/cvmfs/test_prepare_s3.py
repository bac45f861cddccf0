"""Preparing into a real S3 server: by plain PUTs alone everything is there afterwards, for the public too."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.sources.tarball import TarSource
from include.storage.errors import StoreError
from include.storage.kinds import Credentials
from include.storage.open import open_store
from include.storage.store import Store
from lab.servers.s3 import S3Server
from tests.fakes.archives import archive, file, hardlink, symlink
from tests.fakes.recount import read_back

NOW = datetime(2026, 7, 1, tzinfo=UTC)
BIG = random.Random(1).randbytes(3_000_000)
TREE = archive(
    [file(f"d{number % 4}/f{number}", b"%d" % (number % 120) * 500) for number in range(240)]
    + [file(f"d{number}/.cvmfscatalog") for number in range(3)]
    + [file("big", BIG), hardlink("also", "big"), symlink("latest", "d1")]
)
OPTIONS = PrepareOptions(chunking=ChunkLimits(1 << 18, 1 << 19, 1 << 20))


def run(store: Store, data: bytes = TREE, **fields: object) -> Changeset:
    arguments: dict[str, object] = {"fqrn": "r", "destination": "/n/x", "now": NOW, "options": OPTIONS} | fields
    return prepare(TarSource(io.BytesIO(data), "tree.tar"), store=store, **arguments)  # type: ignore[arg-type]


def test_a_prepared_tree_is_stored_whole_and_readable_by_everybody(s3_store: Store, public_url: str) -> None:
    changeset = run(s3_store)
    assert s3_store.counters.puts == changeset.objects_new
    assert s3_store.counters.heads == s3_store.counters.gets == 0
    assert len(list(s3_store.list())) == changeset.objects_new
    found, statistics = read_back(open_store(public_url), changeset.reference)
    assert statistics == changeset.statistics
    assert found["/n/x/big"].content == found["/n/x/also"].content == BIG
    assert changeset.catalogs == 4


def test_a_server_that_is_not_there_is_the_stores_own_error(s3_server: S3Server, s3_prefix: str) -> None:
    options = replace(s3_server.options(), endpoint="http://127.0.0.1:9", retries=0, timeout_s=2)
    gone = open_store(f"s3://nights/{s3_prefix}", credentials=Credentials("a", "b"), options=options)
    with pytest.raises(StoreError) as failure:
        run(gone)
    assert failure.value.retryable
