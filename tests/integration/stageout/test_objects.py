"""Files of a site that is an object store of the deployment, on each real server."""

from __future__ import annotations

import errno
import zlib

import pytest

from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.places.facts import FileFacts, PlaceOptions
from include.stageout.places.open import open_place
from include.stageout.places.verify import CopyVerdict, judge_copies
from include.storage.kinds import Credentials
from include.storage.open import open_store
from include.storage.s3 import MULTIPART_FROM_BYTES
from tests.fakes.transfers import transfer

ADLER32, CRC32C, READ_BACK, NONE = ChecksumMode
A, B, ABSENT = "/store/user/ann/a b.root", "/store/user/ann/b.root", "/store/user/ann/none.root"
DATA = bytes(range(256)) * (MULTIPART_FROM_BYTES // 256 + 1)


def site_of(store, host="s3.example.org", **fields):
    rules = [{"prefix": "/store", "url": f"s3://{host}/{store.url.partition('://')[2]}/cms"}]
    return RemoteSite.model_validate({"name": "cloud", "read": rules, "write": rules, **fields})


@pytest.fixture
def place(s3_store):
    s3_store.put("cms/user/ann/a b.root", DATA)
    s3_store.put("cms/user/ann/b.root", b"")
    return open_place(site_of(s3_store), options=PlaceOptions(store=s3_store))


def test_objects_have_a_size_and_are_read_for_a_checksum(place):
    for mode in (ADLER32, CRC32C, NONE):
        assert place.look([A, B, ABSENT], checksum=mode) == {
            A: FileFacts(len(DATA), None), B: FileFacts(0, None), ABSENT: None,
        }  # fmt: skip
    assert place.look([A, ABSENT], checksum=READ_BACK) == {
        A: FileFacts(len(DATA), f"adler32:{zlib.adler32(DATA):08x}"), ABSENT: None,
    }  # fmt: skip


def test_objects_are_listed_and_removed(place, s3_store):
    s3_store.put("other/x", b"1")
    assert {name: size for name, size, _ in place.listed("/store/user")} == {A: len(DATA), B: 0}
    for _ in range(2):
        assert place.remove([A, ABSENT]) == {A: None, ABSENT: None}
    assert {meta.key for meta in s3_store.list()} == {"cms/user/ann/b.root", "other/x"}


def test_a_url_of_another_bucket_is_not_taken_for_an_object_of_the_store(s3_store):
    rules = [{"prefix": "/store", "url": "s3://s3.example.org/other/cms"}]
    site = RemoteSite.model_validate({"name": "cloud", "read": rules, "write": rules})
    place = open_place(site, options=PlaceOptions(store=s3_store))
    for answers in (place.look([A], checksum=NONE), place.remove([A])):
        assert answers[A].errno == errno.EOPNOTSUPP


def test_the_store_refuses_for_every_file(s3_server, s3_store):
    wrong = open_store(s3_store.url, credentials=Credentials("nightshift", "wrong"), options=s3_server.options())
    place = open_place(site_of(s3_store), options=PlaceOptions(store=wrong))
    for answers in (place.look([A], checksum=NONE), place.remove([A])):
        assert answers[A].errno == errno.EACCES


def test_a_copy_in_an_object_store_is_verified_by_reading_it(place, s3_store):
    requested = f"adler32:{zlib.adler32(DATA):08x}"
    files = [
        transfer(id=1, source_name="/store/temp/a", destination_name=A, size=len(DATA), checksum=requested),
        transfer(id=2, source_name="/store/temp/b", destination_name=B, size=0, checksum="adler32:0a1b2c3d"),
        transfer(id=3, source_name="/store/temp/c", destination_name=ABSENT, size=1),
    ]
    decided = judge_copies(site_of(s3_store), files, destination=place, source=lambda _: place)
    assert {number: decision.verdict for number, decision in decided.items()} == {
        1: CopyVerdict.VERIFIED, 2: CopyVerdict.DIFFERS, 3: CopyVerdict.MISSING,
    }  # fmt: skip
    assert (decided[1].checksum, decided[1].proof) == (requested, True)
