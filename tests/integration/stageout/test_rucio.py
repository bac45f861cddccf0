"""Blocks of verified files in a genuine Rucio server: found by a client of its own, once, or refused by name."""

from __future__ import annotations

import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from rucio.client.baseclient import BaseClient

from include.settings.secrets import ConnectionSecrets
from include.settings.stageout import StageoutSettings
from include.stageout.blocks import close_workflow
from include.stageout.errors import CATALOGUE_FAILED, StageoutError
from include.stageout.files import check_catalogue
from include.stageout.opening import open_stageout
from include.stageout.passes import COMPONENTS, run_pass
from include.stageout.registration.catalogue import CatalogueBlock, CatalogueFile
from include.stageout.registration.rucio import RucioCatalogue
from include.stageout.requests import record_request
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.status import TransferFilter, TransferStatus, list_transfers
from lab.stageout import FAULTY, LINKS, USERS, LabPlaces, account_of, planned, requests_of
from tests.fakes.ftsservice import FtsService
from tests.fakes.loopback import Heard, LoopbackServer, respond
from tests.fakes.places import site
from tests.fakes.refused import refused
from tests.fakes.transfers import NOW
from tests.integration.stageout.conftest import site_between
from tests.servers.rucio import LOGIN, PASSWORD, RucioServer

pytestmark = pytest.mark.server("rucio")

SITES = {name: site(name, rse=name.upper()) for name in ("bari", "pisa", "rome")}
SUM = "adler32:0a1b2c3d"
BY_BLOCK = {"dataset": "{dataset}.{block}", "container": "{dataset}"}
_numbers = iter(range(10_000))


@pytest.fixture(scope="module")
def server(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RucioServer]:
    with RucioServer(tmp_path_factory.mktemp("rucio"), need("rucio")) as running:
        running.make(["ann", "bob"], {name.upper(): ("davs", f"{name}.example.org") for name in ("bari", "pisa")})
        running.make([], {"ROME": ("davs", "rome.example.org")}, deterministic=True)
        yield running


Opening = Callable[..., RucioCatalogue]
"""Opens the catalogue at a URL; `timeout_s`, `password`, and more fields of the settings."""


@pytest.fixture
def catalogue(tmp_path: Path) -> Opening:
    def opened(url: str, *, timeout_s: float = 30, password: str = PASSWORD, **fields: Any) -> RucioCatalogue:
        extra = {"account": "root"}
        connection = ConnectionSecrets("rucio", host=url, login=LOGIN, password=password, extra=extra)
        settings = StageoutSettings.model_validate({"catalogue": {"kind": "rucio", "connection": "rucio", **fields}})
        return RucioCatalogue(settings, SITES, lambda: connection, folder=tmp_path / "tokens", timeout_s=timeout_s)

    return opened


@pytest.fixture
def rucio(server: RucioServer, catalogue: Opening) -> RucioCatalogue:
    return catalogue(server.url)


def a_block(owner: str = "ann") -> CatalogueBlock:
    """A block of a data set that no other test has."""
    number = next(_numbers)
    return CatalogueBlock(f"/Higgs/v{number}/USER#{number:032x}", f"/Higgs/v{number}/USER", owner, "analysis")


def files(block: CatalogueBlock, count: int, at: str = "bari", **fields: Any) -> list[CatalogueFile]:
    names = [f"/store/user/{block.owner}{block.dataset}/{number}.root" for number in range(count)]
    return [
        CatalogueFile(number, name, at, **{"size": 7, "checksum": SUM, **fields}) for number, name in enumerate(names)
    ]


def held(server: RucioServer, block: CatalogueBlock) -> Mapping[str, Mapping[str, list[str]]]:
    """The files of the block's data set, by name: their replicas by RSE, as another client has them."""
    scope = f"user.{block.owner}"
    client = server.client()
    listed = list(client.list_files(scope, block.dataset))
    dids = [{"scope": scope, "name": row["name"]} for row in listed]
    assert len({row["name"] for row in listed}) == len(listed), "one is there twice"
    replicas = client.list_replicas(dids, all_states=True) if dids else []
    return {row["name"]: row["rses"] for row in replicas}


def test_each_file_is_in_its_data_set_once_with_its_replica(server: RucioServer, rucio: RucioCatalogue) -> None:
    block = a_block()
    chosen = files(block, 3)
    for _ in range(2):
        assert rucio.register(block, chosen, now=NOW) == {}
    assert held(server, block) == {
        file.name: {"BARI": [file.name.replace("/store", "davs://bari.example.org:443/cms", 1)]} for file in chosen
    }
    row = server.client().get_metadata("user.ann", chosen[0].name)
    assert (row["bytes"], row["adler32"]) == (7, "0a1b2c3d")

    # more of it, and the same at another site
    assert rucio.register(block, files(block, 5), now=NOW) == {}
    assert rucio.register(block, files(block, 1, at="pisa"), now=NOW) == {}
    found = held(server, block)
    assert len(found) == 5
    assert found[chosen[0].name].keys() == {"BARI", "PISA"}


def test_a_file_that_exists_with_another_content_or_place_is_refused_by_name(
    server: RucioServer, rucio: RucioCatalogue
) -> None:
    block = a_block()
    assert rucio.register(block, files(block, 1), now=NOW) == {}
    for changed in ({"size": 8}, {"checksum": "adler32:ffffffff"}, {"at": "pisa", "size": 8}):
        chosen = files(block, 3, **changed)
        [(number, reason)] = rucio.register(block, chosen, now=NOW).items()
        assert number == 0
        assert reason == "Rucio has another file of this name, of 7 bytes and checksum 0a1b2c3d"
        block = a_block()
        assert rucio.register(block, files(block, 1), now=NOW) == {}

    other = {"scope": "user.ann", "name": files(block, 2)[1].name, "bytes": 7, "adler32": "0a1b2c3d"}
    elsewhere = {**other, "pfn": "davs://bari.example.org:443/cms/else"}
    server.client().add_replicas("BARI", [elsewhere])
    assert rucio.register(block, files(block, 3), now=NOW) == {
        1: "Rucio has it at BARI in another place: davs://bari.example.org:443/cms/else"
    }
    assert len(held(server, block)) == 2
    # a checksum that the site does not have compares nothing
    assert rucio.register(block, files(block, 1, checksum="crc32c:00000001"), now=NOW) == {}


@pytest.mark.parametrize("fields", [{}, BY_BLOCK], ids=["data set", "block"])
def test_a_retracted_file_is_in_no_data_set_and_its_copy_at_another_site_stays(
    server: RucioServer, catalogue: Opening, fields: dict[str, str]
) -> None:
    rucio, block = catalogue(server.url, **fields), a_block()
    chosen = files(block, 4)
    assert rucio.register(block, chosen, now=NOW) == {}
    assert rucio.register(block, files(block, 1, at="pisa"), now=NOW) == {}
    for _ in range(2):
        assert rucio.retract(block, chosen[:2]) == {}
        assert held(server, block).keys() == {file.name for file in chosen} - {chosen[1].name}
    dids = [{"scope": "user.ann", "name": file.name} for file in chosen]
    # those that can be read
    readable = {row["name"]: [*row["rses"]] for row in server.client().list_replicas(dids)}
    assert readable.pop(chosen[1].name, []) == []
    assert readable == {chosen[0].name: ["PISA"], chosen[2].name: ["BARI"], chosen[3].name: ["BARI"]}
    assert rucio.register(block, chosen[1:2], now=NOW) == {1: "Rucio is deleting its replica at BARI"}


def test_a_file_that_is_another_one_or_that_a_rule_holds_is_not_retracted(
    server: RucioServer, rucio: RucioCatalogue
) -> None:
    block = a_block()
    chosen = files(block, 3)
    assert rucio.register(block, chosen, now=NOW) == {}
    client = server.client()
    client.set_local_account_limit("root", "BARI", 1000)
    client.add_replication_rule([{"scope": "user.ann", "name": chosen[0].name}], 1, "BARI")
    elsewhere = CatalogueFile(6, chosen[1].name, "nowhere", 7, SUM)  # a site that is not configured any more
    refusals = rucio.retract(block, [*chosen[:2], *files(block, 3, size=8)[2:], elsewhere])
    assert refusals == {
        6: "it has no `rse` in the configuration",
        0: "a rule of Rucio holds it: delete the rule first",
        2: "Rucio has another file of this name, of 7 bytes and checksum 0a1b2c3d",
    }
    assert held(server, block).keys() == {chosen[0].name, chosen[2].name}


def test_what_rucio_cannot_have_hinders_no_other_file(server: RucioServer, catalogue: Opening) -> None:
    loose = catalogue(server.url, names=".*")  # so that the server is asked
    block = a_block()
    chosen = files(block, 9)
    chosen[4] = CatalogueFile(4, f"/store/user/ann{block.dataset}/a=b +é.root", "bari", 7, SUM)
    chosen[6] = CatalogueFile(6, chosen[6].name, "nowhere", 7, SUM)
    refusals = loose.register(block, chosen, now=NOW)
    assert refusals.keys() == {4, 6}
    assert refusals[4].startswith("InvalidObject: ")
    assert "does not match" in refusals[4]
    assert refusals[6] == "it has no `rse` in the configuration"
    assert len(held(server, block)) == 7
    assert catalogue(server.url).register(block, [chosen[4]], now=NOW) == {
        4: "the name has characters that the catalogue does not take"
    }

    server.client().close("user.ann", block.dataset)
    assert loose.register(block, chosen[:3], now=NOW) == {}, "they are in it"
    assert "is closed" in loose.register(block, files(block, 10)[9:], now=NOW)[9]


def test_a_block_may_be_a_data_set_that_is_closed_in_a_container(server: RucioServer, catalogue: Opening) -> None:
    rucio = catalogue(server.url, **BY_BLOCK)
    first, again = a_block(), a_block()
    second = CatalogueBlock(f"{first.dataset}#{20_000:032x}", first.dataset, "ann", "analysis")
    for _ in range(2):
        assert rucio.register(first, files(first, 3), now=NOW) == {}
    assert rucio.register(second, files(first, 5), now=NOW) == {}, "three of them are in the first one"
    client = server.client()
    content = client.list_content("user.ann", first.dataset)
    names = [f"{first.dataset}.{block.name.rpartition('#')[2]}" for block in (first, second)]
    assert sorted(row["name"] for row in content) == sorted(names)
    sizes = [client.get_did("user.ann", name) for name in names]
    assert [(row["length"], row["open"]) for row in sizes] == [(3, False), (2, False)]
    assert len(held(server, first)) == 5, "each once, through the container"
    assert rucio.register(again, [], now=NOW) == {}


@pytest.mark.parametrize("fields", [{}, BY_BLOCK], ids=["data set", "block"])
def test_a_registration_that_died_after_any_call_is_made_again(
    server: RucioServer, catalogue: Opening, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        """The process ends here."""

    block, calls = a_block(), 0
    for last in range(1, 20):
        rucio, calls = catalogue(server.url, **fields), 0
        send = rucio._client._send_request

        def counted(*arguments: Any, last: int = last, send: Any = send, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            answer = send(*arguments, **options)
            if calls == last:
                raise Died
            return answer

        monkeypatch.setattr(rucio._client, "_send_request", counted)
        try:
            assert rucio.register(block, files(block, 4), now=NOW) == {}
            break
        except Died:
            continue
    assert calls < last, "the whole registration was made"
    assert len(held(server, block)) == 4


def test_two_writers_of_one_data_set_and_one_block_lose_and_double_nothing(
    server: RucioServer, catalogue: Opening
) -> None:
    block, start = a_block(), threading.Barrier(3)

    def write(number: int) -> None:
        chosen = files(block, 8)[:4] if number else files(block, 8)[4:]  # two write the same
        start.wait(60)
        for _ in range(50):
            try:
                assert catalogue(server.url).register(block, chosen, now=NOW) == {}
                return
            except StageoutError:  # SQLite is locked, or the other one made the data set in between
                continue
        raise AssertionError("never registered")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    assert len(held(server, block)) == 8


def test_what_is_missing_is_said_before_and_waited_for(server: RucioServer, rucio: RucioCatalogue) -> None:
    assert sorted(rucio.faults(["ann", "eve"])) == [
        "RSE ROME is deterministic: it takes no file that is where its user put it",
        "it has no scope user.eve, for eve",
    ]
    block = a_block("eve")
    with refused(CATALOGUE_FAILED) as error:
        rucio.register(block, files(block, 1), now=NOW)
    assert "ScopeNotFound: " in str(error.value)
    block = a_block()
    with refused(CATALOGUE_FAILED) as error:
        rucio.register(block, files(block, 1, at="rome"), now=NOW)
    assert "does not match the Rucio expected PFNs" in str(error.value)
    assert held(server, block) == {}
    server.make(["eve"], {})
    block = a_block("eve")
    assert rucio.register(block, files(block, 1), now=NOW) == {}


def test_a_token_that_ends_in_between_is_renewed_and_a_server_that_is_away_is_waited_for(
    catalogue: Opening, tmp_path: Path, need: Callable[[str], str]
) -> None:
    with RucioServer(tmp_path / "own", need("rucio")) as own:
        own.make(["ann"], {"BARI": ("davs", "bari.example.org")})
        rucio, block = catalogue(own.url), a_block()
        assert rucio.register(block, files(block, 2), now=NOW) == {}
        with sqlite3.connect(tmp_path / "own" / "rucio.db") as database:
            assert database.execute("DELETE FROM tokens").rowcount
        assert rucio.register(block, files(block, 3), now=NOW) == {}

        own.kill()
        with refused(CATALOGUE_FAILED) as error:
            rucio.register(block, files(block, 4), now=NOW)
        assert "Cannot connect to the Rucio server" in str(error.value)
        own.start()
        assert rucio.register(block, files(block, 4), now=NOW) == {}
        assert len(held(own, block)) == 4


def test_a_wrong_password_is_an_error_without_it(server: RucioServer, catalogue: Opening) -> None:
    with refused(CATALOGUE_FAILED) as error:
        list(catalogue(server.url, password="another one").faults([]))
    assert "CannotAuthenticate" in str(error.value)
    assert "another one" not in str(error.value)


def test_the_token_is_kept_for_the_next_process_and_for_no_other_account(
    server: RucioServer, catalogue: Opening, tmp_path: Path
) -> None:
    shared = set(Path(tempfile.gettempdir()).glob(".rucio_*"))
    assert list(catalogue(server.url).faults([]))
    (token,) = [path for path in (tmp_path / "tokens").rglob("*") if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (token, tmp_path / "tokens" / "rucio")] == [0o600, 0o700]
    assert list(catalogue(server.url, password="not asked for again").faults([]))
    assert set(Path(tempfile.gettempdir()).glob(".rucio_*")) == shared


class Answering(LoopbackServer):
    """A server that gives out a token, and then says the same to everything: a page of a proxy, or nothing."""

    METHODS = ("GET", "POST")
    silent = threading.Event()
    ended = threading.Event()

    def serve(self, handler: BaseHTTPRequestHandler, request: Heard) -> None:
        if "/auth/" in handler.path:
            respond(handler, 200, headers={"X-Rucio-Auth-Token": "token"})
        elif self.silent.is_set():
            self.ended.wait(60)
        else:
            respond(handler, 200, b"<html>Sign in</html>", {"Content-Type": "text/html"})


def test_a_page_and_silence_in_place_of_an_answer_are_waited_for(catalogue: Opening) -> None:
    with Answering() as server:
        rucio, block = catalogue(f"http://{server.address}", timeout_s=0.5), a_block()
        for silent in (False, True):
            server.silent.set() if silent else server.silent.clear()
            with refused(CATALOGUE_FAILED):
                rucio.register(block, files(block, 1), now=NOW)
            with refused(CATALOGUE_FAILED):
                list(rucio.faults(["ann"]))
        server.ended.set()


class Dying:
    """The catalogue of a server that is killed at some calls, before or after its answer, and is away for a while."""

    def __init__(self, server: RucioServer, real: RucioCatalogue, patch: pytest.MonkeyPatch) -> None:
        self._server, self._real, self._patch = server, real, patch
        self._send = BaseClient._send_request
        self.calls = self.killed = 0

    def register(self, *arguments: Any, **options: Any) -> Mapping[int, str]:
        with self._patch.context() as patch:
            patch.setattr(BaseClient, "_send_request", lambda *a, **o: self._counted(*a, **o))  # noqa: PLW0108 - bound
            return self._real.register(*arguments, **options)

    def _counted(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == 3:
            self._kill()
        answer = self._send(*arguments, **options)
        if self.killed == 1 and self.calls > 20:
            self._kill()
            raise ConnectionError("the answer is lost")
        return answer

    def _kill(self) -> None:
        self.killed += 1
        self._server.kill()


@pytest.mark.parametrize(
    "count", [60, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)])]
)
def test_every_verified_file_is_in_its_data_set_once_though_the_server_dies_twice(
    tmp_path: Path, need: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    login = {"host": "", "login": LOGIN, "password": PASSWORD, "extra": {"account": "root"}}
    with FtsService(tmp_path, "--folder", str(tmp_path / "sites")) as fts, \
            RucioServer(tmp_path / "rucio", need("rucio")) as server:  # fmt: skip
        urls = {name: f"file://{tmp_path}/sites/{name}" for link in LINKS for name in link}
        rses = {name: name.upper() for name in urls}
        server.make(USERS, dict.fromkeys(rses.values(), ("file", "localhost")))
        site = site_between(
            tmp_path, fts.url, urls, stageout={"catalogue": {"kind": "rucio", "connection": "rucio"}},
            connections={"rucio": {**login, "conn_type": "http", "host": server.url}},
            **{name: {"rse": rse} for name, rse in rses.items()},
        )  # fmt: skip
        plan, places = planned(site.settings, "night", count, seed=1), LabPlaces(site)
        for file in plan:
            places.put(file)
        now = datetime.now(UTC)
        for request in requests_of("night", plan):
            check_catalogue(request, site.settings.stageout)
            record_request(site.ledger, request, now=now)
        opened = open_stageout(site, "a test")
        assert isinstance(opened.catalogue, RucioCatalogue)
        assert list(opened.catalogue.faults(USERS)) == []
        dying = Dying(server, opened.catalogue, monkeypatch)
        stageout = replace(opened, catalogue=dying)
        found: Sequence[TransferStatus] = ()
        while not found or not {row.state for row in found} <= TRANSFER_ENDED:
            now += timedelta(minutes=1)
            killed = dying.killed
            run_pass(stageout, COMPONENTS, now=lambda now=now: now, left=lambda: True).require_sound()  # type: ignore[misc]
            if dying.killed > killed:
                server.start()
            found = list_transfers(site.ledger, TransferFilter(workflow="night"), limit=count).rows
            if {row.state for row in found} <= TRANSFER_ENDED | {TransferState.DONE}:
                for owner in USERS:
                    close_workflow(site.ledger, owner, "night", now=now)
        assert dying.killed == 2
        account = account_of("night", plan, found, places, wall_s=1.0)
        assert account.problems == ()
        assert account.states == {"cleaned": count - count // FAULTY, "failed": count // FAULTY}

        client = server.client()
        for owner in USERS:
            mine = [row for row in found if row.owner == owner and row.dataset]
            verified = {row.destination_name: row for row in mine if row.state is TransferState.CLEANED}
            listed = [row["name"] for row in client.list_files(f"user.{owner}", f"/night/{owner}")]
            assert sorted(listed) == sorted(verified)
            replicas = client.list_replicas([{"scope": f"user.{owner}", "name": name} for name in listed])
            for row in replicas:
                copy = verified[row["name"]]
                assert row["bytes"] == copy.size
                assert row["rses"].keys() == {rses[copy.destination]}
            # nothing else is in the scope
            everything = set(client.list_dids(f"user.{owner}", [{}], did_type="file"))
            assert everything == set(listed)
        site.ledger.dispose()
