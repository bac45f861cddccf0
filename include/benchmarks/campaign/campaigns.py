"""Campaigns of a deployment: begun, run, judged, reported and cleaned up, by the command and by the DAG alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from include.benchmarks.campaign.execute import new_campaign, remove_data, run_campaign, utc_now
from include.benchmarks.campaign.folder import FOLDER, CampaignFolder, StepRecord, campaigns_in
from include.benchmarks.campaign.plan import CampaignPlan, CampaignWish, make_plan
from include.benchmarks.errors import TARGET_REFUSED
from include.benchmarks.judge.judge import JudgedCampaign, baseline_of, judge_campaign, may_change
from include.benchmarks.judge.report import write_report
from include.benchmarks.measure.ceph import ClusterClient, PoolBenchmarkTarget, check_target, space_of
from include.benchmarks.measure.endpoints import EndpointBenchmarkTarget
from include.benchmarks.measure.osds import open_servers
from include.benchmarks.measure.probes import WatchedServers
from include.benchmarks.measure.programs import hosts_of
from include.benchmarks.measure.remote import RemoteBenchmarkTarget
from include.benchmarks.measure.targets import AreaRemoval, BenchmarkTarget, BucketBenchmarkTarget, PathBenchmarkTarget
from include.settings.benchmarks import BucketTarget, EndpointTarget, Mark, PathTarget, PoolTarget, RemoteTarget
from include.settings.model import StoreSettings
from include.settings.secrets import Secrets
from include.site.site import Site, credentials_of, options_of
from include.storage.open import open_store
from include.storage.store import Store

FORGOTTEN = timedelta(days=1)


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
