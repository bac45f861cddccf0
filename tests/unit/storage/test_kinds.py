"""Every store says of what kind it is, and every scheme names one kind: whether it is local is never a default."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.cvmfs.ingest.upload import JournaledStore, UploadJournal
from include.storage.errors import StoreError
from include.storage.file import FileStore
from include.storage.kinds import FILE, HTTP, S3, SCHEMES, StoreKind, kind_of
from include.storage.open import OPENERS, open_store
from include.storage.store import Store
from tests.fakes.farstore import FAR, FarStore
from tests.fakes.minirepo import NOW


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("file:///srv/cvmfs", FILE),
        ("s3://bucket/x", S3),
        ("S3://bucket/x", S3),
        ("http://host/x", HTTP),
        ("HTTPS://host/x", HTTP),
    ],
)
def test_a_store_is_of_the_kind_that_its_url_names(url: str, kind: StoreKind) -> None:
    store = open_store(url)
    assert (kind_of(url), store.kind, store.child("below").kind) == (kind, kind, kind)
    assert (store.is_local, store.writable) == (kind.is_local, kind.writable)


def test_only_folders_are_local_and_only_http_is_read_only() -> None:
    assert [kind.is_local for kind in (FILE, S3, HTTP)] == [True, False, False]
    assert [kind.writable for kind in (FILE, S3, HTTP)] == [True, True, False]


@pytest.mark.parametrize("url", ["", "folder/x", "file:/x", "far://pool/x", "://x"])
def test_a_url_of_no_known_scheme_is_of_no_kind(url: str) -> None:
    with pytest.raises(StoreError):
        kind_of(url)


def test_every_scheme_is_of_a_kind_that_can_be_opened() -> None:
    assert set(OPENERS) == set(SCHEMES.values())


def test_a_store_that_does_not_say_its_kind_cannot_be_made() -> None:
    silent = type("Silent", (FarStore,), {"kind": Store.kind})
    assert silent.__abstractmethods__ == {"kind"}
    with pytest.raises(TypeError):
        silent()


def test_a_journaled_store_is_of_the_kind_of_the_store_behind_it(tmp_path: Path) -> None:
    journal = UploadJournal(tmp_path, about=("x",), generation=0, now=NOW)
    assert JournaledStore(FarStore(), journal).kind is FAR
    assert JournaledStore(FileStore(tmp_path), journal).kind is FILE
