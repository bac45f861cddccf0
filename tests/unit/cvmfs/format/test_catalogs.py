"""The cache of catalogs gives the catalog of that name, and never more than fits."""

from __future__ import annotations

import pytest

from include.cvmfs.errors import FormatError, ObjectDamaged
from include.cvmfs.format import catalogs
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, Algorithm, hash_bytes
from include.cvmfs.format.objects import compress
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused


def test_a_catalog_that_unpacks_to_more_than_is_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "CATALOG_BYTES", 1 << 16)
    store, packed = MemoryStore(), compress(bytes((1 << 16) + 1))
    name = hash_bytes(packed, Algorithm.SHA1, CATALOG)
    store.put(name.key, packed)
    with refused(FormatError, what="zlib stream"):
        CatalogCache(store).database(name)


def test_a_catalog_under_another_name_is_damaged() -> None:
    store = MemoryStore()
    name = hash_bytes(b"another", Algorithm.SHA1, CATALOG)
    store.put(name.key, compress(b"content"))
    with pytest.raises(ObjectDamaged):
        CatalogCache(store).database(name)
