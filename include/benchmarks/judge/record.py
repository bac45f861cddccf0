"""Judged campaigns and accepted baselines in the ledger. Changed tables need a migration."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import (
    Column,
    Connection,
    Index,
    Table,
    UniqueConstraint,
    insert,
    select,
    update,
)

from include.benchmarks.campaign.folder import CampaignFolder, CampaignRecord
from include.benchmarks.errors import BASELINE_REFUSED, CAMPAIGN_UNKNOWN
from include.benchmarks.judge.compare import BenchmarkVerdict, plan_digest
from include.benchmarks.judge.judge import JudgedCampaign, judge
from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text, metadata
from include.settings.benchmarks import BenchmarkSettings

NAME = exact(128)

benchmark_campaigns = Table(
    "benchmark_campaigns",
    metadata,
    # campaigns that were judged; `document` has the figures of all rounds
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("campaign", exact(200), nullable=False),
    Column("target", NAME, nullable=False),
    Column("preset", NAME, nullable=False),
    Column("digest", hexadecimal(64), nullable=False),
    Column("began_at", UtcTime, nullable=False),
    Column("verdict", exact(16), nullable=False),
    Column("document", long_text(), nullable=False),
    UniqueConstraint("campaign"),
    Index(None, "target", "preset", "began_at"),
    **TABLE_OPTIONS,
)

benchmark_baselines = Table(
    "benchmark_baselines",
    metadata,
    # each acceptance by a person; the newest of a target and plan counts
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("target", NAME, nullable=False),
    Column("digest", hexadecimal(64), nullable=False),
    Column("campaign", exact(200), nullable=False),
    Column("accepted_by", NAME, nullable=False),
    Column("accepted_at", UtcTime, nullable=False),
    Index(None, "target", "digest"),
    **TABLE_OPTIONS,
)
_CAMPAIGN = TypeAdapter(JudgedCampaign)


def judge_campaign(bind: Bind, folder: CampaignFolder, settings: BenchmarkSettings) -> JudgedCampaign:
    """Judge a campaign against the baseline that is accepted now, and keep the verdict; again, it is replaced.

    Args:
        bind: The ledger.
        folder: Of the campaign.
        settings: Requirements, margin and prices.

    Raises:
        BenchmarkError: CAMPAIGN_UNKNOWN.
    """
    record, steps = folder.record(), list(folder.steps())
    judged = judge(record, steps, baseline_of(bind, record), settings)
    values = {
        "target": judged.target,
        "preset": judged.preset,
        "digest": judged.digest,
        "began_at": judged.began_at,
        "verdict": judged.verdict.value,
        "document": _CAMPAIGN.dump_json(judged).decode(),
    }
    table = benchmark_campaigns

    def work(connection: Connection) -> None:
        same = table.c.campaign == judged.id
        if connection.scalar(select(table.c.id).where(same).with_for_update()) is None:
            connection.execute(insert(table).values(campaign=judged.id, **values))
        else:
            connection.execute(update(table).where(same).values(values))

    writing(bind, work)
    return judged


def accept_baseline(bind: Bind, campaign: str, *, by: str, now: datetime) -> JudgedCampaign:
    """Let later campaigns with the same plan be compared with this one.

    Args:
        bind: The ledger.
        campaign: The id of a judged campaign that has all its parts.
        by: Who accepts it.
        now: When.

    Raises:
        BenchmarkError: CAMPAIGN_UNKNOWN, or BASELINE_REFUSED if parts are missing.
    """

    def work(connection: Connection) -> JudgedCampaign:
        judged = judged_campaign(connection, campaign)
        if judged.missing or not judged.figures:
            parts = "; ".join(judged.missing[:3]) or "it has no figures"
            raise BASELINE_REFUSED(campaign, f"parts of it are missing: {parts}")
        row = {"target": judged.target, "digest": judged.digest, "campaign": campaign}
        connection.execute(insert(benchmark_baselines).values(accepted_by=by[:128], accepted_at=now, **row))
        return judged

    return writing(bind, work)


def accepted_baseline(bind: Bind, target: str, digest: str) -> JudgedCampaign | None:
    """The campaign that a plan on a target is compared with; None as long as none was accepted."""
    columns = benchmark_baselines.c
    newest = select(columns.campaign).where(columns.target == target, columns.digest == digest)
    with reading(bind) as connection:
        campaign = connection.scalar(newest.order_by(columns.id.desc()).limit(1))
        return None if campaign is None else judged_campaign(connection, campaign)


def baseline_of(bind: Bind, record: CampaignRecord) -> JudgedCampaign | None:
    """The campaign that this one is compared with; None as long as no other was accepted."""
    baseline = accepted_baseline(bind, record.plan.wish.target, plan_digest(record.plan))
    # a campaign compared with itself passes, which proves nothing
    return None if baseline is None or baseline.id == record.id else baseline


def judged_campaign(bind: Bind, campaign: str) -> JudgedCampaign:
    """A campaign with its verdict. Raises BenchmarkError (CAMPAIGN_UNKNOWN)."""
    columns = benchmark_campaigns.c
    with reading(bind) as connection:
        document = connection.scalar(select(columns.document).where(columns.campaign == campaign))
    if document is None:
        raise CAMPAIGN_UNKNOWN(campaign, "the ledger has no verdict on it")
    return _CAMPAIGN.validate_json(document)


def judged_campaigns(
    bind: Bind, *, target: str | None = None, preset: str | None = None, limit: int = 100
) -> Sequence[JudgedCampaign]:
    """Campaigns with their verdicts, the newest first."""
    columns = benchmark_campaigns.c
    query = select(columns.document).order_by(columns.began_at.desc(), columns.id.desc()).limit(limit)
    if target is not None:
        query = query.where(columns.target == target)
    if preset is not None:
        query = query.where(columns.preset == preset)
    with reading(bind) as connection:
        return [_CAMPAIGN.validate_json(document) for document in connection.scalars(query)]


def accepted_campaigns(bind: Bind, target: str) -> frozenset[str]:
    """The ids of all campaigns on a target that were ever accepted as baselines."""
    columns = benchmark_baselines.c
    with reading(bind) as connection:
        return frozenset(connection.scalars(select(columns.campaign).where(columns.target == target)))


def fails(judged: JudgedCampaign) -> bool:
    """Tell whether people have to see to it: it regressed, or misses a requirement."""
    return judged.verdict is BenchmarkVerdict.REGRESSED or not judged.requirements_met
