"""`nightshift storage-benchmark demonstrate`: small campaigns on the targets of the lab."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from include.cli.repository.open import holder, open_site

if TYPE_CHECKING:
    from include.benchmarks.judge.judge import JudgedCampaign
    from include.site.site import Site

DAG_ID = "storage_benchmark"
DAG_APPEARS_S, DEMONSTRATION_S = 120.0, 900.0
DEMONSTRATED = {"scratch": "hlt2-mixed", "objects": "objects"}
"""The presets of the demonstration, by targets of the lab's configuration."""
COMPARED = "scratch"
"""The target of the demonstration that is quick enough to be measured twice."""
DEMONSTRATION = {"scale": 0.002, "rounds": 4, "most_rounds": 4, "minutes": 1}
"""Its campaigns: as few rounds as two of them can be compared by."""


def add_to(app: typer.Typer) -> None:
    """Adds the command to its group."""
    app.command()(demonstrate)


def demonstrate() -> None:
    """Start the embedded services, and run small campaigns on each target of the lab by the DAG, under its scheduler.

    On the folder the first one is accepted as the baseline, and a second one is compared with it. The services stay up.
    Exit code 1 if a campaign ends without a verdict.
    """
    from include.benchmarks.judge.judge import accept_baseline, accepted_baseline
    from include.cli.airflow_connections import follow
    from include.pages.registry import PREFIX
    from include.site.bootstrap import found_stores
    from lab import lifecycle
    from lab.environment import Lab, adopt
    from lab.errors import NOT_THE_DEMONSTRATIONS

    if absent := sorted(DEMONSTRATED.keys() - open_site().settings.benchmarks.targets.keys()):
        cure = "It measures the targets of config/site.yaml only: unset NIGHTSHIFT_CONFIG."
        raise NOT_THE_DEMONSTRATIONS(f"the configuration lacks the demonstration's targets {', '.join(absent)}. {cure}")
    lab = Lab.from_environment()
    adopt()  # the first start has only now made the secrets
    site = open_site()
    lifecycle.up(lab, airflow=True, say=typer.echo)
    for folder in _folders(site):
        folder.mkdir(parents=True, exist_ok=True)
    found_stores(site, _stores(site), say=typer.echo)
    api = lab.administrator()
    api.wait_for_dag(DAG_ID, timeout_s=DAG_APPEARS_S)
    api.unpause(DAG_ID)

    def measured(target: str) -> JudgedCampaign | None:
        """Run a campaign; its judgement, None if the run ended without one."""
        run_id = f"demonstration__{target}__{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
        before = _newest(site, target)
        api.trigger(DAG_ID, run_id, {"target": target, "preset": DEMONSTRATED[target], **DEMONSTRATION})
        ended = follow(api, DAG_ID, run_id, show=lambda _: None, timeout_s=DEMONSTRATION_S)
        typer.echo(f"{target}, {DEMONSTRATED[target]}: run {run_id} of {DAG_ID}: {ended.state}")
        judged = _newest(site, target)
        if judged is None or (before is not None and before.id == judged.id):
            return None
        typer.echo(f"verdict: {judged.verdict.value}: {judged.reason}")
        typer.echo(f"report: {lab.airflow_url}{PREFIX}/benchmarks/{judged.id}/report")
        return judged

    good = True
    for target in DEMONSTRATED:
        judged = measured(target)
        compared = target == COMPARED
        if compared and judged is not None and accepted_baseline(site.ledger, target, judged.digest) is None:
            accept_baseline(site.ledger, judged.id, by=holder(), now=datetime.now(UTC))
            typer.echo(f"{judged.id} is accepted as the baseline; a second campaign is compared with it")
            judged = measured(target)
        good = good and judged is not None
    raise typer.Exit(0 if good else 1)


def _folders(site: Site) -> list[Path]:
    """Targets below our own folder; any other has to be there."""
    from include.settings.benchmarks import PathTarget

    targets = (site.settings.benchmarks.targets[name] for name in DEMONSTRATED)
    folders = [target.path for target in targets if isinstance(target, PathTarget)]
    return [folder for folder in folders if folder.is_relative_to(site.settings.paths.var)]


def _stores(site: Site) -> set[str]:
    from include.settings.benchmarks import BucketTarget

    targets = (site.settings.benchmarks.targets[name] for name in DEMONSTRATED)
    return {target.store for target in targets if isinstance(target, BucketTarget)}


def _newest(site: Site, target: str) -> JudgedCampaign | None:
    from include.benchmarks.judge.judge import judged_campaigns

    return next(iter(judged_campaigns(site.ledger, target=target, limit=1)), None)
