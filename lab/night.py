"""A night in a lab, and its report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from include.cli.airflow_connections import NIGHT_S, Snapshot, follow, start
from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.publication import Publication, State
from include.nightlies.steps.sources import index_place
from include.settings.model import SiteSettings, Slot, StoreSettings
from include.settings.secrets import Secrets
from include.site.bootstrap import found_repository, found_stores, try_stores
from include.site.site import Site
from lab import lifecycle
from lab.build import PackedBuild, pack_build
from lab.environment import Lab
from lab.errors import NOT_THE_DEMONSTRATIONS


@dataclass(frozen=True, slots=True)
class ArtifactLine:
    """Artifact of a night; sizes in bytes, times in seconds."""

    project: str
    platform: str
    state: str
    reason: str
    files: int
    bytes: int
    objects_new: int
    objects_reused: int
    bytes_uploaded: int
    seconds: float
    lease_held_s: float

    @classmethod
    def of(cls, one: Publication) -> ArtifactLine:
        return cls(
            project=one.project or "",
            platform=one.platform or one.destination,
            state=one.state.value,
            reason=one.reason,
            **{name: getattr(one, name) or 0 for name in _COUNTS},
            seconds=round(sum(one.seconds.values()), 2),
            lease_held_s=round(one.lease_held_s or 0.0, 3),
        )


_COUNTS = ("files", "bytes", "objects_new", "objects_reused", "bytes_uploaded")
_OF_THE_NIGHT = ("slot", "date", "run", "repository", "url", "public_key", "revision", "root_hash")


@dataclass(frozen=True, slots=True)
class NightReport:
    """A night as it ended."""

    slot: str
    date: str
    run: str
    repository: str
    url: str
    public_key: str
    revision: int
    root_hash: str
    lines: tuple[ArtifactLine, ...]
    expected: int
    problems: tuple[str, ...]  # of the repository check
    wall_s: float

    @property
    def good(self) -> bool:
        """Every artifact that the build lists is in the repository, and the repository has no problem."""
        return not self.problems and not self.failed and len(self.lines) == self.expected

    @property
    def published(self) -> int:
        return self._count(State.PUBLISHED)

    @property
    def unchanged(self) -> int:
        return self._count(State.UNCHANGED)

    @property
    def failed(self) -> int:
        """Every artifact that is not in the repository, whatever the reason."""
        return self.expected - self.published - self.unchanged

    def total(self, field: str) -> int:
        """The sum of a field over all artifacts."""
        return sum(getattr(line, field) for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _OF_THE_NIGHT},
            "artifacts": self.expected,
            **{name: getattr(self, name) for name in ("published", "unchanged", "failed", "good")},
            **{name: self.total(name) for name in _COUNTS},
            "lease_held_s_max": max((line.lease_held_s for line in self.lines), default=0.0),
            "wall_s": round(self.wall_s, 1),
            "check": list(self.problems) or "no problems found",
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "per_artifact": [asdict(line) for line in self.lines],
        }

    def write(self, path: Path) -> None:
        """Writes the report; a reader sees the old one or the new one."""
        draft = path.with_name(path.name + ".new")
        draft.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        draft.replace(path)

    def client_configuration(self) -> str:
        """The five lines with which a CernVM-FS client mounts the repository."""
        return (
            f"CVMFS_REPOSITORIES={self.repository}\nCVMFS_SERVER_URL={self.url}\nCVMFS_PUBLIC_KEY={self.public_key}\n"
            "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_CLIENT_PROFILE=single"
        )

    def _count(self, state: State) -> int:
        return sum(line.state == state.value for line in self.lines)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What night to run."""

    slot: str
    date: date
    rebuild: bool = False
    allow_future: bool = False


@dataclass(frozen=True, slots=True)
class Viewer:
    """Callbacks that report the progress of a night."""

    say: Callable[[str], None]
    packed: Callable[[str], None]
    run: Callable[[Snapshot], None]


def demonstration_slot(settings: SiteSettings, name: str = "") -> Slot:
    """The slot of that name, by default the first one that is the demonstration's.

    Raises LabError: it is not marked as the demonstration's, or other slots use its store or its repository.
    """
    marked = [slot for slot in settings.slots.values() if slot.demonstration]
    if not name and not marked:
        raise NOT_THE_DEMONSTRATIONS(f"no slot of the configuration is the demonstration's. {_CURE}")
    slot = settings.slot(name) if name else marked[0]
    if not slot.demonstration:
        install = f"To install a build of it: nightshift nightly install --slot {slot.name} --date YYYY-MM-DD"
        raise NOT_THE_DEMONSTRATIONS(f"slot {slot.name} is not the demonstration's. {_CURE} {install}")
    place = settings.store(slot.store)
    for other in settings.slots.values():
        if other.demonstration:
            continue
        if other.repository == slot.repository:
            raise NOT_THE_DEMONSTRATIONS(_shared(slot, "repository", slot.repository, other))
        if _overlap(place, settings.store(other.store)):
            raise NOT_THE_DEMONSTRATIONS(_shared(slot, "store", slot.store, other))
    return slot


_CURE = (
    "`nightly run` packs a build of this machine's software: it writes only to a slot with `demonstration: true`, "
    "whose store and repository no other slot uses."
)


def _shared(slot: Slot, kind: str, name: str, other: Slot) -> str:
    cure = f"Give each a {kind} of its own, or remove `demonstration` from slot {slot.name}."
    return f"{kind} {name} of the demonstration's slot {slot.name} is used by slot {other.name}, too. {cure}"


def _overlap(store: StoreSettings, other: StoreSettings) -> bool:
    """Tell whether one of two stores is the other, or lies in it."""
    outer, inner = sorted(settings.url.rstrip("/") + "/" for settings in (store, other))
    return store.endpoint == other.endpoint and inner.startswith(outer)


def run_night(lab: Lab, settings: SiteSettings, secrets: Secrets, wishes: Wishes, viewer: Viewer) -> NightReport:
    """Runs a night of the demonstration and checks what became of it. The services stay up.

    Raises LabError: the slot is not the demonstration's; nothing was started then.
    """
    slot = demonstration_slot(settings, wishes.slot)
    began = time.monotonic()
    lifecycle.up(lab, airflow=True, say=viewer.say)
    viewer.say(f"services up after {time.monotonic() - began:.0f} s; Airflow at {lab.airflow_url}")
    site = Site(settings, secrets)
    stores = {slot.store, settings.repository(slot.repository).store}
    found_stores(site, stores, say=viewer.say)
    found_repository(site, slot.repository, say=viewer.say)
    try_stores(site, stores, say=viewer.say)
    build = _build(lab, site, settings, wishes, viewer)
    api = lab.administrator()
    dag_id = f"nightly_install_{wishes.slot}"
    run_id = start(api, dag_id, wishes.date, viewer.say, allow_future=wishes.allow_future)
    follow(api, dag_id, run_id, show=viewer.run, timeout_s=NIGHT_S)
    return _report(site, settings, wishes, build, dag_id, run_id, began)


def _build(lab: Lab, site: Site, settings: SiteSettings, wishes: Wishes, viewer: Viewer) -> PackedBuild:
    slot = settings.slot(wishes.slot)
    began = time.monotonic()
    build = pack_build(
        site.store(slot.store),
        slot=slot.name,
        date=wishes.date,
        index_key=index_place(slot, wishes.date),
        cache=lab.place.var / "build-cache",
        projects=slot.projects,
        platforms=slot.platforms,
        rebuild=wishes.rebuild,
        progress=lambda packed: viewer.packed(f"{packed.project}/{packed.platform}"),
    )
    files = f"{build.files} files, " if build.files else ""
    viewer.say(
        f"build {build.index.build_id} of slot {slot.name}: {build.reason}; {len(build.index.artifacts)} artifacts, "
        f"{files}{build.size / 1e6:.0f} MB, {time.monotonic() - began:.1f} s"
    )
    return build


def _report(
    site: Site, settings: SiteSettings, wishes: Wishes, build: PackedBuild, dag_id: str, run_id: str, began: float
) -> NightReport:
    from include.cvmfs.check.check import check

    slot = settings.slot(wishes.slot)
    served = settings.repository(slot.repository)
    repository = site.repository(slot.repository)
    problems = check(repository).problems
    run = f"{dag_id}/{run_id}"
    published = (one for one in publications_of_run(site.ledger, run) if one.artifact is not None or one.project)
    lines = sorted(map(ArtifactLine.of, published), key=lambda line: (line.project, line.platform))
    return NightReport(
        slot=slot.name,
        date=wishes.date.isoformat(),
        run=run,
        repository=served.fqrn,
        url=served.public_url,
        public_key=str(served.public_key),
        revision=repository.manifest.revision,
        root_hash=str(repository.manifest.root),
        lines=tuple(lines),
        expected=len(build.index.artifacts),
        problems=tuple(str(problem) for problem in problems),
        wall_s=time.monotonic() - began,
    )
