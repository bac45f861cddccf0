"""Names find the storage that speaks the protocol of their URLs; folders of this machine are one kind of it."""

from __future__ import annotations

import errno
import os
import zlib

import pytest

from include.fts.states import FailureReason
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED, PLACE_UNSUPPORTED, XRDFS_MISSING
from include.stageout.places.facts import FileFacts, PlaceOptions, checksum_of, read_back
from include.stageout.places.open import STORAGES, open_place
from tests.fakes.refused import refused

ADLER32, CRC32C, READ_BACK, NONE = ChecksumMode
AREA = "/store/temp/user/ann"


def site_of(*urls, prefix="/store", **fields):
    rules = [{"prefix": prefix, "url": url} for url in urls]
    return RemoteSite.model_validate({"name": "lab", "read": rules, "write": rules, **fields})


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "site"
    (root / "temp/user/ann/sub").mkdir(parents=True)
    (root / "temp/user/bob").mkdir()
    (root / "temp/user/ann/a.root").write_bytes(b"hello\n")
    (root / "temp/user/ann/sub/b.root").write_bytes(b"")
    (root / "temp/user/bob/c.root").write_bytes(b"bob's")
    return root


@pytest.fixture
def place(root):
    return open_place(site_of(root.as_uri()))


def test_a_file_has_its_size_and_the_checksum_that_is_asked_for(place):
    names = [f"{AREA}/a.root", f"{AREA}/sub/b.root", f"{AREA}/none.root", f"{AREA}/a.root/x"]
    with_sum = [FileFacts(6, "adler32:084b021f"), FileFacts(0, "adler32:00000001"), None, None]
    without = [FileFacts(6, None), FileFacts(0, None), None, None]
    for mode, expected in ((ADLER32, without), (READ_BACK, with_sum), (CRC32C, without), (NONE, without)):
        assert place.look(names, checksum=mode) == dict(zip(names, expected, strict=True))


def test_a_removed_file_is_gone_and_so_is_one_that_did_not_exist(place, root):
    names = [f"{AREA}/a.root", f"{AREA}/none.root", f"{AREA}/none/x.root"]
    for _ in range(2):
        assert place.remove(names) == dict.fromkeys(names)
    assert not (root / "temp/user/ann/a.root").exists()
    assert (root / "temp/user/ann/sub/b.root").exists()


def test_files_are_listed_at_any_depth(place):
    assert {name: size for name, size, _ in place.listed("/store/temp")} == {
        f"{AREA}/a.root": 6, f"{AREA}/sub/b.root": 0, "/store/temp/user/bob/c.root": 5,
    }  # fmt: skip
    [(_, _, modified)] = place.listed("/store/temp/user/bob")
    assert modified.tzinfo is not None
    assert list(place.listed("/store/temp/none")) == []


def test_a_link_leads_to_no_file_of_another_user(place, root):
    folder = root / "temp/user/ann"
    (folder / "dir").symlink_to(root / "temp/user/bob")
    (folder / "file").symlink_to(root / "temp/user/bob/c.root")
    names = [f"{AREA}/dir/c.root", f"{AREA}/file"]
    for answers in (place.look(names, checksum=READ_BACK), place.remove(names)):
        assert [answer.errno for answer in answers.values()] == [errno.ELOOP, errno.EISDIR]
    assert (root / "temp/user/bob/c.root").exists()
    assert f"{AREA}/dir/c.root" not in {name for name, _, _ in place.listed("/store/temp")}


def test_a_folder_is_no_file_and_a_storage_that_hangs_holds_up_no_whole_batch(place, root):
    for answers in (place.look([f"{AREA}/sub"], checksum=NONE), place.remove([f"{AREA}/sub"])):
        assert answers[f"{AREA}/sub"].errno == errno.EISDIR
    assert (root / "temp/user/ann/sub").is_dir()
    hurried = open_place(place._site, options=PlaceOptions(batch_s=-1))
    answers = hurried.look([f"{AREA}/a.root", f"{AREA}/sub/b.root"], checksum=NONE)
    assert [answer.errno for answer in answers.values()] == [errno.ETIMEDOUT, errno.ETIMEDOUT]


def test_what_was_read_is_all_of_the_file_or_nothing_and_checksums_have_one_form():
    data = os.urandom(3000)
    blocks = [data[:1000], data[1000:]]
    assert read_back(blocks, 3000) == FileFacts(3000, f"adler32:{zlib.adler32(data):08x}")
    assert [read_back(blocks, size).errno for size in (2999, 3001)] == [errno.EIO, errno.EIO]
    assert checksum_of("adler32", "A1B2C3D") == "adler32:0a1b2c3d"
    assert checksum_of("crc32c", "00000000") == "crc32c:00000000"
    assert [checksum_of("adler32", text) for text in ("00000000", "0", "", "123456789", "xyz")] == [None] * 5


def test_a_storage_that_is_not_mounted_does_not_say_that_files_are_gone(tmp_path):
    place = open_place(site_of((tmp_path / "unmounted").as_uri()))
    answers = [place.look([f"{AREA}/a"], checksum=NONE), place.remove([f"{AREA}/a"])]
    assert [answer[f"{AREA}/a"].errno for answer in answers] == [errno.EIO, errno.EIO]
    with refused(PLACE_UNLISTED):
        list(place.listed("/store/temp"))


def test_one_name_without_url_does_not_keep_others_from_an_answer(place):
    answers = place.look([f"{AREA}/a.root", "/other/a.root", "/store/../x"], checksum=NONE)
    assert answers.pop(f"{AREA}/a.root") == FileFacts(6, None)
    assert [answer.errno for answer in answers.values()] == [errno.EOPNOTSUPP, errno.EOPNOTSUPP]


def test_a_listed_name_whose_own_url_is_another_one_is_left_out(root, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    rules = [{"prefix": AREA, "url": other.as_uri()}, {"prefix": "/store", "url": root.as_uri()}]
    place = open_place(RemoteSite.model_validate({"name": "lab", "read": rules}))
    assert {name for name, _, _ in place.listed("/store/temp")} == {"/store/temp/user/bob/c.root"}


class Recorded:
    """A storage that answers with the URLs that it is asked for."""

    def __init__(self, site, credential, options):
        self.closed = False

    def look(self, urls, *, checksum):
        return {url: FailureReason(None, None, url) for url in urls}

    def close(self):
        self.closed = True


def test_the_first_protocol_that_is_spoken_here_is_used(monkeypatch):
    monkeypatch.setattr("include.stageout.places.open.STORAGES", {**STORAGES, "http": Recorded})
    place = open_place(site_of("gsiftp://h/a", "davs://h/b", "root://h//c"))
    assert place.look(["/store/x"], checksum=NONE)["/store/x"].text == "davs://h/b/x"
    place.close()


def test_a_site_that_only_fts_reaches_is_refused():
    with refused(PLACE_UNSUPPORTED, subject="site lab"):
        open_place(site_of("gsiftp://h/a"))
    with refused(PLACE_UNSUPPORTED):
        open_place(site_of())
    mixed = RemoteSite.model_validate({
        "name": "lab",
        "read": [{"prefix": "/store", "url": "gsiftp://h/a"}],
        "write": [{"prefix": "/store", "url": "davs://h/a"}],
    })  # fmt: skip
    answer = open_place(mixed).look(["/store/x"], checksum=NONE)["/store/x"]
    assert (answer.errno, PLACE_UNSUPPORTED.hint in answer.text) == (errno.EOPNOTSUPP, True)


def test_what_a_deployment_lacks_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for url, row in (
        ("root://h//a", XRDFS_MISSING),
        ("s3://h/b", PLACE_UNSUPPORTED),
        ("mock://h/b", PLACE_UNSUPPORTED),
    ):
        with refused(row, subject="site lab"):
            open_place(site_of(url)).look(["/store/x"], checksum=NONE)
