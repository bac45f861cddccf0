"""The public client of FTS3 (PyPI `fts3`), unmodified, against the embedded FTS, with certificate and delegation."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.fakes.certificates import Authority
from tests.fakes.ftsservice import FtsService

SCRIPT = """
import json, sys
from importlib import import_module
fts3 = import_module("fts3.rest.client.easy")
url, certificate, key, authorities = sys.argv[1:]
context = fts3.Context(url, ucert=certificate, ukey=key, capath=authorities)
found = {"user": fts3.whoami(context)["user_dn"]}

def job(name, query="?size=5"):
    transfer = fts3.new_transfer("mock://a/" + name + query, "mock://b/" + name, checksum=None, metadata={"name": name})
    return fts3.new_job([transfer], verify_checksum=False, retry=1, metadata={"batch": name})

ended = fts3.submit(context, job("f"))
while fts3.get_job_status(context, ended)["job_state"] not in ("FINISHED", "FAILED"):
    pass
status = fts3.get_job_status(context, ended, list_files=True)
found["ended"] = status["job_state"], [one["file_state"] for one in status["files"]], status["job_metadata"]["batch"]
active = fts3.submit(context, job("g", "?size=5&time=600"))
found["listed"] = [one["job_id"] for one in fts3.list_jobs(context)] == [active]
found["canceled"] = fts3.cancel(context, active)["job_state"]
both = fts3.get_jobs_statuses(context, [ended, active])
found["both"] = [one["job_state"] for one in both]
print(json.dumps(found))
"""


@pytest.mark.server("fts3")
def test_the_public_client_delegates_submits_polls_and_cancels(need: Callable[[str], str], tmp_path: Path) -> None:
    authority = Authority(datetime.now(UTC))
    bundle, lasts = str(authority.bundle(tmp_path)), timedelta(days=4)
    server, user = authority.files(tmp_path, "server", lasts), authority.files(tmp_path, "user", lasts)
    options = ("--certificate", server.certificate, "--key", str(server.key), "--authorities", bundle)
    with FtsService(tmp_path, *options, scheme="https") as service:
        done = subprocess.run(
            [need("fts3"), "-c", SCRIPT, service.url, user.certificate, str(user.key), bundle],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {
        "user": "/CN=user",
        "ended": ["FINISHED", ["FINISHED"], "f"],
        "listed": True,
        "canceled": "CANCELED",
        "both": ["FINISHED", "CANCELED"],
    }
