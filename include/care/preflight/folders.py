"""Room on the disks that are written to: one look for each file system, naming the folders that lie on it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from include.care.preflight.findings import Finding, Severity
from include.settings.model import SiteSettings
from include.storage.kinds import FILE, kind_of

LOW_SHARE, LEAST_BYTES = 0.10, 2 << 30
LOGS = "logs"


def written(settings: SiteSettings, stores: Iterable[str], logs: Path | None = None) -> dict[str, Path]:
    """The folders of this machine that a night writes to, by name. `logs`: Airflow's, if the caller knows it."""
    found = {"var": settings.paths.var, LOGS: logs or _log_folder(os.environ, settings.paths.var)}
    if settings.ledger.startswith("sqlite:///"):
        found["ledger"] = Path(settings.ledger.removeprefix("sqlite:///")).parent
    found["gateway state"] = settings.gateway.state.parent
    found["spool"] = Path(tempfile.gettempdir())
    for name in sorted(stores):
        url = settings.store(name).url
        if kind_of(url) is FILE:
            found[f"store {name}"] = Path(unquote(urlsplit(url).path))
    return found


def room(folders: Mapping[str, Path]) -> Iterator[Finding]:
    """The room that is left where the folders are, or will be."""
    systems: dict[int, dict[str, Path]] = {}
    for name, folder in folders.items():
        there = next((ancestor for ancestor in (folder, *folder.parents) if ancestor.exists()), Path("/"))
        systems.setdefault(_device(there), {})[name] = there
    for found in systems.values():
        usage = shutil.disk_usage(next(iter(found.values())))
        yield judged_space({name: folders[name] for name in found}, usage.free, usage.total)


def judged_space(folders: Mapping[str, Path], free: int, total: int) -> Finding:
    """What so many bytes mean for the folders of one file system."""
    limits = f"limits: {LEAST_BYTES / 2**30:.0f} GiB for an error, {LOW_SHARE:.0%} for a warning"
    where = ", ".join(str(folder) for folder in dict.fromkeys(folders.values()))
    seen = f"{free / 2**30:.1f} GiB of {total / 2**30:.1f} GiB are free for {where}; {limits}"
    cure = "Make room, or let a collection run, before the night fills it."
    if LOGS in folders:
        cure += " With a full log disk tasks fail with an empty log; `nightshift lab retain` removes old logs."
    severity = Severity.OK
    if free < max(LEAST_BYTES, LOW_SHARE * total):
        severity = Severity.ERROR if free < LEAST_BYTES else Severity.WARNING
    return Finding("disk", ", ".join(folders), severity, seen, cure if severity is not Severity.OK else "")


def _log_folder(environ: Mapping[str, str], var: Path) -> Path:
    home = Path(environ.get("AIRFLOW_HOME") or var / "airflow")  # the lab's is below `var`
    return Path(environ.get("AIRFLOW__LOGGING__BASE_LOG_FOLDER") or home / "logs")


def _device(folder: Path) -> int:
    return folder.stat().st_dev
