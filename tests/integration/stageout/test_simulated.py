"""Files of simulated sites, as the embedded FTS service has them."""

from __future__ import annotations

import errno
import re
import subprocess
import sys

import pytest

from include.fts.states import FailureReason
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED
from include.stageout.places.facts import UNKNOWN_TIME, FileFacts, PlaceOptions
from include.stageout.places.open import open_place
from tests.fakes.ftsserver import FtsServer
from tests.fakes.refused import refused

ADLER32, _, READ_BACK, NONE = ChecksumMode
SERVICE = """
import sys
from pathlib import Path
from lab.fts.config import FtsServiceConfig
from lab.fts.http.app import serve_fts

serve_fts(FtsServiceConfig(Path(sys.argv[1]), port=0), ready=lambda url: print(url, flush=True))
"""


def place_at(url: str, **fields):
    rules = [{"prefix": "/store", "url": "mock://pisa/store"}]
    site = RemoteSite.model_validate({"name": "pisa", "read": rules, "write": rules, **fields})
    return open_place(site, options=PlaceOptions(fts_url=url, timeout_s=20))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """The real service in a process of its own."""
    state = tmp_path_factory.mktemp("fts") / "state.db"
    with subprocess.Popen([sys.executable, "-c", SERVICE, str(state)], stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        yield url
        process.terminate()


def test_files_that_jobs_left_exist_until_they_are_removed(service):
    place = place_at(service, temporary="/store/temp")
    names = [f"/store/temp/user/ann/{number}.root" for number in range(2500)]
    found = place.look(names, checksum=ADLER32)
    assert {type(facts) for facts in found.values()} == {FileFacts}
    assert all(facts.checksum.startswith("adler32:") for facts in found.values())
    for _ in range(2):
        assert place.remove(names[:2]) == dict.fromkeys(names[:2])
    again = place.look(names[:3], checksum=NONE)
    assert [again[name] for name in names[:2]] == [None, None]
    assert again[names[2]] == FileFacts(found[names[2]].size, None)
    place.close()


def test_elsewhere_only_what_was_copied_exists(service):
    place = place_at(service)
    assert place.look(["/store/user/ann/a.root"], checksum=READ_BACK) == {"/store/user/ann/a.root": None}
    assert list(place.listed("/store/user")) == []


def test_replies_in_both_forms_are_read_and_others_refused():
    with FtsServer() as server:
        place, name, url = place_at(server.url), "/store/a", "mock://pisa/store/a"
        facts = {"size": 3, "checksum": "adler32:0a1b2c3d"}
        for files in ({url: facts}, [{"url": url, **facts}]):
            server.answer("POST", "/simulated/stat", 200, {"files": files})
            assert place.look([name], checksum=ADLER32) == {name: FileFacts(3, "adler32:0a1b2c3d")}
        for files in ({}, [], {url: {"size": -1}}, {url: {"size": 1, "checksum": "x"}}, 7, {url: 1}):
            server.answer("POST", "/simulated/stat", 200, {"files": files})
            assert isinstance(place.look([name], checksum=ADLER32)[name], FailureReason)
        server.answer("POST", "/simulated/stat", 403, {"status": "403 Forbidden", "message": "no"})
        assert place.look([name], checksum=NONE)[name].errno == errno.EACCES
        listing = [{"url": f"{url}/x", "size": 1}, {"url": "mock://bari/store/a/y", "size": 1}]
        server.answer("GET", "/simulated/list", 200, {"files": listing})
        assert list(place.listed(name)) == [("/store/a/x", 1, UNKNOWN_TIME)]
        server.answer("GET", "/simulated/list", 500, {"status": "500", "message": "broken"})
        server.answer("GET", "/simulated/list", 500, {"status": "500", "message": "broken"})
        with refused(PLACE_UNLISTED):
            list(place.listed(name))
        place.close()
