"""Publication on S3 beside that on a POSIX file system: two campaigns of the same plan, on targets of either kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from include.benchmarks.campaign.folder import CampaignFolder, CampaignRecord
from include.benchmarks.errors import BenchmarkError
from include.benchmarks.loads import LoadAccess
from include.benchmarks.report.charts import BenchmarkChart, ChartLine
from include.benchmarks.verdict.figures import FigureName
from include.benchmarks.verdict.judge import JudgedCampaign
from include.benchmarks.verdict.record import judged_campaigns
from include.ledger.engine import Bind
from include.settings.storage_benchmark.blocks import TargetKind

SOURCE_RATIO = 5
"""Of the publication benchmark of the LHCb nightlies of 2021, with 64 connections."""
HISTORY = 200


@dataclass(frozen=True, slots=True)
class PublicationRow:
    """Files per second with so many connections, in this campaign and in the other; `ratio`: S3 to POSIX."""

    connections: int
    here: float
    there: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class PublicationComparison:
    """The rows of a report; none where nothing is published. `other`: the target of the other campaign."""

    target: str
    rows: tuple[PublicationRow, ...] = ()
    other: str | None = None
    source_ratio: int = SOURCE_RATIO

    def charts(self) -> tuple[BenchmarkChart, ...]:
        """Files per second against connections."""
        if not self.rows:
            return ()
        lines = [ChartLine(self.target, tuple((row.connections, row.here) for row in self.rows))]
        theirs = tuple((row.connections, row.there) for row in self.rows if row.there is not None)
        lines += [ChartLine(self.other, theirs)] if self.other and theirs else []
        title = "Publication against connections"
        return (BenchmarkChart("connections", title, "Connections", "Files per second", tuple(lines), log_x=True),)


def publication_of(bind: Bind, folder: CampaignFolder, judged: JudgedCampaign) -> PublicationComparison:
    """Compare a campaign with the newest one of the same plan on a target of the other kind.

    Args:
        bind: The ledger.
        folder: Of the campaign.
        judged: Its verdict.
    """
    record = folder.record()
    here = _rates(record, judged)
    if not here:
        return PublicationComparison(judged.target)
    other = _other(bind, folder, record, judged)
    there = _rates(record, other) if other else {}
    on_s3 = record.plan.kind is TargetKind.BUCKET
    rows = []
    for connections, rate in sorted(here.items()):
        beside = there.get(connections)
        ratio = (rate / beside if on_s3 else beside / rate) if beside else None
        rows.append(PublicationRow(connections, rate, beside, ratio))
    return PublicationComparison(judged.target, tuple(rows), other.target if other else None)


def _rates(record: CampaignRecord, judged: JudgedCampaign) -> Mapping[int, float]:
    """Medians by the number of connections. Both campaigns have the steps of one plan."""
    connections = {
        step.load.name: load.connections
        for step in record.plan.steps
        for load in step.load.loads
        if load.access is LoadAccess.PUBLISH
    }
    return {
        count: result.figure.median
        for result in judged.figures
        if result.figure.name is FigureName.OPERATIONS
        and (count := connections.get(result.figure.step))
        and result.figure.median
    }


def _other(bind: Bind, folder: CampaignFolder, record: CampaignRecord, judged: JudgedCampaign) -> JudgedCampaign | None:
    for other in judged_campaigns(bind, preset=judged.preset, limit=HISTORY):
        if other.digest != judged.digest or other.target == judged.target:
            continue
        try:
            kind = CampaignFolder(folder.path.parent, other.id).record().plan.kind
        except BenchmarkError:  # it was measured by another machine
            continue
        if kind is not record.plan.kind:
            return other
    return None
