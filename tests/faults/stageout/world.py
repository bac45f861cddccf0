"""What the machine of stage-out acts on: a ledger, sites and FTS servers in this process, and the components."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from sqlalchemy import event, select

from include.fts.client import FtsClient
from include.fts.errors import DELEGATION_MISSING
from include.ledger.engine import open_ledger, reading
from include.ledger.migrate import migrate
from include.settings.stageout import StageoutSettings
from include.stageout.claims import StageoutWorker
from include.stageout.files import FileKind, FileToTransfer, StageoutRequest, check_request
from include.stageout.opening import Stageout
from include.stageout.requests import record_request
from include.stageout.tables import stageout_catalogue, stageout_transfers
from tests.faults.stageout.perils import Perils
from tests.faults.stageout.storages import FOREIGN, Content, SimulatedPlace, SimulatedStorages, remote_site
from tests.faults.stageout.wildfts import Outcome, WildFts

SOURCE_LOST = "source lost"
ORPHANED = "orphaned"
"""FTS forgot its job, and what the job left at the destination: nothing proves whose it is."""
PERMANENT = {FOREIGN, ORPHANED, SOURCE_LOST, Outcome.QUOTA.name, Outcome.INVALID.name}
FEWEST_RETRIES = 4
"""Of all classes of failures that are retried."""
TEMPORARY = "/store/temp"
SERVERS = ("fts_a", "fts_b")
OWNERS = ("ann", "bob")
SITES = {
    site.name: site
    for site in (
        remote_site("pisa", temporary=TEMPORARY, clean=True),
        remote_site("bari", temporary=TEMPORARY, clean=True, clean_unknown=True, checksum="none", clean_on_size=True),
        remote_site("rome", temporary=TEMPORARY, checksum="read-back"),
    )
}
UNKNOWN_DAYS = 5
LINKS = (("pisa", "rome"), ("bari", "rome"), ("rome", "bari"), ("pisa", "bari"))
SETTINGS = StageoutSettings(
    fts=SERVERS, files_per_job=3, block_files=3, block_minutes=30, archive_hours=48, resubmit_days=3, queue_hours=5,
    unknown_days=UNKNOWN_DAYS,
)  # fmt: skip


@dataclass
class KnownFile:
    """What was asked for, and what may be the reason of its failure."""

    id: int
    source: tuple[str, str]
    destination: tuple[str, str]
    content: Content
    owner: str
    workflow: str
    dataset: str | None
    source_lost: bool = False
    copy_lost: bool = False
    faults: list[str] = field(default_factory=list)

    @property
    def may_fail(self) -> bool:
        """Whether enough has happened to it."""
        return bool(PERMANENT & set(self.faults)) or len(self.faults) >= FEWEST_RETRIES


class StageoutWorld:
    """One deployment, whose time only passes by `pass_time`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        shutil.copy(_template(), self.folder / "ledger.db")
        self.ledger = open_ledger(f"sqlite:///{self.folder}/ledger.db")
        event.listen(self.ledger, "connect", _hurry)
        self.perils = Perils(self.ledger)
        self.time = datetime(2026, 11, 23, 12, tzinfo=UTC)
        self.storages = SimulatedStorages(self.now, self.why_kept)
        self.writers: dict[tuple[str, str], str] = {}
        """The FTS job that writes a destination, or may begin to."""
        self.servers = {
            name: WildFts(self.now, self.storages, self.writers, self.perils.reach, name.replace("_", "-"))
            for name in SERVERS
        }
        self.clients = {name: server.client() for name, server in self.servers.items()}
        self.files: dict[int, KnownFile] = {}
        self.without_credential: set[str] = set()
        self.closed: set[tuple[str, str]] = set()
        self.keys = 0

    def close(self) -> None:
        self.ledger.dispose()
        shutil.rmtree(self.folder)

    def now(self) -> datetime:
        return self.time

    def pass_time(self, span: timedelta) -> None:
        self.time += span
        for server in self.servers.values():
            server.expire()

    # -- the components

    def stageout(self, worker: str = "one") -> Stageout:
        return Stageout(
            ledger=self.ledger, settings=SETTINGS, sites=SITES, worker=StageoutWorker(worker), fts=self.fts,
            place=self.place,
        )  # fmt: skip

    def fts(self, server: str, owner: str, *_sites: str) -> FtsClient:
        if owner in self.without_credential:
            raise DELEGATION_MISSING(f"{owner} has no credential")
        return self.clients[server]

    def place(self, site: str, owner: str) -> SimulatedPlace:
        return SimulatedPlace(self.storages, site, self.perils.reach)

    # -- requests

    def request(
        self, owner: str, link: tuple[str, str], count: int, *, workflow: str, dataset: str | None, kind: FileKind,
        declared: bool
    ) -> tuple[int, ...]:  # fmt: skip
        """A job's files appear at its site, and their transfer is asked for; the ids of the transfers."""
        source, destination = link
        if (owner, workflow) in self.closed:
            workflow = f"{workflow}-{self.keys}"
        self.keys += 1
        key = f"key-{self.keys}"
        made: list[tuple[FileToTransfer, Content]] = []
        for number in range(count):
            name = f"{key}-{number}.root"
            there, here = f"{TEMPORARY}/user/{owner}/{name}", f"/store/user/{owner}/{name}"
            size, checksum = 1000 * self.keys + number, f"adler32:{self.keys:04x}{number:04x}"
            content = Content(size, checksum, "job", self.time)
            self.storages.files[source, there] = content
            file = FileToTransfer(
                source, there, destination, here, kind=kind, size=size if declared else None,
                checksum=checksum if declared else None, dataset=dataset,
            )  # fmt: skip
            made.append((file, content))
        request = StageoutRequest(owner, key, workflow, tuple(file for file, _ in made))
        check_request(request, SITES)
        receipt = record_request(self.ledger, request, now=self.time)
        assert record_request(self.ledger, request, now=self.time).repeated
        columns = stageout_transfers.c
        with reading(self.ledger) as connection:
            ids = connection.scalars(select(columns.id).where(columns.request == receipt.id).order_by(columns.id))
            numbers = tuple(ids)
        for number, (file, content) in zip(numbers, made, strict=True):
            self.files[number] = KnownFile(
                number, (source, file.source_name), (destination, file.destination_name), content, owner, workflow,
                dataset,
            )  # fmt: skip
        return numbers

    def note(self, fault: str, which: Callable[[KnownFile], bool]) -> None:
        """What may be a reason for the failure of files."""
        for file in filter(which, self.files.values()):
            file.faults.append(fault)

    def forget(self, server: str, jobs: list[str], *, archived: bool) -> None:
        """An FTS server does not know jobs any more."""
        places = self.servers[server].forget(jobs, archived=archived)
        self.note("forgotten", lambda file: file.destination in places)
        left = {place: self.storages.files[place] for place in places & set(self.storages.files)}
        self.note(
            ORPHANED,
            lambda file: (
                file.destination in self.writers  # its copy goes on, and leaves a part
                or (file.destination in left and not left[file.destination].same_as(file.content))
            ),
        )

    def stray(self, site: str, owner: str) -> None:
        """A job leaves a file for which no transfer is asked."""
        self.keys += 1
        name = f"{TEMPORARY}/user/{owner}/stray-{self.keys}.root"
        self.storages.put(site, name, 7, "adler32:00057a4e", "job")

    # -- what is true, whatever the ledger says

    def why_kept(self, site: str, name: str) -> str | None:
        """Why a source may not be removed now; None: it may."""
        file = next((file for file in self.files.values() if file.source == (site, name)), None)
        if file is None:
            age = self.time - self.storages.files[site, name].since if (site, name) in self.storages.files else None
            if SITES[site].clean_unknown and age is not None and age > timedelta(days=UNKNOWN_DAYS):
                return None
            return "no transfer has it as its source"
        if not self.arrived(file):
            return "its copy is not at the destination"
        if file.dataset is not None and self.registrations(file) != 1:
            return "it is not registered"
        return None if SITES[site].clean else "the site does not allow it"

    def arrived(self, file: KnownFile) -> bool:
        """Whether the destination has the whole file."""
        there = self.storages.files.get(file.destination)
        by_size = SITES[file.destination[0]].checksum.value == "none"
        return there is not None and there.same_as(file.content, by_size=by_size)

    def registrations(self, file: KnownFile) -> int:
        """How often the catalogue has the file, as it is."""
        columns = stageout_catalogue.c
        query = select(columns.id).where(
            columns.dataset == file.dataset, columns.name == file.destination[1], columns.size == file.content.size
        )
        with self.ledger.connect() as connection:
            return len(connection.execute(query).all())


def _hurry(connection: object, _record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA synchronous = OFF")
    cursor.execute("PRAGMA busy_timeout = 200")  # one thread: who waits for a lock waits for itself
    cursor.close()


@cache
def _template() -> Path:
    """A migrated ledger."""
    file = Path(tempfile.mkdtemp(prefix="machine-")) / "ledger.db"
    ledger = open_ledger(f"sqlite:///{file}")
    migrate(ledger)
    with ledger.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.dispose()
    return file
