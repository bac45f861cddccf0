"""The folder of a campaign: its plan, a file for each ended step, and the noise of this machine. A file is whole or
does not exist."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from include.benchmarks.campaign.plan import CampaignPlan, PlannedStep
from include.benchmarks.errors import CAMPAIGN_UNKNOWN, TARGET_BUSY
from include.benchmarks.measure.loads import ClusterSample, RunnerResult, ServerState
from include.benchmarks.measure.probes import MachineNoise, ServersView
from include.benchmarks.measure.targets import TargetSpace

FOLDER = "benchmarks"
"""Below `paths.var`."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CampaignRecord:
    """What a campaign is, from before its first step on."""

    id: str
    plan: CampaignPlan
    began_at: datetime
    host: str
    space: TargetSpace | None
    """Of the target, when it was planned."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that has ended, with its result or with what went wrong."""

    step: PlannedStep
    began_at: datetime
    seconds: float
    """From its begin to its end, with all that is not measured."""
    noise: MachineNoise
    space: TargetSpace | None
    """Of the target, before the step."""
    result: RunnerResult | None = None
    error: str | None = None
    error_code: str | None = None
    servers: ServersView | None = None
    """What servers and clients reported of themselves; None: they were not asked."""
    cluster: tuple[ClusterSample, ...] = ()
    """While the step ran, if its cluster is known."""


@dataclass(frozen=True, slots=True)
class KeptOutage:
    """OSDs that a campaign stops, by the names of their servers; kept before the first one is stopped."""

    id: str
    state: ServerState
    servers: Mapping[str, tuple[int, ...]]

    @property
    def osds(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(osd for osds in self.servers.values() for osd in osds)


_OUTAGE = TypeAdapter(KeptOutage)
_RECORD = TypeAdapter(CampaignRecord)
_STEP = TypeAdapter(StepRecord)


class CampaignFolder:
    """Where a campaign is kept on this machine."""

    def __init__(self, root: Path, campaign: str) -> None:
        if not ID.fullmatch(campaign):
            raise CAMPAIGN_UNKNOWN(campaign[:80], "this is not the id of a campaign")
        self.id = campaign
        self.path = root / campaign
        self._record, self._outage = self.path / "campaign.json", self.path / "outage.json"
        self._closed = self.path / "closed"

    def create(self, record: CampaignRecord) -> None:
        """Keep a new campaign; one that exists stays as it is."""
        (self.path / "steps").mkdir(parents=True, exist_ok=True)
        if not self._record.exists():
            _write(self._record, _RECORD.dump_json(record))

    def record(self) -> CampaignRecord:
        """The campaign. Raises BenchmarkError (CAMPAIGN_UNKNOWN)."""
        return self._read(self._record, _RECORD)

    def has(self, step: PlannedStep) -> bool:
        """Tell whether the step has ended."""
        return self._step(step.number).exists()

    def store(self, record: StepRecord) -> None:
        """Keep the record of a step."""
        _write(self._step(record.step.number), _STEP.dump_json(record))

    def forget(self, step: PlannedStep) -> None:
        """Let a step be run again."""
        self._step(step.number).unlink(missing_ok=True)

    def steps(self) -> Iterator[StepRecord]:
        """The steps that have ended, in their order."""
        for path in sorted((self.path / "steps").glob("*.json")):
            yield self._read(path, _STEP)

    def scratch(self, step: PlannedStep) -> Path:
        """An empty folder for files of the runner; what an interrupted try left there goes."""
        folder = self.path / "output" / f"{step.number:04}"
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        return folder

    def keep_outage(self, outage: KeptOutage) -> None:
        """Note what will be stopped."""
        _write(self._outage, _OUTAGE.dump_json(outage))

    def outage(self) -> KeptOutage | None:
        """Return what was noted and may still be stopped."""
        return self._read(self._outage, _OUTAGE) if self._outage.exists() else None

    def forget_outage(self) -> None:
        """Note that all is started again."""
        self._outage.unlink(missing_ok=True)

    @property
    def closed(self) -> bool:
        """Tell whether its data on the target were removed."""
        return self._closed.exists()

    def close(self) -> None:
        """Note that its data on the target were removed."""
        self._closed.touch()

    def _step(self, number: int) -> Path:
        return self.path / "steps" / f"{number:04}.json"

    def _read(self, path: Path, adapter: TypeAdapter[T]) -> T:
        try:
            return adapter.validate_json(path.read_bytes())
        except FileNotFoundError:
            raise CAMPAIGN_UNKNOWN(self.id, f"{path} does not exist") from None
        except (OSError, ValidationError, RecursionError) as error:
            raise CAMPAIGN_UNKNOWN(self.id, f"{path} cannot be read ({type(error).__name__})") from None


def campaigns_in(root: Path) -> list[str]:
    """The ids of the campaigns that are kept, the newest last."""
    found = [path.parent for path in root.glob("*/campaign.json")]
    return [path.name for path in sorted(found, key=lambda path: (path.stat().st_mtime, path.name))]


def _write(path: Path, document: bytes) -> None:
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(document)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def target_lock(root: Path, target: str) -> Iterator[None]:
    """Lock a target for one campaign; the kernel ends the lock of a process that dies."""
    locks = root / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(locks / target, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TARGET_BUSY(target, "another campaign is measuring it") from None
        yield
    finally:
        os.close(descriptor)
