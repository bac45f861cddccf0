"""Files that a lab generates and stages out, and the account of their copies."""

from __future__ import annotations

import json
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import Engine

from include.airflow_api import AirflowApi
from include.monitoring.airflow_checks import needed
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets
from include.settings.sites import ChecksumMode, RemoteSite
from include.site.bootstrap import found_stores
from include.site.site import Site
from include.stageout.blocks import close_workflow
from include.stageout.files import FileToTransfer, SiteOperation, StageoutRequest, check_request, site_urls
from include.stageout.requests import record_request
from include.stageout.retry import TransferFailureClass
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.status import TransferFilter, TransferStatus, count_archived, count_transfers, list_transfers
from include.storage.store import Store
from lab import lifecycle
from lab.environment import Lab
from lab.errors import NOT_THE_DEMONSTRATIONS, LabError

USERS = ("ada", "ben", "cleo", "dan", "eva")
LINKS = (("Lab_North", "Lab_South"), ("Lab_South", "Lab_North"), ("Lab_East", "Lab_West"), ("Lab_West", "Lab_East"))
FAULTY = 20
"""Every so many files one has a fault: 5 %."""
LARGEST = 64 << 10


class LabFault(Enum):
    """Fault of a file; the value is the class of failure that it leads to."""

    NO_SOURCE = TransferFailureClass.SOURCE_MISSING
    WRONG_CHECKSUM = TransferFailureClass.SOURCE_CHECKSUM
    TAKEN = TransferFailureClass.DESTINATION_EXISTS


@dataclass(frozen=True, slots=True)
class LabFile:
    """A file of a user. Its bytes follow from its seed."""

    owner: str
    file: FileToTransfer
    seed: int
    fault: LabFault | None

    @property
    def content(self) -> bytes:
        return content_of(self.seed)


def content_of(seed: int) -> bytes:
    """The bytes of a file."""
    made = random.Random(seed)  # noqa: S311 - no secret
    return made.randbytes(made.randint(1, LARGEST))


def planned(settings: SiteSettings, workflow: str, files: int, *, seed: int) -> tuple[LabFile, ...]:
    """The files of a workflow: shared among users and links; half of them belong to a data set.

    `settings`: the name spaces of users, and the temporary areas of sites. `seed`: of their contents.
    """
    faults = list(LabFault)
    found = []
    for number in range(files):
        owner = USERS[number % len(USERS)]
        source, destination = LINKS[number // len(USERS) % len(LINKS)]
        block, position = divmod(number, FAULTY)
        # another place in each block, so that all users and links have some
        fault = faults[block % len(faults)] if position == block % FAULTY else None
        if fault is LabFault.WRONG_CHECKSUM and settings.sites[source].checksum is ChecksumMode.READ_BACK:
            # of such a site FTS compares the copy only, and a difference of a copy is retried for hours
            fault = LabFault.NO_SOURCE
        name, content = f"{workflow}/{seed + number}.root", content_of(seed + number)
        checksum = zlib.adler32(content) ^ (1 if fault is LabFault.WRONG_CHECKSUM else 0)
        stageout, area = settings.stageout, settings.sites[source].temporary or "/store/temp"
        file = FileToTransfer(
            source, f"{stageout.temporary_of(owner, area)}/{name}", destination,
            f"{stageout.name_space_of(owner)}/{name}", size=len(content), checksum=f"adler32:{checksum:08x}",
            dataset=f"/{workflow}/{owner}" if (seed + number) % 2 else None,
            user_job=f"{workflow}.{(seed + number) % 10}",
        )  # fmt: skip
        found.append(LabFile(owner, file, seed + number, fault))
    return tuple(found)


def requests_of(workflow: str, files: Sequence[LabFile]) -> Iterator[StageoutRequest]:
    """Yield one request for each user."""
    for owner in dict.fromkeys(file.owner for file in files):
        theirs = tuple(file.file for file in files if file.owner == owner)
        yield StageoutRequest(owner, f"{workflow}-{owner}", workflow, theirs)


class LabPlaces:
    """Files at the sites of the lab, which are folders and buckets of this machine."""

    def __init__(self, site: Site) -> None:
        self._sites: Mapping[str, RemoteSite] = site.settings.sites
        self._stores = {name: site.store(one.store) for name, one in self._sites.items() if one.store is not None}

    def put(self, file: LabFile) -> None:
        """Put a file where its job would have left it, and what its fault takes."""
        if file.fault is not LabFault.NO_SOURCE:
            self._write(file.file.source, file.file.source_name, file.content)
        if file.fault is LabFault.TAKEN:
            self._write(file.file.destination, file.file.destination_name, b"of another")

    def read(self, site: str, name: str) -> bytes | None:
        """The bytes of a file, None if it does not exist."""
        place = self._place(site, name)
        if isinstance(place, Path):
            return place.read_bytes() if place.is_file() else None
        store, key = place
        return b"".join(store.stream(key)) if store.exists(key) else None

    def _write(self, site: str, name: str, content: bytes) -> None:
        place = self._place(site, name)
        if isinstance(place, Path):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        else:
            store, key = place
            store.put(key, content)

    def _place(self, site: str, name: str) -> Path | tuple[Store, str]:
        (url,) = site_urls(self._sites[site], SiteOperation.WRITE, name).values()
        store = self._stores.get(site)
        if store is None:
            return Path(urlsplit(url).path)
        return store, urlsplit(url).path.removeprefix(f"/{urlsplit(store.url).hostname}").lstrip("/")


DAG_APPEARS_S = 120.0
LONGEST_S = 1800.0
POLL_S = 2.0
PAGE = 1000
_VERIFIED = TRANSFER_ENDED | {TransferState.DONE, TransferState.REGISTERED, TransferState.CLEANING}

Say = Callable[[str], None]


def run_stageout(lab: Lab, settings: SiteSettings, secrets: Secrets, *, files: int, say: Say) -> StageoutAccount:
    """Transfer so many files of the lab's users, and check what became of each. The services stay up.

    Raises LabError: the configuration lacks the sites of the lab, or the files have not ended in time.
    """
    absent = sorted({name for link in LINKS for name in link} - settings.sites.keys())
    if absent:
        cure = "It transfers files between the sites of config/site.yaml only: unset NIGHTSHIFT_CONFIG."
        raise NOT_THE_DEMONSTRATIONS(f"the configuration lacks the demonstration's sites {', '.join(absent)}. {cure}")
    lifecycle.up(lab, airflow=True, say=say)
    site = Site(settings, secrets)
    found_stores(site, {one.store for one in settings.sites.values() if one.store}, say=say)
    now = datetime.now(UTC)
    workflow = f"lab-{now:%Y%m%d-%H%M%S}"
    wanted = planned(settings, workflow, files, seed=int(now.timestamp()))
    places = LabPlaces(site)
    for file in wanted:
        places.put(file)
    faults = sum(file.fault is not None for file in wanted)
    say(f"{files} files at their sites, {faults} of them with a fault; workflow {workflow}")
    began = time.monotonic()
    for request in requests_of(workflow, wanted):
        check_request(request, settings.sites)
        record_request(site.ledger, request, now=datetime.now(UTC))
    with _unpaused(lab.administrator(), settings, say):
        _follow(site.ledger, workflow, files, say)
    wall_s = time.monotonic() - began
    return account_of(workflow, wanted, list(_transfers(site.ledger, workflow)), places, wall_s=wall_s)


@contextmanager
def _unpaused(api: AirflowApi, settings: SiteSettings, say: Say) -> Iterator[None]:
    """The DAGs of stage-out run meanwhile; those that were paused are paused again."""
    dags = [name for name in needed(settings) if name.startswith("stage_out_")]
    for name in dags:
        api.wait_for_dag(name, timeout_s=DAG_APPEARS_S)
    paused = [name for name, is_paused in api.paused().items() if is_paused and name in dags]
    for name in paused:
        api.unpause(name)
    say(f"unpaused {', '.join(paused)}: a pass of each begins every minute" if paused else "the DAGs are unpaused")
    try:
        yield
    finally:
        for name in paused:
            api.pause(name)
        if paused:
            say("paused them again")


def _follow(ledger: Engine, workflow: str, files: int, say: Say) -> None:
    deadline = time.monotonic() + LONGEST_S
    told: Mapping[TransferState, int] = {}
    while True:
        states = _states(ledger, workflow)
        if sum(count for state, count in states.items() if state in _VERIFIED) >= files and states != told:
            # or their last blocks would wait for further files; again, since files come into blocks meanwhile
            for owner in USERS:
                close_workflow(ledger, owner, workflow, now=datetime.now(UTC))
        if states != told:
            say(", ".join(f"{state.value} {count}" for state, count in states.items()))
            told = states
        if sum(count for state, count in states.items() if state in TRANSFER_ENDED) >= files:
            return
        if time.monotonic() > deadline:
            raise LabError(f"the files of {workflow} did not end within {LONGEST_S:.0f} s: check their reasons")
        time.sleep(POLL_S)


def _states(ledger: Engine, workflow: str) -> dict[TransferState, int]:
    wanted = TransferFilter(workflow=workflow)
    files: Counter[TransferState] = Counter()
    for count in (*count_transfers(ledger, wanted), *count_archived(ledger, wanted)):
        files[count.state] += count.files
    return {state: files[state] for state in TransferState if state in files}


def _transfers(ledger: Engine, workflow: str) -> Iterator[TransferStatus]:
    after: int | None = None
    while True:
        page = list_transfers(ledger, TransferFilter(workflow=workflow), after=after, limit=PAGE)
        yield from page.rows
        if page.after is None:
            return
        after = page.after


_COMPLETE = frozenset({TransferState.CLEANED, TransferState.KEPT})


@dataclass(frozen=True, slots=True)
class StageoutAccount:
    """The files of a workflow as they ended.

    `bytes`: of those that were copied. `datasets`: registered files by data set. `failures`: failed files by class,
    each with the reason of one of them. `copied_s`, `ended_s`: seconds from the request to the end of the copy, or to
    the last state: median, and 95 % of the files. `problems`: files that do not match their state. `wall_s`: seconds
    until all had ended.
    """

    workflow: str
    files: int
    bytes: int
    states: Mapping[str, int]
    datasets: Mapping[str, int]
    failures: Mapping[str, tuple[int, str]]
    links: Mapping[tuple[str, str], int]
    copied_s: tuple[float, float]
    ended_s: tuple[float, float]
    problems: tuple[str, ...]
    wall_s: float

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        document = asdict(self) | {
            "failures": [
                {"class": kind, "reason": reason, "files": count} for kind, (count, reason) in self.failures.items()
            ],
            "links": [{"link": link, "state": state, "files": count} for (link, state), count in self.links.items()],
            "wall_s": round(self.wall_s, 1),
        }
        path.write_text(json.dumps(document, indent=1) + "\n")


def account_of(
    workflow: str, planned: Sequence[LabFile], found: Sequence[TransferStatus], places: LabPlaces, *, wall_s: float
) -> StageoutAccount:
    """Compare what was planned with the ledger and with the sites."""
    by_name = {(one.destination, one.destination_name): one for one in found}
    problems = [
        f"{file.file.destination}:{file.file.destination_name}: {problem}"
        for file in planned
        for problem in _problems(file, by_name.get((file.file.destination, file.file.destination_name)), places)
    ]
    complete = [one for one in found if one.state in _COMPLETE]
    failed = [one for one in found if one.state is TransferState.FAILED]
    reasons = {one.failure or "": one.reason for one in failed}
    copied = [(one.copied_at - one.created_at).total_seconds() for one in found if one.copied_at is not None]
    ended = [(one.moved_at - one.created_at).total_seconds() for one in found]
    return StageoutAccount(
        workflow,
        len(found),
        sum(one.size or 0 for one in complete),
        dict(Counter(one.state.value for one in found)),
        dict(sorted(Counter(row.dataset for row in complete if row.dataset).items())),
        {kind: (count, reasons[kind]) for kind, count in Counter(one.failure or "" for one in failed).most_common()},
        dict(sorted(Counter((f"{one.source} to {one.destination}", one.state.value) for one in found).items())),
        (percentile(copied, 50), percentile(copied, 95)),
        (percentile(ended, 50), percentile(ended, 95)),
        tuple(problems),
        wall_s,
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of all do not exceed; 0 of none."""
    ordered = sorted(values)
    return round(ordered[max(0, -(-len(ordered) * percent // 100) - 1)], 1) if ordered else 0.0


def _problems(file: LabFile, found: TransferStatus | None, places: LabPlaces) -> list[str]:
    if found is None:
        return ["the ledger does not have it"]
    source = places.read(file.file.source, file.file.source_name)
    copy = places.read(file.file.destination, file.file.destination_name)
    if file.fault is not None:
        expected = found.state is TransferState.FAILED and found.failure == file.fault.value.value
        return ([] if expected else [f"it is {found.state.value} ({found.reason}), not {file.fault.value.value}"]) + (
            ["its destination was replaced"] if copy not in (None, b"of another") else []
        )
    wrong = [] if found.state in _COMPLETE else [f"it is {found.state.value} ({found.reason})"]
    wrong += [] if copy == file.content else ["its destination is missing or differs"]
    wrong += ["its source is still there"] if found.state is TransferState.CLEANED and source is not None else []
    return wrong
