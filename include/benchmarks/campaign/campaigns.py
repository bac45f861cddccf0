"""Campaigns of a deployment: begun, run, judged, reported and cleaned up, by the command and by the DAG alike.

Steps are run, and data removed, from where a killed process stopped.
"""

from __future__ import annotations

import math
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

from include.benchmarks.campaign.folder import (
    FOLDER,
    CampaignFolder,
    CampaignRecord,
    StepRecord,
    campaigns_in,
    target_lock,
)
from include.benchmarks.campaign.outages import CampaignOutage
from include.benchmarks.campaign.plan import (
    LOAD_SHARE,
    PROGRAMS,
    RUNNERS,
    CampaignPlan,
    CampaignWish,
    PlannedStep,
    find_preset,
    make_plan,
    shown_bytes,
)
from include.benchmarks.errors import (
    CAMPAIGN_ABORTED,
    CAMPAIGN_CLOSED,
    LIMIT_REACHED,
    RESULT_UNREADABLE,
    ROUND_TRIP_REFUSED,
    RUNNER_FAILED,
    RUNNER_MISSING,
    TARGET_REFUSED,
    BenchmarkError,
)
from include.benchmarks.judge.judge import JudgedCampaign, baseline_of, judge_campaign, may_change
from include.benchmarks.judge.report import write_report
from include.benchmarks.measure.ceph import ClusterClient, PacketPools, PoolBenchmarkTarget, check_target, space_of
from include.benchmarks.measure.endpoints import EndpointBenchmarkTarget
from include.benchmarks.measure.loads import ClusterSample, RunnerResult, ServerState
from include.benchmarks.measure.osds import ClusterWatch, OsdServer, open_servers
from include.benchmarks.measure.probes import CpuTicks, MachineNoise, ServersView, WatchedServers, load_now
from include.benchmarks.measure.programs import StopSignal, hosts_of
from include.benchmarks.measure.remote import RemoteBenchmarkTarget
from include.benchmarks.measure.targets import (
    AreaRemoval,
    BenchmarkTarget,
    BucketBenchmarkTarget,
    PathBenchmarkTarget,
    RunArea,
    TargetSpace,
)
from include.settings.benchmarks import BucketTarget, EndpointTarget, Mark, PathTarget, PoolTarget, RemoteTarget
from include.settings.model import StoreSettings
from include.settings.secrets import Secrets
from include.site.site import Site, credentials_of, options_of
from include.storage.open import open_store
from include.storage.store import Store

FORGOTTEN = timedelta(days=1)
OVER_TIME = "benchmark-over-time"
_OF_ONE_STEP = frozenset(row.code for row in (RUNNER_FAILED, RESULT_UNREADABLE, RUNNER_MISSING, ROUND_TRIP_REFUSED))
"""Errors after which the other steps are run."""
FILLED_SHARE = 0.99
"""The part of a fill that has to be written."""
ALONE_SHARE, LAST_OPERATION_S = 0.2, 2.0
"""The part of a mixed step's time, and the seconds, in which streams may run alone to end their last operations."""
FREED_S, FREED_EVERY_S = 30.0, 1.0
"""After how long without growth the free space of a target counts as final, and how often it is asked for meanwhile."""
Clock = Callable[[], datetime]
Watch = Callable[[], AbstractContextManager[Callable[[], ServersView | None]]]


@dataclass(frozen=True, slots=True)
class ConcludedCampaign:
    """A campaign with its verdict and report."""

    judged: JudgedCampaign
    report: Path


def open_target(site: Site, name: str) -> BenchmarkTarget:
    """The target of that name; nothing is sent to it yet. A new kind is a block of settings, a class and a case here.

    Raises:
        SettingsError: There is no such target.
        BenchmarkError: TARGET_REFUSED if it is not marked `benchmark: allowed`.
    """
    settings = site.settings.benchmarks.target(name)
    if settings.benchmark is not Mark.ALLOWED:
        raise TARGET_REFUSED(name, "the target is not marked `benchmark: allowed`")
    match settings:
        case PathTarget():
            return PathBenchmarkTarget(settings)
        case BucketTarget():
            open_bucket = partial(_open_bucket, site.settings.store(settings.store), site.secrets)
            return BucketBenchmarkTarget(settings, open_bucket)
        case PoolTarget():
            return PoolBenchmarkTarget(settings)
        case RemoteTarget():
            return RemoteBenchmarkTarget(settings, site.secrets)
        case EndpointTarget():
            return EndpointBenchmarkTarget(settings)


def campaign_root(site: Site) -> Path:
    """The folder of all campaigns of this deployment."""
    return site.settings.paths.var / FOLDER


def kept_campaigns(site: Site) -> list[str]:
    """The ids of all campaigns that this machine keeps, the newest last."""
    return campaigns_in(campaign_root(site))


def find_campaign(site: Site, campaign: str) -> CampaignFolder:
    """A campaign by its id. Raises BenchmarkError (CAMPAIGN_UNKNOWN)."""
    folder = CampaignFolder(campaign_root(site), campaign)
    folder.record()
    return folder


def plan_campaign(site: Site, wish: CampaignWish) -> CampaignPlan:
    """Return what a campaign would do; nothing is kept. Raises SettingsError, BenchmarkError."""
    target = open_target(site, wish.target)
    check_target(target)
    return make_plan(wish, target.settings, target.kind, space_of(target))


def begin_campaign(site: Site, wish: CampaignWish, *, now: datetime) -> CampaignFolder:
    """Plan a campaign and keep it; nothing of the target is changed. Raises SettingsError, BenchmarkError."""
    return new_campaign(campaign_root(site), open_target(site, wish.target), wish, now=now)


def measure(site: Site, folder: CampaignFolder, *, each: Callable[[StepRecord], None] | None = None) -> None:
    """Run what is left of a campaign, with further rounds while they may change its verdict; see `run_campaign`."""
    record, settings = folder.record(), site.settings.benchmarks
    baseline = baseline_of(site.ledger, record)

    def more(steps: Sequence[StepRecord]) -> bool:
        return may_change(record, steps, baseline, settings)

    target = open_target(site, record.plan.wish.target)
    servers = open_servers(target.settings.cluster, site.secrets)
    watch = watched_servers(site, target).during
    run_campaign(folder, target, clock=utc_now, each=each, more=more, watch=watch, servers=servers)


def watched_servers(site: Site, target: BenchmarkTarget) -> WatchedServers:
    """Return what is asked while a target is measured."""
    settings, view = target.settings, target.settings.servers
    clients = settings.hosts if isinstance(settings, RemoteTarget) else {}
    return WatchedServers(
        view.every_s, hosts_of(view.hosts, site.secrets), hosts_of(clients, site.secrets), view.ceph or settings.ceph
    )


def conclude(site: Site, folder: CampaignFolder) -> ConcludedCampaign:
    """Judge a campaign as far as it got, and write its report; again, both are replaced."""
    judged = judge_campaign(site.ledger, folder, site.settings.benchmarks)
    return ConcludedCampaign(judged, write_report(site.ledger, folder, judged))


def clean_up_forgotten(site: Site, target: str, *, now: datetime) -> list[str]:
    """Remove the data of campaigns on a target that were not continued for a day; returns which they were.

    Raises:
        BenchmarkError: TARGET_BUSY while a campaign measures the target.
    """
    cleaned = []
    for campaign in kept_campaigns(site):
        folder = find_campaign(site, campaign)
        record = folder.record()
        if record.plan.wish.target == target and not folder.closed and now - record.began_at > FORGOTTEN:
            clean_up(site, folder)
            cleaned.append(campaign)
    return cleaned


def clean_up(site: Site, folder: CampaignFolder) -> AreaRemoval:
    """Remove the data of a campaign from its target; see `remove_data`."""
    target = open_target(site, folder.record().plan.wish.target)
    return remove_data(folder, target, open_servers(target.settings.cluster, site.secrets))


def cluster_of(site: Site, target: str) -> ClusterClient | None:
    """The cluster that a target is on; None if the configuration names none. Raises SettingsError."""
    return ClusterClient.of(site.settings.benchmarks.target(target))


def _open_bucket(settings: StoreSettings, secrets: Secrets, connections: int, *, sign_payload: bool = True) -> Store:
    # a request that is repeated would hide a failure and count as one long operation
    options = replace(options_of(settings), retries=0, connections=connections, sign_payload=sign_payload)
    return open_store(settings.url, credentials=credentials_of(settings, secrets), options=options)


def new_campaign(root: Path, target: BenchmarkTarget, wish: CampaignWish, *, now: datetime) -> CampaignFolder:
    """Plan a campaign and keep it; nothing of the target is changed.

    Args:
        root: The folder of all campaigns.
        target: One that may be measured.
        wish: What is asked for.
        now: When it begins.

    Raises:
        BenchmarkError: TARGET_UNUSABLE, PRESET_UNKNOWN, PLAN_REFUSED or RUNNER_MISSING.
    """
    check_target(target)
    space = space_of(target)
    plan = make_plan(wish, target.settings, target.kind, space)
    cluster = ClusterClient.of(target.settings)
    if cluster is not None and find_preset(wish.preset).marks:
        cluster.require_health(clean=True)
    for runner in {step.load.runner for step in plan.steps}:
        if runner in PROGRAMS:
            PROGRAMS[runner].path()
    campaign = f"{wish.target}-{wish.preset}-{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    folder = CampaignFolder(root, campaign)
    folder.create(CampaignRecord(campaign, plan, now, socket.gethostname(), space))
    return folder


def run_campaign(
    folder: CampaignFolder,
    target: BenchmarkTarget,
    *,
    clock: Clock,
    each: Callable[[StepRecord], None] | None = None,
    more: Callable[[Sequence[StepRecord]], bool] | None = None,
    watch: Watch = lambda: nullcontext(lambda: None),
    servers: Mapping[str, OsdServer] | None = None,
) -> None:
    """Run the steps that have not ended yet. A step whose runner fails is kept with its error, and the next one is run.

    After as many rounds as were asked for, further ones are run as long as `more` and the time of the target allow.
    What it has stopped is started again when it ends, however it ends.

    Args:
        folder: Of the campaign.
        target: What it measures.
        clock: The time of day.
        each: Called with each step that ends.
        more: Whether further rounds are wanted after these steps of a phase; None: all that are planned.
        watch: Asks servers and clients how they are, while a step runs; by default they are not asked.
        servers: Those of the target's cluster that may be stopped.

    Raises:
        BenchmarkError: CAMPAIGN_CLOSED, TARGET_BUSY, TARGET_UNUSABLE, AREA_FOREIGN, LIMIT_REACHED, CAMPAIGN_ABORTED,
            OUTAGE_FAILED or HOST_UNREACHABLE.
    """
    record = folder.record()
    if folder.closed:
        raise CAMPAIGN_CLOSED(folder.id, "its data were removed from the target")
    with target_lock(folder.path.parent, target.name), _outages(folder, target, servers) as outage:
        for step, following in pairwise(record.plan.steps):
            # where a recovery was not measured, the outage before it is measured again: what was stopped is up by now
            if following.servers is ServerState.RECOVERING and folder.has(step) and not folder.has(following):
                folder.forget(step)
        area = target.area(folder.id)
        area.create()
        spent = sum(ended.seconds for ended in folder.steps())
        over: set[int] = set()
        for step in record.plan.steps:
            if folder.has(step) or step.phase in over:
                continue
            if not _goes_on(step, folder, record.plan, more, spent=spent, target=target):
                over.add(step.phase)
                continue
            check_target(target)
            theirs = area if step.packet_bytes is None else PacketPools(target, folder.id).area(step.packet_bytes)
            if step.fills:
                # a level is that of what fills alone
                area.remove_files(_not_needed(record.plan, step))
            ended = _run_step(step, folder, target, theirs, spent=spent, clock=clock, outage=outage, watch=watch)
            folder.store(ended)
            spent += ended.seconds
            if each is not None:
                each(ended)


def remove_data(
    folder: CampaignFolder, target: BenchmarkTarget, servers: Mapping[str, OsdServer] | None = None
) -> AreaRemoval:
    """Start what the campaign has stopped, then remove what its plan lists from the target, and nothing else.

    Again, it changes nothing.

    Raises:
        BenchmarkError: TARGET_BUSY, TARGET_UNUSABLE, AREA_FOREIGN, OUTAGE_FAILED or HOST_UNREACHABLE.
    """
    area, plan = target.area(folder.id), folder.record().plan
    removed = 0
    left: list[str] = []
    with target_lock(folder.path.parent, target.name), _outages(folder, target, servers):
        for load in plan.datasets.values():
            removal = area.remove_files(load.names())
            removed += removal.removed
            left += removal.left
        left += [name for name in area.remove().left if name not in left]
        if plan.packets:
            PacketPools(target, folder.id).remove(plan.packets)
        folder.close()
    return AreaRemoval(removed, tuple(left))


@contextmanager
def _outages(
    folder: CampaignFolder, target: BenchmarkTarget, servers: Mapping[str, OsdServer] | None
) -> Iterator[CampaignOutage | None]:
    """The servers that the campaign may stop: they are started before, if a killed process left them, and after."""
    cluster = ClusterClient.of(target.settings)
    if cluster is None:
        yield None
        return
    outage = CampaignOutage(folder, cluster, servers or {})
    outage.end()
    try:
        yield outage
    finally:
        outage.end()


def utc_now() -> datetime:
    """The clock of campaigns that are not tests."""
    return datetime.now(UTC)


def _goes_on(
    step: PlannedStep,
    folder: CampaignFolder,
    plan: CampaignPlan,
    more: Callable[[Sequence[StepRecord]], bool] | None,
    *,
    spent: float,
    target: BenchmarkTarget,
) -> bool:
    """Tell whether a step is to be run. Only at the beginning of a round that was not asked for it may not be."""
    own = [other for other in plan.steps if (other.phase, other.round) == (step.phase, step.round)]
    if step.round <= plan.wish.rounds or step != own[0]:
        return True
    before = [ended for ended in folder.steps() if ended.step.phase == step.phase]
    # a step that writes often ends early, and may take all of its time in the next round
    takes = sum(max(ended.seconds, ended.step.seconds) for ended in before if ended.step.round == step.round - 1)
    kept = sum(other.seconds for other in plan.steps if other.phase > step.phase and other.round <= plan.wish.rounds)
    if spent + takes + kept / LOAD_SHARE > min(_limit_s(target), 60 * (plan.wish.minutes or math.inf)):
        return False
    return more is None or step.round - 1 not in plan.looks or more(before)


def _not_needed(plan: CampaignPlan, step: PlannedStep) -> Iterator[str]:
    """The names of measured datasets that no later step uses before it fills them again."""
    place = plan.steps.index(step)
    filling = {load.dataset for other in plan.steps if other.fills for load in other.load.loads}
    later = [load for other in plan.steps[place:] for load in other.load.loads]
    for name, written in plan.datasets.items():
        following = next((load for load in later if load.dataset == name), None)
        if name not in filling and (following is None or following.creates):
            yield from written.names()


def _limit_s(target: BenchmarkTarget) -> int:
    return target.settings.limits.minutes * 60


def _run_step(
    step: PlannedStep,
    folder: CampaignFolder,
    target: BenchmarkTarget,
    area: RunArea,
    *,
    spent: float,
    clock: Clock,
    outage: CampaignOutage | None,
    watch: Watch,
) -> StepRecord:
    began_at, begin = clock(), time.monotonic()
    load_before, ticks = load_now(), CpuTicks.now()
    result = error = code = servers = None
    limit_s = _limit_s(target)
    for load in step.load.loads:
        if load.creates:
            # each round writes new files; overwriting is another thing
            area.remove_files(load.names())
    space = _room_for(step, target)
    guard: ClusterWatch | None = None
    if spent + step.load.seconds > limit_s:
        error, code = f"not run: the campaign took {spent:.0f} of {limit_s} s before", OVER_TIME
    else:
        if outage is not None:
            area.stop = StopSignal()
            if step.servers is not None:
                outage.reach(step.servers)
                began_at = clock()
            renew = None if step.servers is ServerState.RECOVERING else outage.renew
            guard = ClusterWatch(outage.cluster, stopped=outage.stopped, stop=area.stop, renew=renew)
        try:
            with watch() as seen, guard or nullcontext(), _recovering(step, outage):
                ticks = CpuTicks.now()
                result = _complete(step, RUNNERS[step.load.runner].run(step.load, area, folder.scratch(step)))
                noise = MachineNoise.between(ticks, CpuTicks.now(), load_before)
                servers = seen()
        except BenchmarkError as failure:
            _require_not_aborted(step, target, guard)
            if failure.code not in _OF_ONE_STEP:
                raise
            target.check()  # the runner fails where the target vanishes: then the campaign ends
            error, code = str(failure), failure.code
        _require_not_aborted(step, target, guard)
    if result is None:
        noise = MachineNoise.between(ticks, CpuTicks.now(), load_before)
    samples = tuple(guard.samples) if guard else ()
    result, seconds = _noted(step, result, samples), time.monotonic() - begin
    return StepRecord(step, began_at, seconds, noise, space, result, error, code, servers, samples)


def _complete(step: PlannedStep, result: RunnerResult) -> RunnerResult:
    """Return the result, with a missing part of the campaign where a fill wrote too little or loads ran alone."""
    together = min((load.first_done_s for load in result.loads), default=0.0)
    longest = max((load.seconds for load in result.loads), default=0.0)
    if step.load.together and longest - together > max(LAST_OPERATION_S, ALONE_SHARE * longest):
        what = f"its loads ran together for {together:.1f} of {longest:.1f} s only: the rest is no mixed load"
        return replace(result, missing=(*result.missing, f"{what}; raise the scale"))
    written = sum(load.bytes for load in result.loads)
    if not step.fills or written >= FILLED_SHARE * step.bytes:
        return result
    what = f"only {shown_bytes(written)} of {shown_bytes(step.bytes)} were written in its time"
    return replace(result, missing=(*result.missing, f"{what}: the target is less full than the steps after it say"))


@contextmanager
def _recovering(step: PlannedStep, outage: CampaignOutage | None) -> Iterator[None]:
    """Start the stopped servers beside the load: the recovery begins within the step, and is seen from its start."""
    if outage is None or step.servers is not ServerState.RECOVERING:
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(outage.end)
        yield
        started.result()


def _require_not_aborted(step: PlannedStep, target: BenchmarkTarget, guard: ClusterWatch | None) -> None:
    if guard is not None and guard.aborted:
        raise CAMPAIGN_ABORTED(target.name, f"step {step.load.name} was ended: {guard.aborted}")


def _noted(step: PlannedStep, result: RunnerResult | None, samples: Sequence[ClusterSample]) -> RunnerResult | None:
    """The result, with how long the cluster took to recover."""
    if result is None or step.servers is not ServerState.RECOVERING or not samples:
        return result
    clean = next((sample.second for sample in samples if not (sample.unclean or sample.osds_down)), None)
    left = f"{samples[-1].unclean} placement groups were not clean when it ended"
    note = left if clean is None else f"all placement groups were active and clean {clean:.0f} s after it began"
    return replace(result, notes=(*result.notes, f"{step.load.name}, round {step.round}: {note}"))


def _room_for(step: PlannedStep, target: BenchmarkTarget) -> TargetSpace | None:
    """Return how full the target is before a step. CephFS frees what was removed some time later: that is waited for.

    Raises:
        BenchmarkError: LIMIT_REACHED.
    """
    limit, most, ends = target.settings.limits.fill_percent, -1, 0.0
    while True:
        space = space_of(target)
        if space is None or not step.bytes:
            return space
        level = 100 - 100 * (space.free - step.bytes) / space.total if space.total else 100.0
        if level <= limit:
            return space
        if space.free > most:
            most, ends = space.free, time.monotonic() + FREED_S
        elif time.monotonic() > ends:
            what = f"step {step.load.name} would make it {level:.0f} % full, over its limit of {limit} %"
            raise LIMIT_REACHED(target.name, what)
        time.sleep(FREED_EVERY_S)
