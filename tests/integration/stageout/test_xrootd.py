"""Files of a real XRootD server, by its own protocol and by HTTP."""

from __future__ import annotations

import errno
import zlib
from datetime import UTC, datetime, timedelta

import pytest

from include.fts.transport import BearerToken, X509Files
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED
from include.stageout.places import xrootd as xrootd_module
from include.stageout.places.facts import FileFacts, PlaceOptions
from include.stageout.places.open import open_place
from tests.fakes.refused import refused
from tests.servers.xrootd import XrootdServer

ADLER32, CRC32C, READ_BACK, NONE = ChecksumMode
DATA = bytes(range(256)) * 9000
ADLER = f"adler32:{zlib.adler32(DATA):08x}"


@pytest.fixture(scope="module")
def server(need):
    need("xrdfs")
    with XrootdServer(need("xrootd"), "127.0.0.1") as running:
        yield running


def place_at(url, credential=None):
    rules = [{"prefix": "/store", "url": f"{url.rstrip('/')}{'/' if url.startswith('root:') else ''}/store"}]
    site = RemoteSite.model_validate({"name": "pisa", "read": rules, "write": rules})
    return open_place(site, credential, PlaceOptions(timeout_s=30))


@pytest.fixture(params=["root", "http"])
def place(server, request):
    opened = place_at(server.root_url if request.param == "root" else server.url)
    yield opened
    opened.close()


def test_files_are_looked_at_read_listed_and_removed(place, server, request):
    folder = f"/store/{request.node.callspec.id}"
    names = [f"{folder}/a.root", f"{folder}/sub/b.root"]
    for name, content in zip(names, (DATA, b""), strict=True):
        server.put(name.removeprefix("/store/"), content)
    a, b, absent = *names, f"{folder}/none.root"
    for mode in (ADLER32, READ_BACK):
        assert place.look([a, b, absent], checksum=mode) == {
            a: FileFacts(len(DATA), ADLER), b: FileFacts(0, "adler32:00000001"), absent: None,
        }  # fmt: skip
    crc = place.look([a], checksum=CRC32C)[a].checksum
    assert (crc.partition(":")[0], len(crc)) == ("crc32c", len("crc32c:00000000"))
    [facts] = place.look([a], checksum=NONE).values()
    assert facts == FileFacts(len(DATA), None)
    if request.node.callspec.id == "root":  # by HTTP this server tells no time
        assert abs(datetime.now(UTC) - facts.modified) < timedelta(minutes=1)
    assert {name: size for name, size, _ in place.listed(folder)} == {a: len(DATA), b: 0}
    assert all(modified.tzinfo for _, _, modified in place.listed(folder))
    assert list(place.listed(f"{folder}/none")) == []
    for _ in range(2):
        assert place.remove([a, absent]) == {a: None, absent: None}
    assert place.look([a, b], checksum=NONE) == {a: None, b: FileFacts(0, None)}


def test_both_protocols_report_the_same_crc32c(server):
    server.put("crc.root", DATA)
    [first], [second] = (
        place_at(url).look(["/store/crc.root"], checksum=CRC32C).values() for url in (server.root_url, server.url)
    )
    assert first == second


def test_a_folder_is_no_file_and_is_not_removed_with_what_is_in_it(server):
    server.put("full/a.root", b"1")
    place = place_at(server.root_url)
    assert place.look(["/store/full"], checksum=NONE)["/store/full"].errno == errno.EISDIR
    assert place.remove(["/store/full"])["/store/full"] is not None
    assert server.get("full/a.root") == b"1"


def test_a_server_that_is_not_there_says_nothing_of_files():
    place = place_at("root://127.0.0.1:1/")
    assert place.look(["/store/a"], checksum=ADLER32)["/store/a"].errno == errno.ECOMM
    assert place.remove(["/store/a"])["/store/a"].errno == errno.ECOMM
    with refused(PLACE_UNLISTED):
        list(place.listed("/store"))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program in the place of xrdfs, that writes down its environment and then does what the test says."""

    def replace(script):
        path = tmp_path / "xrdfs"
        path.write_text(f'#!/bin/sh\nenv > "{tmp_path}/environment"\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "environment"

    return replace


def test_a_users_credential_goes_to_the_program_and_that_of_the_process_does_not(program, monkeypatch):
    monkeypatch.setenv("BEARER_TOKEN", "of-the-process")
    monkeypatch.setenv("X509_USER_CERT", "/of/the/process")
    environment = program("exit 1")
    for credential, expected in (
        (None, {"X509_USER_PROXY=/dev/null"}),
        (BearerToken("of-ann"), {"BEARER_TOKEN=of-ann", "X509_USER_PROXY=/dev/null"}),
        (X509Files("/ann.pem"), {"X509_USER_PROXY=/ann.pem"}),
        (X509Files("/ann.pem", "/ann.key"), {"X509_USER_CERT=/ann.pem", "X509_USER_KEY=/ann.key"}),
    ):
        place_at("root://h/", credential).look(["/store/a"], checksum=NONE)
        given = {line for line in environment.read_text().splitlines() if line.startswith(("BEARER_", "X509_USER"))}
        assert given == expected


OUTPUTS = {
    "[ERROR] Server responded with an error: [3010] Unable to open; permission denied": errno.EACCES,
    "[ERROR] Server responded with an error: [3007] I/O error": errno.EIO,
    "[FATAL] Auth failed": errno.ECOMM,
    "": errno.ECOMM,
}


@pytest.mark.parametrize(("text", "number"), OUTPUTS.items())
def test_what_the_server_refuses_is_an_answer(program, text, number):
    program(f"echo '{text}' >&2; exit 54")
    place = place_at("root://h/")
    assert place.look(["/store/a"], checksum=ADLER32)["/store/a"].errno == number
    assert place.remove(["/store/a"])["/store/a"].errno == number


def test_a_program_that_prints_something_else_says_nothing(program):
    program("echo 'Size: many'; echo 'Flags: IsReadable'")
    place = place_at("root://h/")
    assert place.look(["/store/a"], checksum=ADLER32)["/store/a"].errno == errno.EPROTO
    assert list(place.listed("/store")) == []


def test_a_name_that_is_no_utf8_is_not_taken_for_another(program):
    line = "-rw-r--r-- ann cms 6 2026-11-01 12:00:00 /store"
    program(f"printf -- '{line}/a\\377\\n{line}/b\\n{line}temp/c\\n'")
    assert [name for name, _, _ in place_at("root://h/").listed("/store")] == ["/store/b"]


def test_a_file_that_is_cut_off_or_does_not_end_has_no_checksum(program, monkeypatch):
    stat = 'case "$2" in stat) echo "Size:   6"; exit 0;; esac'
    program(f"{stat}; printf hel")
    assert place_at("root://h/").look(["/store/a"], checksum=READ_BACK)["/store/a"].errno == errno.EIO
    program(f"{stat}; exec yes")
    assert place_at("root://h/").look(["/store/a"], checksum=READ_BACK)["/store/a"].errno == errno.EIO
    monkeypatch.setattr(xrootd_module, "_BYTES_A_SECOND", 1e12)
    program(f"{stat}; exec sleep 60")
    hurried = PlaceOptions(timeout_s=0.2)
    rules = [{"prefix": "/store", "url": "root://h//store"}]
    place = open_place(RemoteSite.model_validate({"name": "pisa", "read": rules}), options=hurried)
    assert place.look(["/store/a"], checksum=READ_BACK)["/store/a"].errno == errno.EIO
