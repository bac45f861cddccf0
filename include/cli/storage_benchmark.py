"""`nightshift storage-benchmark`: plan, run, judge and report campaigns; accept baselines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli.repository.open import AsJson, holder, open_site
from include.cvmfs.sources.source import printable

if TYPE_CHECKING:
    from include.benchmarks.campaign.campaigns import ConcludedCampaign
    from include.benchmarks.campaign.folder import CampaignFolder, StepRecord
    from include.benchmarks.campaign.plan import CampaignPlan, CampaignWish, PlannedStep
    from include.site.site import Site

app = typer.Typer(no_args_is_help=True)
TargetName = Annotated[str, typer.Argument(metavar="TARGET", help="A target of `benchmarks:` in the configuration.")]
PresetName = Annotated[str, typer.Argument(metavar="PRESET", help="See `presets`.")]
CampaignId = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The id of a campaign; see `list`.")]
Scale = Annotated[float, typer.Option(help="One factor for streams and sizes; 1 is the size of the source.")]
Rounds = Annotated[int | None, typer.Option(help="Repetitions of each step. Default: of the configuration.")]
MostRounds = Annotated[
    int | None,
    typer.Option(help="Up to so many while the verdict is open. Default: --rounds, else of the configuration."),
]
Minutes = Annotated[int | None, typer.Option(min=1, help="For all steps together. Default: the target's limit.")]
Budget = Annotated[float | None, typer.Option("--budget-gb", min=0.001, help="GB to write at most in all steps.")]
GB = 10**9
REGRESSED = 1


@app.command()
def presets() -> None:
    """List the presets, each with the kinds of targets that it is for."""
    from include.benchmarks.campaign.presets import PRESETS

    for preset in PRESETS.values():
        kinds = ", ".join(sorted(kind.value for kind in preset.targets))
        needs = f"; needs `{'`, `'.join(f'{mark}: allowed' for mark in preset.marks)}`" if preset.marks else ""
        typer.echo(f"{preset.name}: {preset.title} ({kinds}{needs})")


@app.command()
def plan(
    target: TargetName,
    preset: PresetName,
    scale: Scale = 1.0,
    rounds: Rounds = None,
    most_rounds: MostRounds = None,
    minutes: Minutes = None,
    budget: Budget = None,
    as_json: AsJson = False,
) -> None:
    """Report what a campaign would do, in bytes and seconds; change nothing."""
    from include.benchmarks.campaign.campaigns import plan_campaign

    site = open_site()
    made = plan_campaign(site, _wish(site, target, preset, scale, rounds, most_rounds, minutes, budget))
    typer.echo(json.dumps(_document(made), indent=1) if as_json else "\n".join(_lines(made)))


@app.command()
def run(
    target: TargetName,
    preset: PresetName,
    scale: Scale = 1.0,
    rounds: Rounds = None,
    most_rounds: MostRounds = None,
    minutes: Minutes = None,
    budget: Budget = None,
) -> None:
    """Run a campaign, judge it, write its report and remove its data. Exit code 1 if a figure is not good enough.

    A campaign that was killed goes on with `resume`.
    """
    from include.benchmarks.campaign.campaigns import begin_campaign

    site = open_site()
    wish = _wish(site, target, preset, scale, rounds, most_rounds, minutes, budget)
    folder = begin_campaign(site, wish, now=datetime.now(UTC))
    typer.echo(f"campaign {folder.id}")
    _carry_out(site, folder)


@app.command()
def resume(campaign: CampaignId) -> None:
    """Run what is left of a campaign that was killed; else as `run`."""
    from include.benchmarks.campaign.campaigns import find_campaign

    site = open_site()
    _carry_out(site, find_campaign(site, campaign))


@app.command()
def report(campaign: CampaignId) -> None:
    """Judge a campaign again, against the baseline that is accepted now, and write its report again."""
    from include.benchmarks.campaign.campaigns import conclude, find_campaign

    site = open_site()
    _print(conclude(site, find_campaign(site, campaign)))


@app.command()
def accept(
    campaign: CampaignId,
    by: Annotated[str | None, typer.Option(help="Name of the person who accepts it. Default: this account.")] = None,
) -> None:
    """Let later campaigns with the same plan be compared with this one."""
    from include.benchmarks.judge.judge import accept_baseline

    judged = accept_baseline(open_site().ledger, campaign, by=by or holder(), now=datetime.now(UTC))
    typer.echo(f"{judged.id} is the baseline of {judged.preset} on {judged.target}")


@app.command()
def remove(campaign: CampaignId) -> None:
    """Remove the data of a campaign from its target: only what its plan lists. It cannot go on then."""
    from include.benchmarks.campaign.campaigns import clean_up, find_campaign

    site = open_site()
    _clean_up(site, find_campaign(site, campaign), clean_up)


@app.command("list")
def list_campaigns(as_json: AsJson = False) -> None:
    """List the campaigns of this machine, the newest last."""
    from include.benchmarks.campaign.campaigns import find_campaign, kept_campaigns

    site = open_site()
    rows = []
    for campaign in kept_campaigns(site):
        folder = find_campaign(site, campaign)
        planned = folder.record().plan
        ended = sum(1 for _ in folder.steps())
        rows.append({
            "id": campaign, "target": planned.wish.target, "preset": planned.wish.preset, "ended": ended,
            "steps": len(planned.steps), "data_removed": folder.closed,
        })  # fmt: skip
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        data = "data removed" if row["data_removed"] else "data on the target"
        typer.echo(f"{row['id']}: {row['ended']} of {row['steps']} steps, {data}")


def _wish(
    site: Site,
    target: str,
    preset: str,
    scale: float,
    rounds: int | None,
    most_rounds: int | None,
    minutes: int | None,
    budget: float | None,
) -> CampaignWish:
    from include.benchmarks.campaign.plan import CampaignWish

    size = None if budget is None else int(budget * GB)
    least, most = site.settings.benchmarks.rounds_of(rounds, most_rounds)
    return CampaignWish(target, preset, scale, least, minutes, size, most)


def _carry_out(site: Site, folder: CampaignFolder) -> None:
    from include.benchmarks.campaign.campaigns import clean_up, conclude, measure
    from include.benchmarks.judge.judge import fails

    total = len(folder.record().plan.steps)
    try:
        measure(site, folder, each=lambda ended: typer.echo(_step_line(ended, total)))
    finally:
        _clean_up(site, folder, clean_up)
    concluded = conclude(site, folder)
    _print(concluded)
    if fails(concluded.judged):
        raise typer.Exit(REGRESSED)


def _clean_up(site: Site, folder: CampaignFolder, clean_up: Any) -> None:
    removal = clean_up(site, folder)
    typer.echo(f"files of the campaign removed: {removal.removed}")
    for name in removal.left[:10]:
        typer.echo(f"left, since the campaign does not list it: {printable(name)}", err=True)


def _step_line(ended: StepRecord, total: int) -> str:
    from include.benchmarks.campaign.plan import shown_bytes, shown_rate

    head = f"{ended.step.number}/{total} {ended.step.load.name}"
    if ended.result is None:
        return f"{head}: {printable(ended.error or '')}"
    loads = ended.result.loads
    speeds = (
        f"{load.access.value} {shown_bytes(load.throughput)}/s, {shown_rate(load.rate).removesuffix('/s')} operations/s"
        for load in loads
    )
    failed = sum(load.failed for load in loads)
    return f"{head}: {'; '.join(speeds)}" + (f"; {failed} failed" if failed else "")


def _print(concluded: ConcludedCampaign) -> None:
    judged = concluded.judged
    typer.echo(f"verdict: {judged.verdict.value}: {judged.reason}")
    for part in judged.missing:
        typer.echo(f"missing: {printable(part)}")
    for check in judged.requirements:
        typer.echo(f"requirement {check.step}: {check.text}: {'met' if check.met else 'not met'}")
    typer.echo(f"report: {concluded.report.as_uri()}")


def _lines(made: CampaignPlan) -> list[str]:
    from include.benchmarks.campaign.plan import shown_bytes, shown_time

    alike: dict[str, list[PlannedStep]] = {}
    for step in made.steps:
        loads = ", ".join(
            f"{load.access.value} {load.streams} streams of {shown_bytes(load.file_bytes * load.files)}"
            for load in step.load.loads
        )
        turn = "{rounds}" if step.counted else "preparation"
        alike.setdefault(f"{step.load.name} ({turn}): {loads}; at most {step.load.seconds} s", []).append(step)
    lines = [f"{_numbers(steps)}. {text.format(rounds=_rounds(steps))}" for text, steps in alike.items()]
    total = f"{shown_bytes(made.bytes)} written, {shown_bytes(made.peak_bytes)} at the same time"
    return [*lines, f"at most {total}, {shown_time(made)}"]


def _numbers(steps: Sequence[PlannedStep]) -> str:
    """The numbers of steps that do the same; rounds of others may be among them."""
    first, last = steps[0].number, steps[-1].number
    return str(first) if len(steps) == 1 else f"{first} to {last}"


def _rounds(steps: Sequence[PlannedStep]) -> str:
    return f"round {steps[0].round}" if len(steps) == 1 else f"{len(steps)} rounds"


def _document(made: CampaignPlan) -> dict[str, Any]:
    steps = [
        {"number": step.number, "name": step.load.name, "round": step.round, "bytes": step.bytes,
         "seconds": step.load.seconds}
        for step in made.steps
    ]  # fmt: skip
    return {"bytes": made.bytes, "peak_bytes": made.peak_bytes, "seconds": made.seconds, "steps": steps}
