"""Tasks that were deferred with the code of an earlier commit: their rows, and Airflow's way from a row to the task."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.compat.corpus import HERE
from tests.compat.keys import FQRN
from tests.compat.sites import DAY, CompatSite

HOLDER = "nightly_install_main/scheduled__2026-11-20T01:30:00+00:00/artifact.publish[3] try 2"
ROOT = HERE.parents[1]


@contextlib.contextmanager
def waiting(site: CompatSite) -> Iterator[None]:
    """A build to install, and another one's lease on all places."""
    site.drop(DAY, "Gaudi")
    with site.client() as client:
        lease = client.acquire(FQRN, "/nightlies", hostname=HOLDER)
        yield
        client.drop(lease)


def defer_with(checkout: Path, script: Path, site: CompatSite) -> dict[str, Any]:
    """What the script of a corpus says when it is run with the code of a checkout, at a site where its tasks wait."""
    home = site.folder / "airflow"
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "AIRFLOW_HOME": str(home),
        "NIGHTSHIFT_HOME": str(checkout),
    }
    done = subprocess.run(
        [sys.executable, str(script), str(site.folder)],
        cwd=checkout, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return found


def checkout_of(commit: str, place: Path) -> Path | None:
    """The tree of a commit, if this clone has it."""
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True).returncode:
        return None
    done = subprocess.run([*git, "archive", commit], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(place, filter="data")
    return place


def event_of(row: dict[str, Any], timeout_s: float = 30) -> Any:
    """What the trigger of a row fires with, made from it as Airflow's triggerer does."""
    from airflow.models.trigger import Trigger
    from airflow.sdk.module_loading import import_string
    from airflow.serialization.decoders import smart_decode_trigger_kwargs

    kwargs = Trigger._decrypt_kwargs(row["kwargs"])
    trigger = import_string(row["classpath"])(
        **{name: smart_decode_trigger_kwargs(one) for name, one in kwargs.items()}
    )

    async def first() -> Any:
        return await anext(trigger.run())

    return asyncio.run(asyncio.wait_for(first(), timeout_s)).payload


def resume(task: Any, row: dict[str, Any], event: Any, context: Any) -> Any:
    """What the task returns that the row calls back with the event."""
    from airflow.sdk.serde import deserialize

    return task.resume_execution(row["next_method"], {**deserialize(row["next_kwargs"]), "event": event}, context)
