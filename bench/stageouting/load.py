"""What the load of stage-out consists of: users, sites, links, and files whose sources need not be made."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from include.settings.sites import RemoteSite
from include.settings.stageout import StageoutSettings
from include.stageout.files import FileToTransfer, StageoutRequest

DOMAIN = "example.org"
AREA = "/store/temp"
SERVER = "fts_default"
LARGEST = 4 << 30
"""As the simulated storage makes up sizes of what was never created."""
FAILURES = {
    "source-missing": 0.005, "source-unreachable": 0.01, "source-checksum": 0.0025, "network": 0.01, "stalled": 0.005,
    "destination-full": 0.005, "destination-denied": 0.0025, "destination-checksum": 0.01,
}  # fmt: skip
"""Of each copy; 5 % together."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Who asks for what.

    Attributes:
        rate: Files a second, over all users.
        minutes: Of injection.
        users: Each sends one request a minute.
        sites: Each is source and destination.
        per_job: Files of an FTS job at most.
        random_links: Each file has a link of its own; else each user draws one link a minute.
        run: What the names of this run begin with.
    """

    rate: float
    minutes: float
    users: int = 200
    sites: int = 60
    per_job: int = 100
    random_links: bool = False
    run: str = "run"
    seed: int = 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LoadPlan:
        return cls(**document)

    @property
    def minute_s(self) -> float:
        """A trial of less than a minute has a shorter one."""
        return 60 * self.minutes / self.rounds

    @property
    def rounds(self) -> int:
        """Minutes that have begun."""
        return max(1, round(self.minutes))

    @property
    def per_request(self) -> int:
        return max(1, round(self.rate * self.minute_s / self.users))

    @property
    def files(self) -> int:
        return self.rounds * self.users * self.per_request

    def owner(self, user: int) -> str:
        return f"user{user:03}"

    def requests(self) -> Iterator[tuple[float, StageoutRequest]]:
        """When, in seconds after the begin, and what; in order of time."""
        draw = random.Random(self.seed)
        phases = sorted((draw.uniform(0, self.minute_s), user) for user in range(self.users))
        for minute in range(self.rounds):
            for phase, user in phases:
                yield minute * self.minute_s + phase, self.request(minute, user, draw)

    def request(self, minute: int, user: int, draw: random.Random) -> StageoutRequest:
        owner = self.owner(user)
        links = [draw.sample(range(self.sites), 2) for _ in range(self.per_request if self.random_links else 1)]
        files = []
        for number in range(self.per_request):
            source, destination = (site_name(site) for site in links[number % len(links)])
            name = f"{owner}/{self.run}/{minute}/{number}.root"
            files.append(_file(source, f"{AREA}/user/{name}", destination, f"/store/user/{name}", owner))
        return StageoutRequest(owner, f"{self.run}-{minute}", workflow(self.run), tuple(files))


def workflow(run: str) -> str:
    return f"workflow-{run}"


def _file(source: str, source_name: str, destination: str, destination_name: str, owner: str) -> FileToTransfer:
    url = source_url(source, source_name)
    size = zlib.crc32(url.encode()) % LARGEST
    return FileToTransfer(
        source, source_name, destination, destination_name, size=size, checksum=checksum(url, size),
        dataset=f"/{owner}/bench/USER",
    )  # fmt: skip


def source_url(site: str, name: str) -> str:
    return f"mock://{site}.{DOMAIN}{name}"


def checksum(url: str, size: int) -> str:
    """As the simulated storage has it."""
    return f"adler32:{zlib.adler32(f'{url}:{size}'.encode()):08x}"


def site_name(number: int) -> str:
    return f"site{number:02}"


def site_documents(count: int) -> dict[str, dict[str, Any]]:
    """Sites of the simulated storage, as the configuration has them."""
    found: dict[str, dict[str, Any]] = {}
    for name in map(site_name, range(count)):
        rules = [{"prefix": "/", "url": f"mock://{name}.{DOMAIN}"}]
        uses = {"read": rules, "write": rules, "third_party": rules}
        found[name] = {**uses, "temporary": AREA, "clean": True, "rse": name.upper()}
    return found


def sites(count: int) -> dict[str, RemoteSite]:
    """The same as the components have them."""
    documents = site_documents(count)
    return {name: RemoteSite.model_validate({"name": name, **document}) for name, document in documents.items()}


def settings(plan: LoadPlan, catalogue: Mapping[str, str]) -> StageoutSettings:
    return StageoutSettings.model_validate(
        {"fts": [SERVER], "files_per_job": plan.per_job, "most_queued": 100_000, "catalogue": catalogue}
    )


def utc() -> datetime:
    return datetime.now(UTC)
