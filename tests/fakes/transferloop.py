"""Stage-out with a ledger in SQLite, an FTS server in memory and storages in dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, Row, select

from include.fts.client import FtsClient
from include.ledger.engine import reading
from include.settings.sites import RemoteSite
from include.settings.stageout import StageoutSettings
from include.stageout.claims import StageoutWorker
from include.stageout.components.monitor import MonitorReport, monitor
from include.stageout.components.reporter import ReporterReport, read_back, report
from include.stageout.components.retry_manager import RetryReport, retry_waiting
from include.stageout.components.submitter import SubmitReport, submit
from include.stageout.opening import Stageout
from include.stageout.places.facts import FileFacts
from include.stageout.tables import stageout_jobs, stageout_transfers
from tests.fakes.ftsserver import FtsServer
from tests.fakes.places import MemoryPlace
from tests.fakes.transfers import NOW, recorded, states

ADLER32 = "adler32:0a1b2c3d"


def mock_site(name: str, **fields: Any) -> RemoteSite:
    """A site with one rule for everything."""
    rules = [{"prefix": "/", "url": f"mock://{name}.example.org"}]
    return RemoteSite.model_validate({"name": name, "read": rules, "write": rules, "third_party": rules, **fields})


@dataclass
class TransferLoop:
    """What the components are given, and what tests look at. ``at``: the time; it goes on when a test says so."""

    ledger: Engine
    server: FtsServer
    settings: StageoutSettings = field(default_factory=StageoutSettings)
    sites: dict[str, RemoteSite] = field(default_factory=lambda: {one: mock_site(one) for one in ("pisa", "bari")})
    places: dict[str, MemoryPlace] = field(default_factory=lambda: {one: MemoryPlace() for one in ("pisa", "bari")})
    obstacles: dict[str, str] = field(default_factory=dict)
    """Sites to which nothing is sent."""
    at: datetime = NOW
    clients: dict[tuple[str, str], FtsClient] = field(default_factory=dict)
    credential_missing: dict[str, Exception] = field(default_factory=dict)
    """Errors by user."""

    @property
    def stageout(self) -> Stageout:
        return Stageout(
            ledger=self.ledger,
            settings=self.settings,
            sites=self.sites,
            worker=StageoutWorker("worker-1"),
            fts=self._client,
            place=lambda site, owner: self.places[site],
            obstacles=lambda: self.obstacles,
        )

    def _client(self, server: str, owner: str, *sites: str) -> FtsClient:
        if owner in self.credential_missing:
            raise self.credential_missing[owner]
        key = (server, owner)
        if key not in self.clients:
            self.clients[key] = FtsClient(self.server.url, timeout_s=5, retries=0)
        return self.clients[key]

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def now(self) -> datetime:
        return self.at

    def submit(self, limit: int = 1000) -> SubmitReport:
        """A batch of the submitter."""
        return submit(self.stageout, now=self.now, limit=limit)

    def monitor(self, limit: int = 1000) -> MonitorReport:
        """A batch of the monitor, after the first wait of a job."""
        self.later(seconds=11)
        return monitor(self.stageout, now=self.now, limit=limit)

    def report(self, limit: int = 1000) -> ReporterReport:
        """A batch of the reporter."""
        return report(self.stageout, now=self.now, limit=limit)

    def read_back(self, limit: int = 1000) -> ReporterReport:
        """A batch of the component that reads large copies."""
        return read_back(self.stageout, now=self.now, limit=limit)

    def retry(self, limit: int = 1000) -> RetryReport:
        """A batch of the retry manager."""
        return retry_waiting(self.stageout, now=self.now, limit=limit)

    def submitted(self, count: int = 1, **fields: object) -> list[int]:
        """Ids of transfers that FTS has."""
        ids = self.request(count, **fields)
        self.submit()
        return ids

    def later(self, **time: float) -> None:
        """Let time go by."""
        self.at += timedelta(**time)

    def request(self, count: int = 1, **fields: object) -> list[int]:
        """Ids of new transfers; their sources exist."""
        ids = recorded(self.ledger, count, now=self.at, **{"size": 10, "checksum": ADLER32, **fields})
        for row in self.rows():
            self.places["pisa"].files.setdefault(row.source_name, FileFacts(row.size or 10, ADLER32))
        return ids

    def rows(self) -> list[Row[Any]]:
        """All transfers, by id."""
        with reading(self.ledger) as connection:
            return list(connection.execute(select(stageout_transfers).order_by(stageout_transfers.c.id)))

    def row(self, number: int) -> Row[Any]:
        return next(row for row in self.rows() if row.id == number)

    def jobs(self) -> list[Row[Any]]:
        """All jobs, by id."""
        with reading(self.ledger) as connection:
            return list(connection.execute(select(stageout_jobs).order_by(stageout_jobs.c.id)))

    def states(self) -> list[str]:
        """The states of all transfers, by id."""
        return [state.value for _, state in sorted(states(self.ledger).items())]

    def fts_files(self) -> dict[int, dict[str, Any]]:
        """The files that the server has, by transfer; of several attempts the last one."""
        jobs = self.server.jobs.values()
        return {file["file_metadata"]["transfer"]: file for job in jobs for file in job["files"]}

    def answer_files(self, ids: Sequence[int], state: str, **fields: object) -> None:
        """Set what FTS says of the files of transfers. A job whose files have ended ends as FTS lets it."""
        for number in ids:
            self.fts_files()[number].update(file_state=state, **fields)
        for job in self.server.jobs.values():
            found = {file["file_state"] for file in job["files"]}
            if found <= {"FINISHED", "FAILED", "CANCELED"}:
                names = {("FINISHED",): "FINISHED", ("FAILED",): "FAILED", ("CANCELED",): "CANCELED"}
                job["job_state"] = names.get(tuple(found), "FINISHEDDIRTY")
            elif "ACTIVE" in found:
                job["job_state"] = "ACTIVE"
