"""A night from nothing: services, repository, a real build, the DAG under the real scheduler, the account of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from include.lab import lifecycle
from include.lab.airflow_api import AirflowApi
from include.lab.build import PackedBuild, pack_build
from include.lab.environment import ADMIN, Lab
from include.lab.follow import Snapshot, follow
from include.lab.report import NightReport, artifact_lines
from include.nightlies.records.publications import publications_of_run
from include.nightlies.steps.sources import index_place
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets
from include.site.bootstrap import found_repository, found_stores, try_stores
from include.site.site import Site

DAG_APPEARS_S = 120.0
NIGHT_S = 3600.0


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


def today(settings: SiteSettings, slot: str, now: datetime) -> date:
    """The build date of a run that is started by hand now, in the slot's time zone."""
    return now.astimezone(ZoneInfo(settings.slot(slot).timezone)).date()


def run_night(lab: Lab, settings: SiteSettings, secrets: Secrets, wishes: Wishes, viewer: Viewer) -> NightReport:
    """Runs a night and checks what became of it. The services stay up."""
    began = time.monotonic()
    lifecycle.up(lab, airflow=True, say=viewer.say)
    viewer.say(f"services up after {time.monotonic() - began:.0f} s; Airflow at {lab.airflow_url}")
    slot = settings.slot(wishes.slot)
    site = Site(settings, secrets)
    stores = {slot.store, settings.repository(slot.repository).store}
    found_stores(site, stores, say=viewer.say)
    found_repository(site, slot.repository, say=viewer.say)
    try_stores(site, stores, say=viewer.say)
    build = _build(lab, site, settings, wishes, viewer)
    api = AirflowApi(lab.airflow_url, ADMIN, lab.secrets.admin_password)
    dag_id = f"nightly_install_{wishes.slot}"
    run_id = start(api, dag_id, wishes.date, viewer.say, allow_future=wishes.allow_future)
    follow(api, dag_id, run_id, show=viewer.run, timeout_s=NIGHT_S)
    return _report(site, settings, wishes, build, dag_id, run_id, began)


def start(api: AirflowApi, dag_id: str, day: date, say: Callable[[str], None], *, allow_future: bool = False) -> str:
    """Starts a run for a build date, or joins one that is under way; returns its id."""
    api.wait_for_dag(dag_id, timeout_s=DAG_APPEARS_S)
    prefix = f"night__{day.isoformat()}__"
    earlier = api.runs(dag_id, prefix=prefix)
    for run in earlier:
        if run["state"] in {"queued", "running"}:
            api.unpause(dag_id)
            say(f"joining run {run['dag_run_id']}, which is under way")
            return str(run["dag_run_id"])
    attempts = [
        int(run["dag_run_id"].removeprefix(prefix))
        for run in earlier
        if run["dag_run_id"].removeprefix(prefix).isdigit()
    ]
    run_id = f"{prefix}{max(attempts, default=0) + 1}"
    # Unpausing a schedule starts the run of its last tick: ours takes that run's place, or two would do the same night.
    tick = api.pending_schedule(dag_id, now=datetime.now(UTC))
    wanted = {"build_date": day.isoformat(), **({"allow_future": True} if allow_future else {})}
    api.trigger(dag_id, run_id, wanted, logical_date=tick)
    api.unpause(dag_id)
    say(f"started run {run_id} of {dag_id}")
    return run_id


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
    return NightReport(
        slot=slot.name,
        date=wishes.date.isoformat(),
        run=f"{dag_id}/{run_id}",
        repository=served.fqrn,
        url=served.public_url,
        public_key=str(served.public_key),
        revision=repository.manifest.revision,
        root_hash=str(repository.manifest.root),
        lines=artifact_lines(publications_of_run(site.ledger, f"{dag_id}/{run_id}")),
        expected=len(build.index.artifacts),
        problems=tuple(str(problem) for problem in problems),
        wall_s=time.monotonic() - began,
    )
