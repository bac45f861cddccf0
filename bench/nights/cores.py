"""Gives each Celery worker of a lab a part of this machine's cores, by control groups, as its own machine would."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab.cluster import Cluster
from lab.servers.process import find_program

_PERIOD_US = 100_000
_FIRST, _SECOND = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limited(cluster: Cluster, cores: float) -> Iterator[None]:
    """All processes of each worker together use at most so many cores; 0: as many as they get.

    Raises:
        OSError: This kernel, or this user, cannot limit them.
    """
    groups: list[Path] = []
    try:
        for machine in cluster.machines if cores else ():
            group = (_FIRST if _FIRST.is_dir() else _SECOND) / machine.namespace
            group.mkdir()
            groups.append(group)
            quota = round(cores * _PERIOD_US)
            if _FIRST.is_dir():
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            listed = (str(find_program("ip")), "netns", "pids", machine.namespace)
            for pid in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split():
                (group / "cgroup.procs").write_text(pid)
        yield
    finally:
        for group in groups:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):  # ended meanwhile
                    (group.parent / "cgroup.procs").write_text(pid)
            group.rmdir()
