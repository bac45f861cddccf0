"""`nightshift lab`: the embedded services, up, down and how they are."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from include.gateway.protocol import API
from lab.cluster import MOST_WORKERS, Cluster
from lab.environment import ADMIN, MARK, Lab, LabFolders, of_a_lab
from lab.errors import LabError

if TYPE_CHECKING:
    from lab.servers.ceph_lab import CephLab
    from lab.stageout import StageoutAccount

app = typer.Typer(no_args_is_help=True)
ceph = typer.Typer(no_args_is_help=True, help="A Ceph cluster of one machine: monitor, OSDs on files, MDS, radosgw.")
app.add_typer(ceph, name="ceph")
NOT_RUNNING = 3
"""The exit code of a status that is not good."""
OsdNumber = Annotated[int, typer.Argument(help="The number of the OSD, from 0.")]
console = Console(highlight=False, soft_wrap=True)
if not console.is_terminal:
    console.width = 160  # a table in a log is not folded


class Executor(Enum):
    """Airflow's executors that the lab knows."""

    LOCAL = "local"
    CELERY = "celery"


@app.command()
def up(
    airflow: Annotated[
        bool, typer.Option(help="Airflow and its database too, or the store, the gateway and FTS only.")
    ] = True,
    executor: Annotated[
        Executor, typer.Option(help="Executor of tasks: this machine, or Celery's workers.")
    ] = Executor.LOCAL,
    workers: Annotated[
        int, typer.Option(min=1, max=MOST_WORKERS, help="Celery's workers, each in a network namespace; needs root.")
    ] = 3,
) -> None:
    """Start what does not run yet; return when everything answers as itself."""
    from lab import lifecycle

    lab = _chosen(Lab.from_environment(), executor, workers)
    if lab.cluster and not airflow:
        raise LabError("Celery's workers are a part of Airflow: leave out --no-airflow")
    began = time.monotonic()
    timings = lifecycle.up(lab, airflow=airflow, say=console.print)
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in timings.steps.items())
    console.print(f"up after {time.monotonic() - began:.1f} s ({steps})")
    show_places(lab, airflow=airflow)
    if airflow:
        show_paused(lab)


@app.command()
def down() -> None:
    """Stop everything, and prove that nothing is left."""
    from lab import lifecycle

    lab = Lab.from_environment()
    began = time.monotonic()
    stopped = lifecycle.down(lab, say=console.print)
    console.print(f"stopped {stopped} services after {time.monotonic() - began:.1f} s" if stopped else "nothing ran")


@app.command()
def restart() -> None:
    """Restart Airflow, the gateway and FTS, after code or settings changed.

    Stores and databases stay up unless a connection or a port changed, which programs have from their start.
    """
    from lab import lifecycle

    lab = Lab.from_environment()
    began = time.monotonic()
    lifecycle.restart(lab, say=console.print)
    console.print(f"up again after {time.monotonic() - began:.1f} s")


@app.command()
def retain(
    days: Annotated[int, typer.Option(min=1, help="Days for which runs, XComs and logs stay.")] = 60,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be removed; change nothing.")] = False,
) -> None:
    """Take away what Airflow keeps of old runs: rows of its database, and log files. The ledger stays as it is.

    Nothing goes that is as young as the oldest of what a run keeps that has not ended.
    """
    from lab.retain import DATABASE, clean_database, oldest_at_work, remove_logs

    lab = Lab.from_environment()
    before = datetime.now(UTC) - timedelta(days=days)
    environment = lab.environment()
    at_work = oldest_at_work(environment[DATABASE])
    if at_work is not None and at_work.since < before:
        console.print(f"less than asked for goes, because of {at_work}", markup=False)
        before = at_work.since
    console.print(clean_database(environment, before, dry_run=dry_run), markup=False)
    taken = remove_logs(lab.place.airflow_home / "logs", before, dry_run=dry_run)
    verb = "would go" if dry_run else "removed"
    console.print(f"{verb}: {taken.files} log files, {taken.bytes / 1e6:.1f} MB, of before {before:%Y-%m-%d %H:%M} UTC")


@app.command()
def stageout(
    files: Annotated[int, typer.Option(min=5, max=10_000, help="Number of files to transfer.")] = 1000,
) -> None:
    """Start the services, transfer files of five users between the lab's sites with 5 % faults, print the account.

    The services stay up; stop them with `make down`.
    """
    from include.settings.load import load
    from include.settings.secrets import EnvSecrets
    from lab.environment import adopt
    from lab.stageout import run_stageout

    lab = Lab.from_environment()
    adopt()  # the first start has only now made the secrets
    account = run_stageout(lab, load(), EnvSecrets(), files=files, say=lambda text: console.print(text, markup=False))
    path = lab.place.var / "last-stageout.json"
    account.write(path)
    show_stageout(account)
    console.print(f"\nThe same in {path}. Page: {lab.airflow_url}/plugin/nightshift-transfers", markup=False)
    console.print("The services stay up; make down stops them.")
    if account.problems:
        raise typer.Exit(1)


@app.command()
def status() -> None:
    """Show what runs, where, whether it answers, and which disks fill up. Exit code 3 if anything does not answer."""
    from lab import lifecycle

    lab = Lab.from_environment()
    table = Table("service", "state", "pid", "up", "answers", "where", box=None, pad_edge=False)
    states = lifecycle.status(lab)
    for service in states:
        answers = "as itself" if service.good else str(service.wrong)
        pid, age = (str(service.pid), f"{service.seconds} s") if service.pid else ("", "")
        table.add_row(service.name, service.state.name.lower(), pid, age, answers, service.where)
    console.print(table)
    for finding in lifecycle.disks(lab):
        text = f"{finding.severity.value}: disk of {finding.subject}: {finding.seen}. {finding.cure}"
        console.print(text, markup=False)
    if not all(service.good for service in states):
        raise typer.Exit(NOT_RUNNING)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def airflow(context: typer.Context) -> None:
    """Run Airflow's command line on the lab's Airflow: nightshift lab airflow backfill create --help."""
    environment = of_a_lab().environment()
    del environment[MARK]  # it is the caller's process: `lab down` does not end it
    program = str(Path(sys.executable).parent / "airflow")
    os.execve(program, [program, *context.args], environment)  # noqa: S606 - there is no shell, as it should be


@app.command()
def env() -> None:
    """Print lines to eval in a shell, for `airflow` and `nightshift` on this lab: eval "$(nightshift lab env)".

    They hold two secrets, which every Airflow command needs: the password of Airflow's database and its Fernet key.
    """
    lab = of_a_lab()
    print(f"# two secrets: the password of Airflow's database and the Fernet key; from {lab.place.secrets}")
    for name, value in lab.shell().items():
        print(f"export {name}={shlex.quote(value)}")
    print(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')


def _chosen(lab: Lab, executor: Executor, workers: int) -> Lab:
    """The lab with these workers; with those that it has, if they are as many."""
    if executor is Executor.LOCAL:
        return replace(lab, cluster=None)
    same = lab.cluster is not None and lab.cluster.workers == workers
    return lab if same else replace(lab, cluster=Cluster.choose(workers))


def show_stageout(account: StageoutAccount) -> None:
    """Prints what became of the files of a workflow."""
    table = Table("link", "state", "files", box=None, pad_edge=False)
    for (link, state), count in account.links.items():
        table.add_row(link, state, str(count))
    console.print(table)
    table = Table("data set", "files", box=None, pad_edge=False)
    for name, count in account.datasets.items():
        table.add_row(name, str(count))
    console.print(table)
    for kind, (count, reason) in account.failures.items():
        console.print(f"{count} failed, {kind}; one of them: {reason}", markup=False)
    states = ", ".join(f"{count} {state}" for state, count in account.states.items())
    (copied, late_copied), (ended, late_ended) = account.copied_s, account.ended_s
    console.print(f"{account.files} files: {states}; {account.bytes / 1e6:.1f} MB copied in {account.wall_s:.0f} s")
    console.print(f"seconds from the request to the copy: median {copied:.0f}, 95 % within {late_copied:.0f}")
    console.print(f"seconds from the request to the last state: median {ended:.0f}, 95 % within {late_ended:.0f}")
    for problem in account.problems[:20]:
        console.print(f"problem: {problem}", markup=False)
    if not account.problems:
        console.print("Each copy has its content, each removed source has a copy, and no file was replaced.")


def show_places(lab: Lab, *, airflow: bool) -> None:
    """Prints where the services are and how to log in."""
    table = Table(box=None, show_header=False, pad_edge=False)
    if airflow:
        table.add_row("Airflow", f"{lab.airflow_url}  login {ADMIN}, password {lab.secrets.admin_password}")
    table.add_row("S3 store", f"{lab.s3_url}  keys in {lab.place.secrets}")
    table.add_row("gateway", f"{lab.gateway_url}{API}")
    table.add_row("FTS", lab.fts_url)
    table.add_row("logs", str(lab.place.log))
    table.add_row("stop", "make down, or nightshift lab down")
    console.print(table)


def show_paused(lab: Lab) -> None:
    """Prints which DAGs have to be unpaused for nights to run by themselves."""
    from include.cli.main import typeable
    from include.dag_runs import UNPAUSE
    from include.monitoring.airflow_checks import judged_paused, needed
    from include.monitoring.findings import Severity
    from include.settings.load import load

    paused = lab.administrator().paused()
    found = [finding for finding in judged_paused(needed(load(environ=lab.environment())), paused)
             if finding.severity is not Severity.OK]  # fmt: skip
    if not found:
        return
    names = ", ".join(finding.subject for finding in found)
    console.print(f"paused, as DAGs with a schedule are at first: {names}", markup=False)
    console.print("For nights that run by themselves, unpause them; the last tick that was missed begins at once then:")
    console.print(f"  {typeable(UNPAUSE)}", markup=False)


@ceph.command("up")
def ceph_up(
    osd_gib: Annotated[int, typer.Option(min=1, max=1024, help="Size of each OSD in GiB, when it is made.")] = 8,
) -> None:
    """Make the cluster if there is none, and start it; return when every daemon answers."""
    _ceph_lab().up(osd_gib=osd_gib, say=console.print)


@ceph.command("down")
def ceph_down(
    purge: Annotated[bool, typer.Option("--purge", help="Remove the cluster and all that it holds.")] = False,
) -> None:
    """Stop all daemons; the data stay."""
    _ceph_lab().down(purge=purge, say=console.print)


@ceph.command("status")
def ceph_status() -> None:
    """Show health, OSDs and addresses. Exit code 3 if the cluster does not run or an OSD is down."""
    lab = _ceph_lab()
    found = lab.status()
    osds = ", ".join(f"{number} {'up' if good else 'down'}" for number, good in sorted(found.osds.items()))
    groups = "active and clean" if found.clean else "not all active and clean"
    console.print(f"health: {found.health or 'no answer'}; OSDs: {osds}; placement groups: {groups}", markup=False)
    console.print(f"S3 at {found.endpoint}, keys in {lab.place.secrets}; configuration in {lab.conf}", markup=False)
    console.print(f"CephFS: {found.mount or 'not mounted; install ceph-fuse and run it again'}", markup=False)
    if found.health is None or not all(found.osds.values()):
        raise typer.Exit(NOT_RUNNING)


@ceph.command("stop-osd")
def stop_osd(number: OsdNumber) -> None:
    """Stop one OSD; the pools are degraded until it starts again."""
    _ceph_lab().stop_osd(number)
    console.print(f"osd.{number} is stopped")


@ceph.command("start-osd")
def start_osd(number: OsdNumber) -> None:
    """Start an OSD that was stopped; return when it is up."""
    _ceph_lab().start_osd(number)
    console.print(f"osd.{number} is up")


def _ceph_lab() -> CephLab:
    from lab.servers.ceph_lab import CephLab

    return CephLab(LabFolders.from_environment(os.environ).var / "ceph")
