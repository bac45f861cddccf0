"""Stage-out under the load of its source: users, sites, FTS jobs of 100 files, simulated copies, a MariaDB.

Users send their requests every minute. The components run in processes as the tasks of their DAGs do. 5 % of all
copies fail, and the FTS service is killed twice (`kill -9`) and started again. In the end every file has to be
registered or failed with its reason, none twice, none lost; else the exit code is 1. A second run has a link of its own
for every file. With a history the first run is repeated over so many finished rows, and the plans of the claims are
checked. Another run registers its files in a genuine Rucio server, if there is one. With Airflow its scheduler starts
the components' DAGs in a last run. Ends in one line of JSON, which is also written to bench/results/stageout.json, with
a plot beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.plot import Series, line_plot
from bench.publishing.machine import BENCH, description
from bench.stageouting.account import mean, percentile
from bench.stageouting.history import plan_faults
from bench.stageouting.load import DOMAIN, LoadPlan, site_name
from bench.stageouting.scene import Scene, SceneRun, Trouble, opened, say
from bench.stageouting.scheduled import scheduled
from tests.servers.rucio import LOGIN, PASSWORD, RucioServer

WANTED = {
    "files_per_s": 300, "airflow_files_per_s": 140, "backlog_slope": 0, "files_per_block_mean": 50,
    "with_history_ratio": 0.9,
}  # fmt: skip
WARM_UP_SHARE = 1 / 3
"""Of the run, before the rates are measured: 5 of 15 minutes."""
PLOT_STEP_S = 30.0


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what is started here ends with us
    machine = description()
    say(f"machine: {machine}")
    plan = LoadPlan(options.rate, options.minutes, options.users, options.sites, options.per_job)
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-stageout-"))
    folder.chmod(0o711)  # the database's server runs as an account of its own
    try:
        with opened(folder, mean_s=options.mean, memory_gb=options.memory) as scene:
            result, faults = _runs(scene, plan, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for fault in faults[:20]:
        say(f"WRONG: {fault}")
    result |= {"machine": machine, "faults": len(faults)}
    if options.results:
        Path(options.results, f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 1 if faults else 0


def _runs(scene: Scene, plan: LoadPlan, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    length = 60 * plan.minutes
    kills = [Trouble(length * share) for share in (0.45, 0.75)] if options.kills else []
    if options.outage:
        kills = [Trouble(length / 2 - 30 * options.outage, 60 * options.outage)]
    first = scene.run(plan, troubles=kills, drain_s=options.drain, profile=options.profile)
    if options.profile:
        _keep_profiles(scene, options)
    _tell("one link a minute for each user", first, WANTED["files_per_s"])
    result, faults = _figures(first), list(first.account.faults)
    if options.outage:
        result |= {"outage_s": 60 * options.outage, "recovery_s": round(_recovery_s(first), 1)}
        say(f"after an outage of {60 * options.outage:.0f} s: {result['recovery_s']} s until the backlog was as before")
    if options.random_rate:
        spread = replace(
            plan, rate=options.random_rate, minutes=options.random_minutes, random_links=True, run="spread"
        )
        second = scene.run(spread, drain_s=options.drain)
        _tell("a link for each file", second)
        faults += second.account.faults
        result |= {
            "random_links_files_per_s": _rate(second),
            "random_links_files_per_job_mean": round(mean(second.measures.per_job), 1),
        }
    if options.history:
        began = time.monotonic()
        scene.fill(options.history)
        say(f"{options.history:,} finished rows in {time.monotonic() - began:.0f} s")
        faults += plan_faults(scene.ledger)
        third = scene.run(replace(plan, run="later"), drain_s=options.drain)
        _tell(f"with {options.history:,} finished rows", third, WANTED["files_per_s"])
        faults += third.account.faults
        result |= {
            "history": options.history, "memory_gb": options.memory, "with_history_files_per_s": _rate(third),
            "with_history_ratio": round(_rate(third) / (_rate(first) or 1), 3),
            "with_history_lag_p95_s": round(percentile(third.measures.lags, 0.95), 1),
        }  # fmt: skip
    if options.rucio_rate:
        result |= _registered_in_rucio(scene, plan, options, faults)
    if options.airflow_rate:
        result |= _under_airflow(scene, replace(plan, rate=options.airflow_rate, run="airflow"), options, faults)
    if options.results:
        Path(options.results).mkdir(parents=True, exist_ok=True)
        Path(options.results, f"{options.name}.svg").write_text(_plot(first))
    return result, faults


def _registered_in_rucio(
    scene: Scene, plan: LoadPlan, options: argparse.Namespace, faults: list[str]
) -> dict[str, Any]:
    """Fewer users and sites, whose files are registered in a genuine Rucio server on SQLite."""
    python = Path(sys.prefix, "rucio-server/bin/python")
    if not python.exists():
        say("without Rucio: tests/install-rucio.sh installs it")
        return {}
    plan = replace(plan, rate=options.rucio_rate, minutes=options.rucio_minutes, users=10, sites=8, run="rucio")
    with RucioServer(scene.folder / "rucio", str(python)) as server:
        server.make(
            [plan.owner(user) for user in range(plan.users)],
            {site_name(site).upper(): ("mock", f"{site_name(site)}.{DOMAIN}") for site in range(plan.sites)},
        )
        connection = {"host": server.url, "login": LOGIN, "password": PASSWORD, "extra": {"account": "root"}}
        run = scene.run(
            plan, drain_s=options.drain, rucio={"connection": connection, "tokens": str(scene.folder / "tokens")}
        )
    with closing(sqlite3.connect(scene.folder / "rucio/rucio.db")) as database:
        (replicas,) = database.execute("select count(*) from replicas").fetchone()
    _tell(f"registered in Rucio ({replicas:,} replicas)", run)
    expected = sum(count for state, count in run.account.states.items() if state in ("cleaned", "kept"))
    faults += run.account.faults
    faults += [f"Rucio has {replicas} replicas of {expected} verified files"] if replicas != expected else []
    return {
        "rucio_files_per_s": _rate(run),
        "rucio_backlog_slope": round(run.measures.slope(*_span(run)), 2),
        "rucio_drained_s": round(run.drained_s),
        "rucio_replicas": replicas,
        "rucio_register_cpu_ms": run.cpu_ms["register"],
    }


def _under_airflow(scene: Scene, plan: LoadPlan, options: argparse.Namespace, faults: list[str]) -> dict[str, Any]:
    """The components as tasks that the scheduler starts every minute."""
    with scheduled(plan, scene.ledger_url, scene.fts.url):
        run = scene.run(plan, drain_s=options.drain + 600, processes=False)
    _tell("under Airflow's scheduler", run, WANTED["airflow_files_per_s"])
    faults += run.account.faults
    return {
        "airflow_files_per_s": _rate(run),
        "airflow_backlog_slope": round(run.measures.slope(*_span(run)), 2),
        "airflow_lag_p50_s": round(percentile(run.measures.lags, 0.5), 1),
        "airflow_lag_p95_s": round(percentile(run.measures.lags, 0.95), 1),
        "airflow_lost": run.account.lost,
    }


def _span(run: SceneRun) -> tuple[float, float]:
    """The part of the injection in which rates are measured."""
    length = 60 * run.plan.minutes
    return length * WARM_UP_SHARE, length


def _rate(run: SceneRun) -> float:
    return round(run.measures.rate(*_span(run)), 1)


def _figures(run: SceneRun) -> dict[str, Any]:
    measures, account = run.measures, run.account
    return {
        "files_per_s": _rate(run),
        "files": len(measures.created),
        "minutes": run.plan.minutes,
        "rate": run.plan.rate,
        "files_per_job_mean": round(mean(measures.per_job), 1),
        "backlog_slope": round(measures.slope(*_span(run)), 2),
        "lag_p50_s": round(percentile(measures.lags, 0.5), 1),
        "lag_p95_s": round(percentile(measures.lags, 0.95), 1),
        "files_per_block_mean": round(mean(measures.per_block), 1),
        "failed": account.failed,
        "failures": dict(account.failures),
        "lost": account.lost,
        "doubled": account.doubled,
        "ledger_mb": round(run.ledger_mb),
        "drained_s": round(run.drained_s),
        "cpu_ms_per_file": run.cpu_ms,
        "idle": round(run.idle, 2),
        "kills": len(run.away),
    }


def _tell(what: str, run: SceneRun, wanted: float | None = None) -> None:
    figures = _figures(run)
    asked = f"of {run.plan.rate:.0f} requested"
    if wanted is not None and wanted <= run.plan.rate:  # fewer were requested in a soak
        asked += f", wanted: {wanted:.0f}"
    say(
        f"{what}: {figures['files_per_s']:.0f} verified files/s ({asked}), backlog grows by "
        f"{figures['backlog_slope']:.2f} files/s (wanted: {WANTED['backlog_slope']} at most), {figures['files']:,} "
        f"files in jobs of {figures['files_per_job_mean']} and blocks of {figures['files_per_block_mean']} (wanted: "
        f"{WANTED['files_per_block_mean']}); from the copy's end to its verification p50 {figures['lag_p50_s']} p95 "
        f"{figures['lag_p95_s']} s; ledger {figures['ledger_mb']} MB; drained in {figures['drained_s']} s\n"
        f"CPU ms a file: {run.cpu_ms}, {sum(run.cpu_ms.values()):.2f} together; machine idle {figures['idle']:.0%}\n"
        f"account: {dict(run.account.states)}, failures {figures['failures']}, lost {figures['lost']}, doubled "
        f"{figures['doubled']}; errors of passes: { {name: cost['errors'] for name, cost in run.costs.items()} }"
    )


def _recovery_s(run: SceneRun) -> float:
    """Seconds from the end of the outage until the backlog is what it was at most in the minutes before it."""
    if not run.away:
        raise SystemExit(
            "the outage never came: the machine was too busy to begin it in its time; run it on a quiet one"
        )
    gone, back = run.away[0]
    usual = max(run.measures.backlog(gone - second) for second in range(0, int(min(180, gone / 2)), 5))
    at = back
    while run.measures.backlog(at) > usual and at < back + 3600:
        at += 1.0
    return at - back


def _plot(run: SceneRun) -> str:
    """As the source's figures: files an hour over time."""
    length = 60 * run.plan.minutes + run.drained_s
    requested = [
        (at / 60, 3600 * sum(at - PLOT_STEP_S < moment <= at for moment in run.measures.created) / PLOT_STEP_S)
        for at in (PLOT_STEP_S * step for step in range(1, int(length / PLOT_STEP_S) + 1))
    ]
    lines = [Series("verified", run.measures.per_hour(length, PLOT_STEP_S)), Series("requested", requested)]
    title = f"{run.plan.users} users, {run.plan.sites} sites: files an hour"
    ticks = list(range(0, int(length / 60) + 1, max(1, int(length / 600))))
    return line_plot(title, "minutes", "files an hour", lines, ticks=ticks)


def _keep_profiles(scene: Scene, options: argparse.Namespace) -> None:
    for file in scene.folder.glob("*.profile"):
        shutil.copy(file, options.profile)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="of injection")
    parser.add_argument("--rate", type=float, default=310.0, help="files a second")
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--sites", type=int, default=60)
    parser.add_argument("--per-job", type=int, default=100)
    parser.add_argument("--mean", type=float, default=20.0, help="seconds of a copy")
    parser.add_argument("--kills", type=int, default=1, help="0: the FTS service is not killed")
    parser.add_argument(
        "--outage", type=float, default=0.0, help="minutes without FTS in the middle, in place of kills"
    )
    parser.add_argument("--random-rate", type=float, default=60.0, help="files a second of the second run; 0: none")
    parser.add_argument("--random-minutes", type=float, default=3.0)
    parser.add_argument("--rucio-rate", type=float, default=30.0, help="files a second of the run with Rucio; 0: none")
    parser.add_argument("--rucio-minutes", type=float, default=3.0)
    parser.add_argument("--airflow-rate", type=float, default=0.0, help="files a second under Airflow; 0: without")
    parser.add_argument("--history", type=int, default=5_000_000, help="finished rows of the third run; 0: none")
    parser.add_argument("--memory", type=int, default=1, help="GB that the database keeps of its rows")
    parser.add_argument("--drain", type=float, default=900.0, help="seconds that the rest may take at most")
    parser.add_argument("--profile", default="", help="a folder for profiles of the components")
    parser.add_argument("--results", default=str(BENCH / "results"), help="folder for figures and plot; empty: none")
    parser.add_argument("--name", default="stageout", help="of these files")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
