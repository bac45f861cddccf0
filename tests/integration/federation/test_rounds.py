"""Rounds of health checks on real storages: each probe, what each failure is called, changes, bans, our own network."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from include.federation import rounds
from include.federation.records import changes_of, health_of, hold, obstacles, release
from include.federation.rounds import BANNED_BY_US, PREFIX, RoundReport, check_sites, probe_site
from include.federation.states import SiteState
from include.fts.client import BanOf, FtsClient
from include.notify import DeliveryOutcome, Message, Notifier
from include.settings.sites import RemoteSite
from include.site.site import Site
from include.stageout.opening import SiteClients
from include.stageout.places.facts import PlaceOptions
from include.stageout.places.open import open_place
from include.storage.store import Store
from lab.ports import free_port
from tests.fakes.davserver import DavServer
from tests.fakes.ftsserver import FtsServer
from tests.integration.stageout.conftest import site_between
from tests.servers.xrootd import XrootdServer

DATA = bytes(range(256)) * 4096
FILE, FOLDER = "/store/probe/file", "/store/probe/new"
PROBE = {"file": FILE, "size": len(DATA), "checksum": f"{zlib.adler32(DATA):08x}"}
NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
ALL = ["first byte", "range", "checksum", "write", "copy", "delete"]


def remote(url: str, **fields: Any) -> RemoteSite:
    rules = [{"prefix": "/store", "url": f"{url.rstrip('/')}{'/' if url.startswith('root:') else ''}/store"}]
    plain = {"name": "pisa", "read": rules, "write": rules, "third_party": rules, "probe": PROBE}
    return RemoteSite.model_validate(plain | fields)


def probed(site: RemoteSite, **options: Any) -> dict[str, str]:
    """The kind of failure of each probe that was tried; empty: it went well."""
    place = open_place(site, options=PlaceOptions(timeout_s=2, **options))
    try:
        return {one.what: one.kind for one in probe_site(place, site)}
    finally:
        place.close()


@pytest.fixture(scope="module")
def xrootd(need: Callable[[str], str]) -> Iterator[XrootdServer]:
    need("xrdfs")
    with XrootdServer(need("xrootd"), "127.0.0.1") as server:
        server.put("probe/file", DATA)
        server.put("probe/new/other", b"not a probe's")
        yield server


@pytest.mark.server("xrootd")
@pytest.mark.server("xrdfs")
def test_a_genuine_server_is_read_written_to_and_copies_by_itself(xrootd: XrootdServer) -> None:
    writable = PROBE | {"folder": FOLDER}
    assert probed(remote(xrootd.url, probe=writable)) == dict.fromkeys(ALL, "")
    assert [path.name for path in (xrootd.data / "store/probe/new").iterdir()] == ["other"]
    assert probed(remote(xrootd.root_url, probe=writable)) == dict.fromkeys(ALL[:3], "")
    assert probed(remote(xrootd.url, probe=PROBE | {"checksum": "00000001"})) == {
        "first byte": "", "range": "", "checksum": "content"
    }  # fmt: skip


def test_a_folder_is_read_and_written_to_and_old_leftovers_go(tmp_path: Path) -> None:
    folder = tmp_path / "store/probe/new"
    folder.mkdir(parents=True)
    (tmp_path / "store/probe/file").write_bytes(DATA)
    old, young, others = f"{PREFIX}{'0' * 16}-copy", f"{PREFIX}{'1' * 16}", [f"{PREFIX}results.root", "ann"]
    (folder / "sub").mkdir()
    for name in (old, young, *others, f"sub/{old}"):
        (folder / name).write_bytes(b"1")
    then = time.time() - timedelta(hours=2).total_seconds()
    for name in (old, *others, f"sub/{old}"):
        os.utime(folder / name, (then, then))
    site = remote(f"file://{tmp_path}", probe=PROBE | {"folder": FOLDER})
    assert probed(site) == dict.fromkeys(["first byte", "range", "checksum", "write", "delete"], "")
    assert {path.name for path in folder.iterdir()} == {young, *others, "sub"}
    assert (folder / "sub" / old).exists()
    (tmp_path / "store/probe/file").write_bytes(DATA[:-1] + b"x")
    assert probed(site)["checksum"] == "content"


def test_objects_are_read_and_written(s3_store: Store) -> None:
    s3_store.put("cms/probe/file", DATA)
    rules = [{"prefix": "/store", "url": f"s3://s3.example.org/{s3_store.url.partition('://')[2]}/cms"}]
    site = remote("", read=rules, write=rules, third_party=rules, probe=PROBE | {"folder": FOLDER})
    assert probed(site, store=s3_store) == dict.fromkeys(["first byte", "range", "checksum", "write", "delete"], "")
    assert [meta.key for meta in s3_store.list()] == ["cms/probe/file"]


@pytest.fixture
def dav() -> Iterator[DavServer]:
    with DavServer({"/store/probe/file": DATA}) as server:
        yield server


@pytest.mark.parametrize(
    ("method", "status", "body", "kinds"),
    [
        ("GET", 404, b"", {"first byte": "missing", "range": "missing", "checksum": ""}),
        ("GET", 403, b"", {"first byte": "permission", "range": "permission", "checksum": ""}),
        ("GET", 503, b"", {"first byte": "connection"}),
        ("GET", 501, b"", {"first byte": "unsupported", "range": "unsupported"}),
        ("GET", 200, b"<html>", {"first byte": "other", "range": "other", "checksum": ""}),
        ("GET", 206, b"ab", {"first byte": "other", "range": "other", "checksum": ""}),
        ("HEAD", 500, b"", {"first byte": "", "range": "", "checksum": "connection"}),
        ("PUT", 507, b"", {"write": "no-space"}),
        ("PUT", 403, b"", {"write": "permission"}),
        ("COPY", 202, b"Perf Marker\nfailure: no\n", {"copy": "other"}),
        ("COPY", 501, b"", {}),
    ],
)
def test_a_failure_has_a_class(dav: DavServer, method: str, status: int, body: bytes, kinds: dict[str, str]) -> None:
    dav.answer(method, ".*", status, body)
    kind_of = probed(remote(dav.url, probe=PROBE | {"folder": FOLDER}))
    assert kind_of | kinds == kind_of
    assert ("copy" in kind_of) is not ((method == "COPY" and status == 501) or "connection" in kind_of.values())
    assert set(dav.files) == {"/store/probe/file"}


def test_a_server_that_sends_a_byte_now_and_then_is_not_waited_for(dav: DavServer) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(206)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(100):
                handler.wfile.write(b"x")
                handler.wfile.flush()
                time.sleep(0.1)

    dav.act("GET", ".*", drip)
    began = time.monotonic()
    place = open_place(remote(dav.url), options=PlaceOptions(timeout_s=1))
    assert getattr(place.read(FILE, 0, 100), "errno", None) == errno.ETIMEDOUT
    assert time.monotonic() - began < 5


def test_another_checksum_than_adler32_is_none(dav: DavServer) -> None:
    dav.answer("HEAD", ".*", 200, DATA, Digest="crc32c=AAAAAA==")
    assert probed(remote(dav.url)) == dict.fromkeys(ALL[:3], "")


def test_a_server_that_is_away_or_hangs_is_asked_once(dav: DavServer) -> None:
    assert probed(remote(f"dav://127.0.0.1:{free_port()}")) == {"first byte": "connection"}
    dav.act("GET", ".*", lambda _: time.sleep(3))
    assert list(probed(remote(dav.url))) == ["first byte"]


# -- rounds


class Deployed:
    """Three sites as folders, an FTS server, and what people were told."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, server: FtsServer) -> None:
        self.folder, self.now, self.server = folder, NOW, server
        self.told: list[Message] = []
        self.windows: dict[str, timedelta | None] = {}
        self.outcome = DeliveryOutcome.TOLD
        self.sites = ("bari", "lyon", "pisa")
        for name in self.sites:
            self.mend(name)
        fields = {name: {"probe": PROBE, "checksum": "adler32"} for name in self.sites}
        self.site: Site = site_between(
            folder, server.url, {name: f"file://{folder}/{name}" for name in self.sites}, **fields
        )

        def tell(_: Notifier, message: Message, *, window: timedelta | None, **__: object) -> DeliveryOutcome:
            self.windows[message.title] = window
            if message.key in {told.key for told in self.told}:
                return DeliveryOutcome.KNOWN
            self.told.append(message)
            return self.outcome

        patch.setattr(Notifier, "tell", tell)

    def mend(self, name: str) -> None:
        (self.folder / name / "probe").mkdir(parents=True, exist_ok=True)
        (self.folder / name / "probe/file").write_bytes(DATA)

    def spoil(self, *names: str) -> None:
        for name in names:
            (self.folder / name / "probe/file").write_bytes(b"short")

    def round(self, *only: str) -> RoundReport:
        self.now += timedelta(minutes=15)
        return check_sites(self.site, now=lambda: self.now, only=only)


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    with FtsServer() as server:
        deployed = Deployed(tmp_path, monkeypatch, server)
        yield deployed
        deployed.site.ledger.dispose()


def test_each_change_is_told_once(deployed: Deployed) -> None:
    deployed.round()
    deployed.spoil("pisa")
    for _ in range(3):
        deployed.round()
    assert obstacles(deployed.site.ledger) == {"pisa": "it has failed: range: other; checksum: content"}
    deployed.mend("pisa")
    for _ in range(5):
        deployed.round()
    assert [(one.severity, one.title) for one in deployed.told] == [
        ("warning", "site pisa: degraded"), ("error", "site pisa: failed"), ("ok", "site pisa: ok")
    ]  # fmt: skip
    assert len({one.key for one in deployed.told}) == 3
    assert [one.change for one in changes_of(deployed.site.ledger, NOW)["pisa"]] == ["ok", "failed", "degraded"]


def test_a_change_that_could_not_be_sent_is_sent_later(deployed: Deployed) -> None:
    deployed.round()
    deployed.spoil("pisa")
    deployed.outcome = DeliveryOutcome.FAILED
    assert deployed.round().faults == ("message could not be sent: site pisa: degraded",)
    deployed.told.clear()  # as the ledger forgets it
    deployed.outcome = DeliveryOutcome.TOLD
    deployed.spoil("bari")
    assert deployed.round().faults == ()
    assert {one.title for one in deployed.told} == {"site pisa: failed", "site bari: degraded"}
    deployed.mend("pisa")
    deployed.mend("bari")
    deployed.outcome = DeliveryOutcome.FAILED
    while deployed.round().outcome.changed == {}:
        pass
    deployed.told.clear()
    deployed.outcome = DeliveryOutcome.TOLD
    deployed.round()
    assert "site bari: ok" in {one.title for one in deployed.told}


def test_a_site_that_drips_holds_up_no_other(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PROBES_S", 1.0)
    go, opened = threading.Event(), SiteClients.any_place

    def slow(clients: SiteClients, name: str, owner: str) -> Any:
        if name == "pisa":
            go.wait(60)
        return opened(clients, name, owner)

    monkeypatch.setattr(SiteClients, "any_place", slow)
    began = time.monotonic()
    report = deployed.round()
    go.set()
    assert time.monotonic() - began < 10
    assert [(one.what, one.kind) for one in report.probes["pisa"]] == [("first byte", "timeout")]
    assert {one.failed for one in report.probes["bari"]} == {0}


def test_all_together_are_our_own_network(deployed: Deployed) -> None:
    deployed.spoil(*deployed.sites)
    report = deployed.round()
    assert (set(report.outcome.own_network), report.outcome.changed) == (set(deployed.sites), {})
    assert [one.title for one in deployed.told] == ["3 of 3 sites turned bad together"]
    assert {one.state for one in health_of(deployed.site.ledger, deployed.sites).values()} == {SiteState.OK}


def test_only_some_sites_are_probed_and_all_are_judged(deployed: Deployed) -> None:
    deployed.spoil("pisa")
    report = deployed.round("bari")
    assert (list(report.probes), report.outcome.changed) == (["bari"], {})


def test_a_credential_that_is_missing_is_not_the_fault_of_the_site(deployed: Deployed) -> None:
    sites = dict(deployed.site.settings.sites)
    sites["pisa"] = sites["pisa"].model_copy(update={"credential": type(sites["pisa"].credential)("proxy")})
    deployed.site.settings = deployed.site.settings.model_copy(update={"sites": sites})
    report = deployed.round()
    assert list(report.unprobed) == ["pisa"]
    assert [one.title for one in deployed.told] == ["cannot be probed: pisa"]
    assert deployed.windows == {"cannot be probed: pisa": None}, "as long as it lasts, it is said again"
    assert "stageout.proxies" in report.unprobed["pisa"]
    assert health_of(deployed.site.ledger, ["pisa"])["pisa"].state is SiteState.OK


def test_storages_of_failed_and_held_sites_are_banned_at_fts_until_they_are_back(deployed: Deployed) -> None:
    rules = [{"prefix": "/store", "url": "davs://pisa.example.org/cms"}]
    sites = dict(deployed.site.settings.sites)
    sites["pisa"] = RemoteSite.model_validate(sites["pisa"].model_dump() | {"third_party": rules, "allowed": []})
    federation = deployed.site.settings.federation.model_copy(update={"ban": True})
    deployed.site.settings = deployed.site.settings.model_copy(update={"sites": sites, "federation": federation})
    client = FtsClient(deployed.server.url)
    client.ban(BanOf.STORAGE, "davs://other.example.org", message="by an operator")
    hold(deployed.site.ledger, "pisa", by="ann", reason="it moves", now=NOW)
    hold(deployed.site.ledger, "lyon", by="ann", reason="it shares the storage of bari", now=NOW)
    for _ in range(2):
        assert deployed.round().faults == ()
    bans = {ban.name: ban.message for ban in client.bans(BanOf.STORAGE)}
    assert bans == {
        "davs://other.example.org": "by an operator",
        "davs://pisa.example.org": "nightshift: pisa: it is held by ann: it moves",
    }
    release(deployed.site.ledger, "pisa", by="ann", reason="done", now=deployed.now)
    deployed.round()
    assert [ban.name for ban in client.bans(BanOf.STORAGE)] == ["davs://other.example.org"]
    # without bans in the settings, those that are left are ended
    client.ban(BanOf.STORAGE, "davs://pisa.example.org", message=f"{BANNED_BY_US}pisa: of before")
    settings = deployed.site.settings
    deployed.site.settings = settings.model_copy(update={"federation": federation.model_copy(update={"ban": False})})
    assert deployed.round().faults == ()
    assert [ban.name for ban in client.bans(BanOf.STORAGE)] == ["davs://other.example.org"]
    deployed.site.settings = settings
    deployed.server.answer("GET", "/ban", 403, {"message": "no"})
    assert "bans at fts_default" in deployed.round().faults[0]
