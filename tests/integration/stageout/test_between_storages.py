"""All components of stage-out between two XRootD servers that copy the files by themselves; some copies are damaged."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from include.ledger.engine import reading
from include.site.site import Site
from include.stageout.archive import history
from include.stageout.blocks import close_workflow
from include.stageout.components.census import take_census
from include.stageout.opening import open_stageout
from include.stageout.passes import COMPONENTS, run_pass
from include.stageout.requests import record_request
from include.stageout.retry import RETRY_RULES, TransferFailureClass
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.status import TransferFilter, TransferStatus, list_transfers
from include.stageout.tables import stageout_transfers
from lab.stageout import LINKS, USERS, LabFault, LabFile, account_of, planned, requests_of
from tests.fakes.ftsservice import FtsService
from tests.integration.stageout.conftest import site_between
from tests.servers.xrootd import XrootdServer

WORKFLOW = "between"
HOSTS = ("127.0.0.1", "127.0.0.2")
READ_BACK = set(LINKS[2])
"""Sites whose files are read back; of the others the server reports checksums."""
ONCE, ALWAYS = 7, 20
"""Of each so many files one whose first copy, or of which every copy, is damaged at the destination."""
UNDONE = {TransferState.RETRY_WAIT.value, TransferState.FAILED.value}
OF_THE_STORAGE = (TransferFailureClass.CONNECTION.value, TransferFailureClass.TIMEOUT.value)
"""Classes of the attempts that XRootD fails by itself on a busy machine: it replies 500, or its copy stands."""
ATTEMPTS = RETRY_RULES[TransferFailureClass.DESTINATION_CHECKSUM].retries + 1


@dataclass
class XrootdPlaces:
    """Files of the sites, as they are on the disks of the servers."""

    servers: Sequence[XrootdServer]

    def path(self, site: str, name: str) -> Path:
        return self.servers[_server_of(site)].data / self._below(site, name)

    def put(self, file: LabFile) -> None:
        """Put a file where its job would have left it, and what its fault takes."""
        if file.fault is not LabFault.NO_SOURCE:
            self._write(file.file.source, file.file.source_name, file.content)
        if file.fault is LabFault.TAKEN:
            self._write(file.file.destination, file.file.destination_name, b"of another")

    def read(self, site: str, name: str) -> bytes | None:
        path = self.path(site, name)
        return path.read_bytes() if path.exists() else None

    def _write(self, site: str, name: str, content: bytes) -> None:
        self.servers[_server_of(site)].put(self._below(site, name).removeprefix("store/"), content)

    def _below(self, site: str, name: str) -> str:
        return f"store/{site}/{name.removeprefix('/store/')}"


@dataclass(frozen=True, slots=True)
class DamageReport:
    """What one batch of `Damages` did; nothing is ever due."""

    done: tuple[()] = ()


@dataclass
class Damages:
    """A component that damages copies between the end at FTS and the comparison."""

    places: XrootdPlaces
    destinations: Mapping[str, tuple[str, str]]
    """Site and name of the copy, by the name of the source."""
    always: set[str]
    once: set[str]
    done: set[tuple[int, int]] = field(default_factory=set)
    """Transfers and their attempts."""

    def __call__(self, stageout: Any, *, now: Callable[[], datetime], limit: int) -> DamageReport:
        columns = stageout_transfers.c
        query = select(columns.id, columns.retries, columns.source_name)
        with reading(stageout.ledger) as connection:
            rows = connection.execute(query.where(columns.state == TransferState.COPIED.value)).all()
        for row in rows:
            # an attempt may have failed before without a copy
            first = row.source_name in self.once and all(number != row.id for number, _ in self.done)
            if (first or row.source_name in self.always) and (row.id, row.retries) not in self.done:
                self.damage(*self.destinations[row.source_name])
                self.done.add((row.id, row.retries))
        return DamageReport()

    def damage(self, site: str, name: str) -> None:
        """Other bytes of the same size. Where the file is read back the server goes on to report the old checksum."""
        path = self.places.path(site, name)
        before = path.stat()
        with path.open("r+b") as file:
            (first,) = file.read(1)
            file.seek(0)
            file.write(bytes([first ^ 0xFF]))
        later = 0 if site in READ_BACK else 10 * 10**9
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + later))


@dataclass
class TwoStorages:
    site: Site
    places: XrootdPlaces

    def pulled(self) -> Counter[Path]:
        """The copies that the storages made, as often as they did."""
        return Counter(
            {server.data / path[1:]: n for server in self.places.servers for path, n in server.pulled().items()}
        )


@pytest.fixture
def storages(tmp_path: Path, need: Callable[[str], str]) -> Iterator[TwoStorages]:
    program = need("xrootd")
    first, second = (XrootdServer(program, host) for host in HOSTS)
    with first, second, FtsService(tmp_path, "--webdav") as fts:
        names = {name for link in LINKS for name in link}
        urls = {name: f"{(first, second)[_server_of(name)].url}/store/{name}" for name in names}
        sums = {name: {"checksum": "read-back" if name in READ_BACK else "adler32"} for name in names}
        site = site_between(tmp_path, fts.url, urls, **sums)
        yield TwoStorages(site, XrootdPlaces((first, second)))
        site.ledger.dispose()


@pytest.mark.server("xrootd")
@pytest.mark.parametrize(
    "files", [60, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)])]
)
def test_sources_are_removed_only_where_the_copy_is_whole(storages: TwoStorages, files: int) -> None:
    site, places = storages.site, storages.places
    plan = planned(site.settings, WORKFLOW, files, seed=1)
    sound = [file.file.source_name for file in plan if file.fault is None]
    copies = {file.file.source_name: (file.file.destination, file.file.destination_name) for file in plan}
    damages = Damages(places, copies, always=set(sound[::ALWAYS]), once=set(sound[1::ONCE]) - set(sound[::ALWAYS]))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(places.put, plan))

    began = time.monotonic()
    found, ended = _transferred(site, plan, damages)
    took_s = time.monotonic() - began

    whole = [file for file in plan if file.file.source_name not in damages.always]
    by_name = {row.source_name: row for row in found}
    account = account_of(WORKFLOW, whole, [by_name[file.file.source_name] for file in whole], places, wall_s=took_s)  # type: ignore[arg-type]
    assert account.problems == ()
    assert account.states == {"cleaned": len(sound) - len(damages.always), "failed": len(plan) - len(sound)}
    for file in plan:
        row = by_name[file.file.source_name]
        source = places.read(file.file.source, file.file.source_name)
        if file.file.source_name in damages.always:
            assert (row.state, row.failure) == (TransferState.FAILED, TransferFailureClass.DESTINATION_CHECKSUM.value)
        if row.state is TransferState.CLEANED:
            assert source is None
        else:
            assert source == (None if file.fault is LabFault.NO_SOURCE else file.content)
    # each copy was made by the storages: those that are whole, and those that were damaged
    pulled = storages.pulled()
    damaged = Counter(number for number, _ in damages.done)
    disturbed = 0
    for name in sound:
        row, copies_made = by_name[name], pulled.pop(places.path(*copies[name]))
        moves = history(site.ledger, row.id)
        ends = [move.reason for move in moves if move.state in UNDONE]
        # each damage was noticed, and nothing else was taken for one
        assert damaged[row.id] == sum("checksum mismatch" in reason for reason in ends), moves
        assert copies_made >= damaged[row.id] + (name not in damages.always), moves
        own = sum(reason.startswith(OF_THE_STORAGE) for reason in ends)
        if len(ends) > damaged[row.id] + own:
            disturbed += 1
            continue
        if name in damages.always:
            # the retries of all classes are counted together
            assert ATTEMPTS - own <= damaged[row.id] <= ATTEMPTS <= len(ends), moves
        else:
            assert damaged[row.id] == (name in damages.once), moves
        # an attempt may fail after its copy was made
        assert copies_made - damaged[row.id] - (name not in damages.always) <= own, moves
    assert disturbed <= files / 100
    assert pulled == {}
    census = take_census(open_stageout(site, "census"), now=lambda: ended + timedelta(days=1))
    assert census.findings == ()
    print(
        f"{files} files of {account.bytes / 1e6:.0f} MB together in {took_s:.1f} s: {files / took_s:.1f} files/s, "
        f"{storages.pulled().total()} copies, {len(damages.done)} of them damaged; {dict(account.states)}, "
        f"{ {kind: count for kind, (count, _) in account.failures.items()} }"
    )


def _transferred(site: Site, plan: Sequence[LabFile], damages: Damages) -> tuple[list[TransferStatus], datetime]:
    """Request the files, and run passes until each has ended; a round of them is five minutes for the components."""
    now = datetime.now(UTC)
    for request in requests_of(WORKFLOW, plan):
        record_request(site.ledger, request, now=now)
    stageout = open_stageout(site, "a test")
    # those that are complete stay in the tables
    components = {name: one for name, one in COMPONENTS.items() if name != "archive"}
    names = list(components)
    order = [*names[: names.index("report")], "damage", *names[names.index("report") :]]
    components = {name: {**components, "damage": damages}[name] for name in order}
    while True:
        now += timedelta(minutes=5)
        run_pass(stageout, components, now=lambda now=now: now, left=lambda: True).require_sound()  # type: ignore[misc]
        states = _states(site)
        if states <= TRANSFER_ENDED:
            return _rows(site), now
        if states <= TRANSFER_ENDED | {TransferState.DONE}:
            for owner in USERS:
                close_workflow(site.ledger, owner, WORKFLOW, now=now)


def _states(site: Site) -> set[TransferState]:
    with reading(site.ledger) as connection:
        return {TransferState(state) for state in connection.scalars(select(stageout_transfers.c.state).distinct())}


def _rows(site: Site) -> list[TransferStatus]:
    found: list[TransferStatus] = []
    after: int | None = None
    while True:
        page = list_transfers(site.ledger, TransferFilter(workflow=WORKFLOW), after=after, limit=1000)
        found += page.rows
        if page.after is None:
            return found
        after = page.after


def _server_of(site: str) -> int:
    """North and East are at the first server, South and West at the second: links lead from one to the other."""
    return 0 if site in ("Lab_North", "Lab_East") else 1
