"""Listings of WebDAV servers: of real ones, and of hostile ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from include.stageout.places.dav import FolderEntry, folder_entries

# as XRootD 5.5.3 replies
XROOTD = b"""<?xml version="1.0" encoding="utf-8"?>
<D:multistatus xmlns:D="DAV:" xmlns:ns1="http://apache.org/dav/props/" xmlns:ns0="DAV:">
<D:response xmlns:lp1="DAV:" xmlns:lp2="http://apache.org/dav/props/" xmlns:lp3="LCGDM:">
<D:href>/store/temp/</D:href><D:propstat><D:prop><lp1:getcontentlength>4096</lp1:getcontentlength>
<lp1:getlastmodified>Mon, 23 Nov 2026 16:52:21 GMT</lp1:getlastmodified>
<lp1:resourcetype><D:collection/></lp1:resourcetype><lp1:iscollection>1</lp1:iscollection></D:prop>
<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>
<D:response xmlns:lp1="DAV:"><D:href>/store/temp/a%20b.root</D:href><D:propstat><D:prop>
<lp1:getcontentlength>6</lp1:getcontentlength><lp1:getlastmodified>Mon, 23 Nov 2026 16:52:18 GMT</lp1:getlastmodified>
</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>"""
# as Apache does: properties that it does not have come in a part of their own
APACHE = b"""<?xml version="1.0"?><multistatus xmlns="DAV:"><response><href>http://h/x</href>
<propstat><prop><resourcetype/><getcontentlength>9</getcontentlength></prop><status>HTTP/1.1 200 OK</status></propstat>
<propstat><prop><getcontentlength/><getlastmodified/></prop><status>HTTP/1.1 404 Not Found</status></propstat>
</response></multistatus>"""


def test_files_and_folders_are_read_in_any_pieces():
    moment = datetime(2026, 11, 23, 16, 52, tzinfo=UTC)
    expected = [
        FolderEntry("/store/temp/", 4096, moment.replace(second=21), True),
        FolderEntry("/store/temp/a%20b.root", 6, moment.replace(second=18), False),
    ]
    for size in (1, 7, len(XROOTD)):
        pieces = [XROOTD[start : start + size] for start in range(0, len(XROOTD), size)]
        assert list(folder_entries(pieces)) == expected


def test_what_is_not_reported_is_not_known():
    assert list(folder_entries([APACHE])) == [FolderEntry("http://h/x", 9, None, False)]
    odd = APACHE.replace(b"9<", b"-9<").replace(b"<resourcetype/>", b"<getlastmodified>yesterday</getlastmodified>")
    assert list(folder_entries([odd])) == [FolderEntry("http://h/x", None, None, False)]


ROOT = b'<multistatus xmlns="DAV:">'
HOSTILE = {
    "a bomb of entities": b'<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]>' + ROOT + b"&d;</multistatus>",
    "a file of this machine": b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
    "an undeclared entity": ROOT + b"&b;</multistatus>",
    "no XML": b"<html><br></html>",
    "nothing": b"",
    "cut off": XROOTD[:-20],
    "too deep": ROOT * 100,
    "too long": ROOT + b"x" * 10_000 + b"</multistatus>",
    "an encoding that is none": b'<?xml version="1.0" encoding="rot13"?>' + ROOT.replace(b"multi", b"zhygv"),
    "another document": b"<listing></listing>",
}


@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_listing_is_refused(document):
    with pytest.raises(ValueError):  # noqa: PT011 - the only error that there is
        list(folder_entries([document]))
