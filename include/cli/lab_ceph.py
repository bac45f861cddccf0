"""`nightshift lab ceph`: a real Ceph cluster on this machine, up, down and how it is."""

import os
from typing import Annotated

import typer
from rich.console import Console

from include.lab.environment import LabFolders
from include.lab.servers.ceph_lab import OSDS, CephLab

ceph = typer.Typer(no_args_is_help=True, help="A Ceph cluster of one machine: monitor, OSDs on files, MDS, radosgw.")
console = Console(highlight=False, soft_wrap=True)
NOT_RUNNING = 3
Number = Annotated[int, typer.Argument(help=f"The number of the OSD, 0 to {OSDS - 1}.")]


@ceph.command()
def up(
    osd_gib: Annotated[int, typer.Option(min=1, max=1024, help="Size of each OSD in GiB, when it is made.")] = 8,
) -> None:
    """Make the cluster if there is none, and start it; return when every daemon answers."""
    _lab().up(osd_gib=osd_gib, say=console.print)


@ceph.command()
def down(
    purge: Annotated[bool, typer.Option("--purge", help="Remove the cluster and all that it holds.")] = False,
) -> None:
    """Stop all daemons; the data stay."""
    _lab().down(purge=purge, say=console.print)


@ceph.command()
def status() -> None:
    """Show health, OSDs and addresses. Exit code 3 if the cluster does not run or an OSD is down."""
    lab = _lab()
    found = lab.status()
    osds = ", ".join(f"{number} {'up' if good else 'down'}" for number, good in sorted(found.osds.items()))
    groups = "active and clean" if found.clean else "not all active and clean"
    console.print(f"health: {found.health or 'no answer'}; OSDs: {osds}; placement groups: {groups}", markup=False)
    console.print(f"S3 at {found.endpoint}, keys in {lab.place.secrets}; configuration in {lab.conf}", markup=False)
    console.print(f"CephFS: {found.mount or 'not mounted; install ceph-fuse and run it again'}", markup=False)
    if found.health is None or not all(found.osds.values()):
        raise typer.Exit(NOT_RUNNING)


@ceph.command("stop-osd")
def stop_osd(number: Number) -> None:
    """Stop one OSD; the pools are degraded until it starts again."""
    _lab().stop_osd(number)
    console.print(f"osd.{number} is stopped")


@ceph.command("start-osd")
def start_osd(number: Number) -> None:
    """Start an OSD that was stopped; return when it is up."""
    _lab().start_osd(number)
    console.print(f"osd.{number} is up")


def _lab() -> CephLab:
    return CephLab(LabFolders.from_environment(os.environ).var / "ceph")
