"""What Airflow keeps of old runs is taken away: rows of its database by its own command, and log files by their age.

What a run that has not ended yet keeps stays, however old it is: the command knows ages and not states.
Tasks never do this: they have no way to Airflow's database. Run it from cron, as the user whom Airflow runs as.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import column, create_engine, func, select, table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from lab.errors import LabError

LIMIT_S = 3600.0
DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_RUN = table("dag_run", *map(column, ("dag_id", "run_id", "state", "start_date", "queued_at", "run_after")))
_TASK = table("task_instance", *map(column, ("dag_id", "run_id", "start_date")))
# a run that was cleared starts again, and its tasks that were not keep their old starts
_START = func.coalesce(_RUN.c.start_date, _RUN.c.queued_at, _RUN.c.run_after)
_SINCE = func.least(_START, func.coalesce(func.min(_TASK.c.start_date), _START)).label("since")
_UNENDED = (
    select(_RUN.c.dag_id, _RUN.c.run_id, _SINCE)
    .select_from(_RUN.outerjoin(_TASK, (_TASK.c.dag_id == _RUN.c.dag_id) & (_TASK.c.run_id == _RUN.c.run_id)))
    .where(_RUN.c.state.not_in(("success", "failed")))
    .group_by(*_RUN.c)
    .order_by(_SINCE)
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class AtWork:
    """A run that has not ended: `since` is the oldest that it keeps."""

    dag: str
    run: str
    since: datetime

    def __str__(self) -> str:
        return f"{self.dag} {self.run}, which has not ended, and keeps what is of {self.since:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class RemovedLogs:
    """Log files that went, or would, and their bytes."""

    files: int
    bytes: int


def oldest_at_work(url: str) -> AtWork | None:
    """Of the runs that have not ended that with the oldest start, of itself or of a task; None if all have.

    `url`: of Airflow's own database. Raises LabError.
    """
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            row = connection.execute(_UNENDED).first()
    except SQLAlchemyError as error:
        raise LabError(f"Airflow's database does not answer: {getattr(error, 'orig', error)}".strip()) from None
    if row is None:
        return None
    since: datetime = row.since
    return AtWork(row.dag_id, row.run_id, since if since.tzinfo else since.replace(tzinfo=UTC))


def clean_database(environment: Mapping[str, str], before: datetime, *, dry_run: bool) -> str:
    """Let Airflow delete runs, task instances, XComs and logs of before that time; its own last lines. Raises LabError.

    Nightshift's ledger is another database, and keeps what it has.
    """
    command = ["airflow", "db", "clean", "--clean-before-timestamp", before.isoformat(), "--yes", "--skip-archive"]
    command.append("--error-on-cleanup-failure")  # without it a table that could not be cleaned is passed over
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


def remove_logs(folder: Path, before: datetime, *, dry_run: bool) -> RemovedLogs:
    """Remove the log files below a folder that were not written to since, and the folders that are empty then.

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
                continue  # log rotation was faster
            files, total = files + 1, total + seen.st_size
        if dry_run:
            continue
        for name in folders:
            below = Path(here, name)
            if not below.is_symlink() and below.stat().st_mtime < limit and not any(below.iterdir()):
                below.rmdir()
    return RemovedLogs(files, total)
