"""Response times of the pages over a large ledger, through the whole app: routing, queries, templates.

Fills a new ledger in bulk (SQLite or a MariaDB of its own), asks each page in turn, in random order, and ends in one
line of JSON: p50_ms and p95_ms of each page and overall. Code 1 if a page's p95 is over the limit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine, Table, insert, text

from bench import transfer_rows
from bench.publishing.machine import description
from bench.stageouting.load import site_documents
from bench.stageouting.scene import large_database
from include.dag_runs import DagState
from include.ledger.engine import open_ledger, writing
from include.ledger.migrate import migrate
from include.nightlies.records.publications import place
from include.nightlies.records.tables import artifacts, builds, links, publications
from include.pages.app import create_app
from include.pages.asked import AskDag
from include.provenance.records import provenance
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.stageout.files import MAX_FILES
from include.stageout.rest.app import create_api
from include.stageout.rest.questions import StageoutUser

LIMIT_MS = 300.0
SLOTS = 4
PROJECTS, PLATFORMS = 25, 8
FIRST = date(2020, 1, 1)
AT_ONCE = 20_000
FQRN = "bench.example.org"
WARM_UP = 3
DAY = timedelta(days=1)
USER, SUBMISSIONS = "bench", 3


@dataclass(frozen=True)
class Filled:
    """What the ledger holds: the dates of the nights, the newest last."""

    days: list[date]
    rows: int


def main() -> int:
    options = _options()
    print(f"machine: {description()}")
    with tempfile.TemporaryDirectory(prefix="nightshift-pages-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with _ledger(options.ledger, folder) as engine:
            started = time.monotonic()
            filled = _fill(engine, options.publications)
            took = time.monotonic() - started
            print(f"{filled.rows:,} publications of {len(filled.days)} dates in {took:.0f} s", flush=True)
            started = time.monotonic()
            transfer_rows.fill(engine, options.transfers)
            took = time.monotonic() - started
            print(f"{options.transfers:,} transfers in {took:.0f} s", flush=True)
            rows = transfer_rows.fill_sums(engine, 2 * options.transfers) if options.transfers else 0
            print(f"{rows:,} rows of sums of {2 * options.transfers:,} ended transfers", flush=True)
            site = _site(engine, folder)
            sums = _sums_s(_client(site)) if options.transfers else {}
            times = _ask(_client(site), filled, options.requests, options.transfers)
            for page, milliseconds in times.items():
                figures = _figures(milliseconds)
                print(f"{page:20} p50 {figures['p50_ms']:7.1f} ms  p95 {figures['p95_ms']:7.1f} ms", flush=True)
            submission = _submit(site) if options.transfers else {}
    return _conclude(times, filled, options, {"fill_s": round(took)} | sums | submission)


@contextmanager
def _ledger(kind: str, folder: Path) -> Iterator[Engine]:
    """A new ledger with its tables."""
    if kind == "sqlite":
        engine = open_ledger(f"sqlite:///{folder}/ledger.db")
        migrate(engine)
        yield engine
        engine.dispose()
        return
    with large_database(folder / "server") as server:
        engine = open_ledger(server.create_database("nightshift_pages"), password=server.password)
        migrate(engine)
        yield engine
        engine.dispose()


def _fill(engine: Engine, wanted: int) -> Filled:
    """Nights of all slots, each artifact published once; every tenth is checked again by a later pass."""
    per_night = PROJECTS * PLATFORMS
    nights = max(2, wanted // (SLOTS * per_night * 11 // 10))
    days = [FIRST + timedelta(days=number) for number in range(nights)]
    rows: dict[Table, list[dict[str, Any]]] = {
        table: [] for table in (builds, artifacts, publications, provenance, links)
    }
    build = artifact = publication = 0

    def write(*, least: int) -> None:
        def work(connection: Any) -> None:
            for table, waiting in rows.items():
                if waiting:
                    connection.execute(insert(table), waiting)

        if len(rows[publications]) >= least:
            writing(engine, work)
            for waiting in rows.values():
                waiting.clear()

    for day in days:
        began = datetime.combine(day, datetime.min.time(), UTC)
        for slot in (f"slot{number}" for number in range(SLOTS)):
            build += 1
            build_id = f"b{day:%Y%m%d}"
            rows[builds].append(_build_row(build, slot, build_id, day, began))
            rows[links].append(_link_row(slot, build_id, day, began))
            for number in range(per_night):
                artifact += 1
                project, platform = f"Project{number // PLATFORMS:02}", f"x86_64-el9-gcc{number % PLATFORMS}"
                where = f"/nightlies/{slot}/{build_id}/{project}/{platform}"
                sha = hashlib.sha256(where.encode()).hexdigest()
                rows[artifacts].append(_artifact_row(artifact, build, project, platform, sha, began))
                for turn in range(2 if number % 10 == 0 else 1):
                    publication += 1
                    run = f"nightly_install_{slot}/night__{day}__0200__pass{turn + 1}"
                    state = "unchanged" if turn else ("failed" if number % 50 == 49 else "published")
                    rows[publications].append(_publication_row(publication, run, where, artifact, sha, state, began))
                rows[provenance].append(_record(where, slot, build_id, project, platform, publication, began))
        write(least=AT_ONCE)
    write(least=1)
    with engine.begin() as connection:
        connection.execute(
            text("ANALYZE" if engine.dialect.name == "sqlite" else "ANALYZE TABLE publications, artifacts, builds")
        )
    return Filled(days, publication)


def _build_row(build: int, slot: str, build_id: str, day: date, at: datetime) -> dict[str, Any]:
    return {
        "id": build, "slot": slot, "build_id": build_id, "build_date": day, "complete": True, "index_url": "u",
        "artifacts": PROJECTS * PLATFORMS, "rejected": [], "first_seen_at": at, "updated_at": at,
    }  # fmt: skip


def _link_row(slot: str, build_id: str, day: date, at: datetime) -> dict[str, Any]:
    path = f"/nightlies/{slot}/latest"
    return {
        "place": place(FQRN, path), "kind": "link", "repository": FQRN, "path": path, "slot": slot,
        "build_id": build_id, "build_date": day, "state": "moved", "reason": "the build is whole", "run_id": "d/r",
        "revision": 1, "decided_at": at,
    }  # fmt: skip


def _artifact_row(
    artifact: int, build: int, project: str, platform: str, sha: str, at: datetime
) -> dict[str, Any]:  # fmt: skip
    return {
        "id": artifact, "build": build, "project": project, "platform": platform, "size": 50_000_000, "sha256": sha,
        "url": f"https://builds.example.org/{artifact}.tar", "priority": 0, "dependencies": [], "first_seen_at": at,
        "updated_at": at,
    }  # fmt: skip


def _publication_row(
    publication: int, run: str, where: str, artifact: int, sha: str, state: str, at: datetime
) -> dict[str, Any]:
    return {
        "id": publication, "run_id": run, "place": place(FQRN, where), "repository": FQRN, "destination": where,
        "artifact": artifact, "artifact_sha256": sha, "state": state, "reason": f"revision {publication}",
        "phase": "publish", "try_number": 1, "plan_try": 1, "prepare_try": 1, "publish_try": 1, "approve_try": 0,
        "files": 1200, "bytes": 90_000_000, "bytes_uploaded": 4_000_000, "seconds": {"prepare": 9.1, "publish": 0.3},
        "objects_new": 40, "objects_reused": 900, "lease_held_s": 0.2, "revision_after": publication,
        "code": "artifact-missing" if state == "failed" else None,
        "created_at": at, "updated_at": at + timedelta(minutes=publication % 60), "ended_at": at,
        "holder": f"{run}/artifact.publish[{publication % 64}] try 1",
    }  # fmt: skip


def _record(
    where: str, slot: str, build_id: str, project: str, platform: str, revision: int, at: datetime
) -> dict[str, Any]:
    return {
        "place": place(FQRN, where), "repository": FQRN, "path": where, "revision": revision, "slot": slot,
        "build_id": build_id, "project": project, "platform": platform, "run_id": "d/r", "holder": "d/r/t try 1",
        "publisher": "native", "key_id": "k", "published_at": at, "kind": "tree",
    }  # fmt: skip


def _site(engine: Engine, folder: Path) -> Site:
    """A deployment with that ledger; its gateway does not answer, and no page waits for it."""
    slots = "\n".join(
        f"  slot{number}: {{repository: {FQRN}, store: files, links: {{folder: '/nightlies/{{slot}}'}}}}"
        for number in range(SLOTS)
    )
    file = folder / "site.yaml"
    file.write_text(f"""
paths: {{var: "{folder}/var"}}
gateway: {{host: 127.0.0.1, port: 4929, state: "{folder}/g.db", keys: "{folder}/keys"}}
stores: {{files: {{url: "{(folder / "store").as_uri()}"}}}}
repositories:
  {FQRN}: {{store: files, public_url: "http://127.0.0.1:9", public_key: "{folder}/key.pub", gateway: gateway}}
slots:
{slots}
sites: {json.dumps(site_documents(2))}
""")
    connection = {"conn_type": "http", "host": "127.0.0.1", "port": 9, "login": "k", "password": "none"}
    site = Site(load(file), EnvSecrets({"AIRFLOW_CONN_GATEWAY": json.dumps(connection)}))
    vars(site)["ledger"] = engine
    return site


def _pages(login: Callable[..., StageoutUser], site: Callable[[], Site]) -> FastAPI:
    """The pages, with DAGs that all may be started."""

    def dags() -> AskDag:
        return DagState

    return create_app(login, site, dags)


def _client(site: Site, app: Callable[..., FastAPI] = _pages) -> TestClient:
    return TestClient(app(lambda: StageoutUser(USER, operator=True), lambda: site), base_url="http://127.0.0.1")


def _sums_s(client: TestClient) -> dict[str, float]:
    """Seconds from the first look at the analytics to their sums, of 30 days and of a year."""
    seconds, now = {}, datetime.now(UTC).date()
    for name, days in (("analytics_month_s", 30), ("analytics_year_s", 365)):
        began = time.monotonic()
        while "no answer yet" in client.get(f"/analytics?since={now - DAY * days}").text:
            assert time.monotonic() - began < 300
        seconds[name] = round(time.monotonic() - began, 2)
    return seconds


def _submit(site: Site) -> dict[str, Any]:
    """Requests of as many files as one may have, by the REST API: seconds of each, and by how much the memory grew."""
    client, times, grown = _client(site, create_api), [], []
    for number in range(SUBMISSIONS):
        files = [_file(number, file) for file in range(MAX_FILES)]
        body = json.dumps({"key": f"k{number}", "workflow": "w", "files": files})
        before = _memory_mb("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
        began = time.monotonic()
        answer = client.post("/requests", content=body, headers={"Content-Type": "application/json"})
        times.append(time.monotonic() - began)
        grown.append(_memory_mb("VmHWM") - before)
        assert answer.status_code == 201, answer.text[:400]
    print(f"{MAX_FILES:,} files by REST: {max(times):.1f} s, {max(grown):.0f} MB", flush=True)
    return {"submission_s": round(max(times), 2), "submission_mb": round(max(grown))}


def _file(request: int, number: int) -> dict[str, Any]:
    name = f"/user/{USER}/task/{request}/output_{number}.root"
    return {
        "source": "site00", "source_name": f"/store/temp{name}", "destination": "site01",
        "destination_name": f"/store{name}", "size": 1_000_000 + number, "checksum": f"adler32:{number + 1:08x}",
        "dataset": f"/task-{request}/{USER}/USER", "user_job": str(number // 10),
    }  # fmt: skip


def _memory_mb(name: str) -> float:
    """`VmRSS` or `VmHWM` of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


def _ask(client: TestClient, filled: Filled, requests: int, transfers: int) -> dict[str, list[float]]:
    """Milliseconds of each answer, by page."""
    chance = random.Random(1)
    middle = filled.days[len(filled.days) // 2]

    def night(days: list[date]) -> str:
        return f"slot={chance.choice([f'slot{number}' for number in range(SLOTS)])}&date={chance.choice(days)}"

    def path() -> str:
        day = chance.choice(filled.days)
        return f"/nightlies/slot1/b{day:%Y%m%d}/Project03/x86_64-el9-gcc2"

    def run() -> str:
        return f"nightly_install_slot2/night__{chance.choice(filled.days)}__0200__pass1"

    pages = {
        "list": lambda: "/nights",
        "list of a slot": lambda: "/nights?slot=slot1",
        "list, far back": lambda: f"/nights?until={middle}&below={10**9}",
        "night, newest": lambda: f"/nights?{night(filled.days[-3:])}",
        "night, any": lambda: f"/nights?{night(filled.days)}",
        "night, news": lambda: f"/nights/live?{night(filled.days[-1:])}",
        "night, compared": lambda: f"/nights?{night(filled.days[-1:])}&compare=b{filled.days[-2]:%Y%m%d}",
        "night of a run": lambda: f"/nights?run={run()}",
        "provenance": lambda: f"/provenance?repository={FQRN}&path={path()}",
        "repository": lambda: "/repositories",
        "publications": lambda: "/publications",
        "publications, failed": lambda: f"/publications?repository={FQRN}&state=failed",
        "publications, far": lambda: f"/publications?state=published&below={chance.randrange(100, filled.rows)}",
        "start": lambda: "/start?action=undo&slot=slot1&build_id=b1",
    }
    if transfers:
        pages |= {
            "transfers": lambda: "/transfers",
            "transfers, news": lambda: "/transfers/live",
            "transfers, few": lambda: "/transfers?state=needs-credential",
            "transfers, failed": lambda: "/transfers?state=failed&failure=quota",
            "transfers of a link": lambda: f"/transfers?source=site{chance.randrange(60)}&state=new",
            "transfers of a user": lambda: f"/transfers?user=user{chance.randrange(5)}",
            "transfers of a workflow": lambda: f"/transfers?workflow=w{chance.randrange(max(1, transfers // 500_000))}",
            "a user's workflow": lambda: f"/transfers?user=user{chance.randrange(200)}&workflow=w0",
            "analytics": lambda: f"/analytics?until={datetime.now(UTC).date() - DAY * chance.randrange(5)}",
            "analytics of a user": lambda: f"/analytics?user=user{chance.randrange(200)}",
            "transfers, far": lambda: f"/transfers?after={chance.randrange(100, transfers)}",
            "transfer": lambda: f"/transfer?id={chance.randrange(1, transfers)}",
        }
    order = [name for name in pages for _ in range(requests)]
    chance.shuffle(order)
    for page in pages.values():
        for _ in range(WARM_UP):
            answer = client.get(page())
            assert answer.status_code == 200, re.sub(r"<[^>]+>", " ", answer.text)[-400:]
    times: dict[str, list[float]] = {name: [] for name in pages}
    for name in order:
        url, began = pages[name](), time.perf_counter()
        answer = client.get(url)
        times[name].append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, url
    return times


def _figures(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"p50_ms": round(cuts[49], 1), "p95_ms": round(cuts[94], 1)}


def _conclude(times: dict[str, list[float]], filled: Filled, options: argparse.Namespace, more: dict[str, Any]) -> int:
    pages = {name: _figures(found) for name, found in times.items()}
    overall = _figures([one for found in times.values() for one in found])
    good = all(found["p95_ms"] <= LIMIT_MS for found in pages.values())
    facts = {
        "benchmark": "pages",
        "ledger": options.ledger,
        "publications": filled.rows,
        "transfers": options.transfers,
        "requests": options.requests,
    }
    print(json.dumps({**facts, **overall, **more, "limit_ms": LIMIT_MS, "pages": pages, "good": good}))
    return 0 if good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publications", type=int, default=1_000_000)
    parser.add_argument("--transfers", type=int, default=5_000_000)
    parser.add_argument("--requests", type=int, default=60, help="of each page")
    parser.add_argument("--ledger", choices=("sqlite", "mariadb"), default="sqlite")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
