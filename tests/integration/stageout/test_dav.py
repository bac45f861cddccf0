"""Files of a site over HTTP and WebDAV, and what servers do that fail, lie or hang."""

from __future__ import annotations

import errno
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest

from include.fts.errors import CREDENTIAL_UNREADABLE
from include.fts.states import FailureReason
from include.fts.transport import BearerToken, X509Files
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED
from include.stageout.places import dav as dav_module
from include.stageout.places.dav import DavStorage
from include.stageout.places.facts import BLOCK, UNKNOWN_TIME, FileFacts, PlaceOptions
from include.stageout.places.open import open_place
from tests.fakes.certificates import Authority
from tests.fakes.davserver import DavServer, listed, multistatus
from tests.fakes.refused import refused

ADLER32, CRC32C, READ_BACK, NONE = ChecksumMode
AREA = "/store/temp/user/ann"
A, B, ABSENT = f"{AREA}/a.root", f"{AREA}/sub/b c.root", f"{AREA}/none.root"
OPTIONS = PlaceOptions(timeout_s=20)


def site_of(*urls: str, **fields):
    rules = [{"prefix": "/store", "url": f"{url}/cms"} for url in urls]
    return RemoteSite.model_validate({"name": "pisa", "read": rules, "write": rules, **fields})


@pytest.fixture
def place(dav: DavServer):
    opened = open_place(site_of(dav.url), options=OPTIONS)
    yield opened
    opened.close()


def errno_of(answers) -> set[int | None]:
    assert all(isinstance(answer, FailureReason) for answer in answers.values())
    return {answer.errno for answer in answers.values()}


def test_files_have_the_checksum_that_is_asked_for(place, dav):
    dav.digests = ("adler32", "crc32c")
    for mode, algorithm in ((ADLER32, "adler32"), (CRC32C, "crc32c"), (READ_BACK, "adler32")):
        assert place.look([A, B, ABSENT], checksum=mode) == {
            A: FileFacts(6, f"{algorithm}:084b021f"), B: FileFacts(0, f"{algorithm}:00000001"), ABSENT: None,
        }  # fmt: skip
    assert place.look([A], checksum=NONE) == {A: FileFacts(6, None)}
    assert place.look([], checksum=NONE) == {}
    dav.digests = ()
    assert place.look([A], checksum=ADLER32) == {A: FileFacts(6, None)}


@pytest.mark.parametrize(
    ("digest", "checksum"),
    [
        ("md5=1B2M2Y8AsgTpgAmY7PhCfg==, ADLER32=84b021f", "adler32:084b021f"),
        ("crc32c=NT3Yvg==", "crc32c:353dd8be"),
        ("adler32=00000000", None),
        ("adler32=none", None),
        ("adler32=" + "0a" * 3000, None),
        ("adler32", None),
        ("crc32c=====", None),
    ],
)
def test_a_digest_is_read_in_the_forms_of_servers(place, dav, digest, checksum):
    dav.answer("HEAD", "a.root", 200, Digest=digest, Content_Length="6")
    assert place.look([A], checksum=ADLER32) == {A: FileFacts(6, checksum)}


def test_many_files_are_looked_at_over_few_connections(place, dav):
    names = [f"{AREA}/{number}.root" for number in range(300)]
    dav.files |= {name.replace("/store", "/cms"): b"x" for name in names}
    assert set(place.look(names, checksum=ADLER32).values()) == {FileFacts(1, "adler32:00790079")}


def test_a_removed_file_is_gone_and_so_is_one_that_did_not_exist(place, dav):
    for _ in range(2):
        assert place.remove([A, ABSENT]) == {A: None, ABSENT: None}
    assert set(dav.files) == {"/cms/temp/user/ann/sub/b c.root", "/cms/temp/user/bob/c.root"}


def test_files_are_listed_at_any_depth_with_their_times(place):
    moment = datetime(2026, 11, 1, 12, tzinfo=UTC)
    found = sorted(place.listed("/store/temp"))
    assert found == [(A, 6, moment), (B, 0, moment), ("/store/temp/user/bob/c.root", 5, moment)]
    assert list(place.listed("/store/none")) == []


STATUSES = {
    401: errno.EACCES, 403: errno.EACCES, 500: errno.EIO, 503: errno.EAGAIN, 507: errno.ENOSPC, 418: errno.EIO,
    207: errno.EIO,
}  # fmt: skip


@pytest.mark.parametrize(("status", "number"), STATUSES.items())
def test_a_refusal_is_an_answer_for_this_file_only(place, dav, status, number):
    for method in ("HEAD", "GET", "DELETE"):
        dav.answer(method, "a.root", status, b"" if method == "HEAD" else b"<html>secret</html>")
    for answers in (place.look([A], checksum=ADLER32), place.look([A], checksum=READ_BACK), place.remove([A])):
        assert errno_of(answers) == {number}
        assert "secret" not in answers[A].text
    assert place.look([A, B], checksum=NONE)[B] == FileFacts(0, None)


def hang_up(handler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(2)


def test_a_connection_that_ends_is_tried_once_more(place, dav):
    def once(handler) -> None:
        dav.scripted.clear()
        hang_up(handler)

    dav.act("HEAD", "a.root", once)
    assert place.look([A], checksum=NONE) == {A: FileFacts(6, None)}
    dav.act("HEAD", "a.root", hang_up)
    assert errno_of(place.look([A], checksum=NONE)) == {errno.ECONNRESET}
    assert dav.count("HEAD") == 4


def test_a_server_that_is_not_there_and_one_that_does_not_reply(dav):
    with DavServer() as other:
        gone = other.url
    assert errno_of(open_place(site_of(gone), options=OPTIONS).look([A], checksum=NONE)) == {errno.ECONNREFUSED}
    silent = threading.Event()
    dav.act("HEAD", "", lambda _: silent.wait(20))
    try:
        place = open_place(site_of(dav.url), options=PlaceOptions(timeout_s=0.2))
        assert errno_of(place.look([A], checksum=NONE)) == {errno.ECONNRESET}
    finally:
        silent.set()


@pytest.mark.parametrize("length", ["", "-1", "1e3", "9" * 30, "٣"])
def test_a_reply_without_a_usable_size_is_no_answer(place, dav, length):
    for method in ("HEAD", "GET"):
        dav.answer(method, "a.root", 200, Content_Length=length.encode().decode("latin-1"))
    assert errno_of(place.look([A], checksum=ADLER32)) <= {errno.EPROTO, errno.ECONNRESET}
    assert errno_of(place.look([A], checksum=READ_BACK)) <= {errno.EPROTO, errno.ECONNRESET}


def test_a_file_that_is_cut_off_while_it_is_read_has_no_checksum(place, dav):
    def cut(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "6")
        handler.end_headers()
        handler.wfile.write(b"hel")
        handler.wfile.flush()
        hang_up(handler)

    dav.act("GET", "a.root", cut)
    assert errno_of(place.look([A], checksum=READ_BACK)) <= {errno.EIO, errno.ECONNRESET}


def test_a_file_that_comes_drop_by_drop_is_given_up(dav):
    times = iter(range(0, 10_000_000, 1000))
    storage = DavStorage(site_of(dav.url), None, OPTIONS, clock=lambda: next(times))
    dav.files["/cms/big"] = bytes(3 * BLOCK)
    assert errno_of(storage.look([f"{dav.url}/cms/big"], checksum=READ_BACK)) == {errno.ETIMEDOUT}
    storage.close()


def test_a_listing_too_large_or_refused_or_hostile_is_no_listing(place, dav, monkeypatch):
    dav.answer("PROPFIND", "/bob", 403)
    with refused(PLACE_UNLISTED):
        list(place.listed("/store/temp"))
    with monkeypatch.context() as patch, refused(PLACE_UNLISTED):
        patch.setattr(dav_module, "_MOST_REPLY", 100)
        list(place.listed(AREA))
    dav.answer("PROPFIND", "", 207, b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x"><D:multistatus xmlns:D="DAV:"/>')
    with refused(PLACE_UNLISTED):
        list(place.listed(AREA))


def test_a_listing_has_only_what_lies_in_the_folder(place, dav):
    names = ["../../store/x", "/cms/user/bob/x", "/cms/temp/a/b", "/cms/temp/..", "/cms/temp/%2e%2e/x", "http://[", "x"]
    names += ["/cms/temp/a\x01", "/cms/temp/\udcff"]
    entries = [listed(name, 1) for name in names] + [listed("/cms/temp/", None), listed("/cms/temp/ok", 1, "never")]
    dav.answer("PROPFIND", "temp/$", 207, multistatus(*entries))
    assert list(place.listed("/store/temp")) == [("/store/temp/ok", 1, UNKNOWN_TIME)]


def test_folders_without_end_are_given_up(place, dav):
    def deeper(handler) -> None:
        body = multistatus(listed(handler.path, None), listed(f"{handler.path.rstrip('/')}/deeper/", None))
        handler.send_response(207)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        handler.wfile.flush()

    dav.act("PROPFIND", "", deeper)
    with refused(PLACE_UNLISTED):
        list(place.listed("/store/temp"))
    assert dav.count("PROPFIND") < 50


# -- redirections and credentials


def test_a_file_is_looked_at_where_the_server_sends_us_but_without_our_token(dav):
    with DavServer({"/elsewhere": b"hello\n"}) as other:
        dav.answer("HEAD", "a.root", 307, Location=f"{other.web_url}/elsewhere?pool=1")
        place = open_place(site_of(dav.url), BearerToken("secret-token-of-ann"), OPTIONS)
        assert place.look([A], checksum=ADLER32) == {A: FileFacts(6, "adler32:084b021f")}
        assert dav.asked[0].headers["Authorization"] == "Bearer secret-token-of-ann"
        assert "Authorization" not in other.asked[0].headers
        place.close()


def test_a_deletion_follows_the_server_only_within_the_site(dav):
    with DavServer({"/cms/x": b"1", "/pool/x": b"2"}) as other:
        dav.answer("DELETE", "a.root", 307, Location=f"{other.web_url}/pool/x?key=1")
        for allowed, left in (([], 2), ([f"{other.url}/pool"], 1)):
            place = open_place(site_of(dav.url, allowed=[f"{dav.url}/cms", *allowed]), options=OPTIONS)
            assert [answer is None for answer in place.remove([A]).values()] == [left == 1]
            assert len(other.files) == left
            place.close()


@pytest.mark.parametrize("location", ["/cms/temp/user/ann/a.root", "ftp://h/x", "file:///etc/passwd", "http://[", ""])
def test_a_redirection_to_itself_or_to_nowhere_ends(place, dav, location):
    for method in ("HEAD", "DELETE"):
        dav.answer(method, "a.root", 302, Location=location)
    assert errno_of(place.look([A], checksum=NONE)) <= {errno.ELOOP, errno.EACCES}
    assert errno_of(place.remove([A])) <= {errno.ELOOP, errno.EACCES}


def test_a_token_is_sent_to_other_machines_only_by_tls():
    place = open_place(site_of("dav://storage.invalid"), BearerToken("secret-token-of-ann"), OPTIONS)
    assert errno_of(place.look([A], checksum=NONE)) == {errno.EOPNOTSUPP}


def test_the_users_proxy_is_used_and_the_server_is_checked(tmp_path):
    authority = Authority(datetime.now(UTC))
    server, user = (authority.files(tmp_path, name, timedelta(days=1)) for name in ("server", "ann"))
    bundle = str(authority.bundle(tmp_path))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=bundle)
    tls.load_cert_chain(server.certificate, server.key)
    tls.verify_mode = ssl.CERT_REQUIRED
    options = PlaceOptions(authorities=bundle, timeout_s=20)
    with DavServer({"/cms/temp/user/ann/a.root": b"hello\n"}, tls=tls) as dav:
        site = site_of(dav.url)
        known = open_place(site, user, options)
        assert known.look([A], checksum=ADLER32) == {A: FileFacts(6, "adler32:084b021f")}
        unknown = open_place(site, None, options).look([A], checksum=ADLER32)
        untrusted = open_place(site, user, OPTIONS).look([A], checksum=ADLER32)
        assert errno_of(unknown) | errno_of(untrusted) <= {errno.ECONNRESET, errno.ECONNREFUSED}
        dav.answer("HEAD", "a.root", 307, Location="http://127.0.0.1:1/x")
        assert errno_of(known.look([A], checksum=NONE)) == {errno.EACCES}
        with refused(CREDENTIAL_UNREADABLE):
            open_place(site, X509Files(str(tmp_path / "none.pem")), options).look([A], checksum=NONE)
