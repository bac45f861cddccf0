"""Pins are what clients mount with and what the settings name, also while the origins are away."""

from __future__ import annotations

import os

import pytest

from include.aliencache.cache import AlienCache
from include.aliencache.contents import PinnedObjects, Wanted, catalogs_in, pinned_objects
from include.aliencache.errors import ORIGIN_FAILED, PIN_UNKNOWN
from include.aliencache.warm import WarmOptions, warm
from include.cvmfs.format.catalog import PackedCatalog
from include.cvmfs.revision.repository import Repository
from include.settings.caches import Pins
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, MiniRepository, opened
from tests.fakes.refused import refused


def pinned(cache: AlienCache, mini: MiniRepository, **pins: object) -> PinnedObjects:
    return pinned_objects(cache, [FQRN], lambda _: opened(mini.store), Pins(**pins))  # type: ignore[arg-type]


def away(_: str) -> Repository:
    raise ORIGIN_FAILED("/cache", "no origin can be read")


def test_catalogs_of_breadcrumbs_and_the_certificate_are_pinned(cache: AlienCache, mini: MiniRepository) -> None:
    warm(cache, opened(mini.store), [mini.store], WarmOptions(Wanted()))
    manifest = mini.manifest
    assert manifest is not None
    assert manifest.certificate is not None
    assert len(list(catalogs_in(cache, [manifest.root]))) == 3
    digests = pinned(cache, mini)
    assert manifest.root.digest in digests
    assert manifest.certificate.digest in digests
    assert mini.entries["/readme"].hash.digest not in digests  # type: ignore[union-attr]
    assert len(digests) == 4


def test_paths_are_pinned_and_kept_while_the_origins_are_away(cache: AlienCache, mini: MiniRepository) -> None:
    name = mini.entries["/sw/app/lib/code"].hash
    assert name is not None
    assert name.digest in pinned(cache, mini, paths=("/sw/app/lib",))
    later = pinned_objects(cache, [FQRN], away, Pins())
    assert name.digest in later
    assert len(later.notes) == 1


def test_a_pin_that_names_nothing_is_refused(cache: AlienCache, mini: MiniRepository) -> None:
    with refused(PIN_UNKNOWN):
        pinned(cache, mini, paths=("/absent",))
    with refused(PIN_UNKNOWN):
        pinned(cache, mini, tags=("absent",))


def test_a_breadcrumb_that_cannot_be_read_is_noted(cache: AlienCache, mini: MiniRepository) -> None:
    (cache.path / f"cvmfschecksum.{FQRN}").write_text("?")
    assert len(pinned(cache, mini).notes) == 1


def test_each_misspelt_pin_is_refused_and_one_of_another_repository_is_not(
    cache: AlienCache, mini: MiniRepository
) -> None:
    with refused(PIN_UNKNOWN):
        pinned(cache, mini, paths=("/sw/app/lib", "/sw/ap/lib"))
    other = MiniRepository(MemoryStore(), fqrn="other.example.org")
    other.directory("/elsewhere")
    other.build().publish()
    stores = {FQRN: mini.store, "other.example.org": other.store}
    pins = Pins(paths=("/sw/app/lib", "/elsewhere"))
    found = pinned_objects(cache, stores, lambda fqrn: opened(stores[fqrn], fqrn=fqrn), pins)
    assert mini.entries["/sw/app/lib/code"].hash.digest in found  # type: ignore[union-attr]


def test_catalogs_in_use_are_pinned_where_a_clients_breadcrumb_cannot_be_read(
    cache: AlienCache, mini: MiniRepository
) -> None:
    warm(cache, opened(mini.store), [mini.store], WarmOptions(Wanted()))
    (cache.path / f"cvmfschecksum.{FQRN}").write_text("?")
    deep = PackedCatalog.of(mini.databases["/sw/app/lib/deep"]).hash
    assert deep.digest in pinned(cache, mini)


def test_a_dry_run_keeps_nothing_and_a_full_cache_stops_nothing(
    cache: AlienCache, mini: MiniRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned_objects(cache, [FQRN], lambda _: opened(mini.store), Pins(), dry_run=True)
    assert list((cache.path / ".nightshift").glob("pins.*")) == []

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert len(pinned(cache, mini).notes) == 1
