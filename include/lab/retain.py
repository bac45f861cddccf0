"""What Airflow keeps of old runs is taken away: rows of its database by its own command, and log files by their age.

Tasks never do this: they have no way to Airflow's database. Run it from cron, as the user whom Airflow runs as.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.lab.errors import LabError

LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Taken:
    """Log files that went, or would, and their bytes."""

    files: int
    bytes: int


def clean_database(environment: Mapping[str, str], before: datetime, *, dry_run: bool) -> str:
    """Let Airflow delete runs, task instances, XComs and logs of before that time; its own last lines. Raises LabError.

    Nightshift's ledger is another database, and keeps what it has.
    """
    command = ["airflow", "db", "clean", "--clean-before-timestamp", before.isoformat(), "--yes", "--skip-archive"]
    try:
        done = subprocess.run(
            [*command, *(["--dry-run"] if dry_run else [])], env=dict(environment), capture_output=True, text=True,
            timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"airflow db clean: {error}") from None
    if done.returncode:
        raise LabError(f"airflow db clean ended with code {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout.strip()[-4000:]


def remove_logs(folder: Path, before: datetime, *, dry_run: bool) -> Taken:
    """Remove the log files below a folder that nobody wrote to since, and the folders that are empty then.

    Symbolic links are neither followed nor counted.
    """
    files, total, limit = 0, 0, before.timestamp()
    for here, folders, names in os.walk(folder, topdown=False, followlinks=False):
        for name in names:
            path = Path(here, name)
            try:
                seen = path.lstat()
                if path.is_symlink() or seen.st_mtime >= limit:
                    continue
                if not dry_run:
                    path.unlink()
            except FileNotFoundError:
                continue  # whoever rotates logs was faster
            files, total = files + 1, total + seen.st_size
        if dry_run:
            continue
        for name in folders:
            below = Path(here, name)
            if not below.is_symlink() and below.stat().st_mtime < limit and not any(below.iterdir()):
                below.rmdir()
    return Taken(files, total)
