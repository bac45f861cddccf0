"""A ledger on a MariaDB of its own, an FTS service, and the processes of the components and of the users."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, update

from bench.publishing.machine import ROOT, Idle, step_back
from bench.stageouting.account import FinalAccount, Mark, Measures, final_account, ledger_mb, open_files
from bench.stageouting.history import fill
from bench.stageouting.load import LoadPlan, utc, workflow
from bench.stageouting.service import FtsProcess, cpu_s
from bench.stageouting.worker import ROLES
from include.ledger.engine import open_ledger, writing
from include.ledger.migrate import migrate
from include.stageout.blocks import close_workflow
from include.stageout.states import TransferState
from include.stageout.tables import stageout_transfers
from lab.servers.mariadb import MariaDbServer

SAY_EVERY_S = 30.0
CLOSE_EVERY_S = 10.0
_VERIFIED = {TransferState.DONE.value, TransferState.REGISTERED.value, TransferState.CLEANING.value}
DATABASE = "nightshift_bench"


@dataclass(frozen=True, slots=True)
class Trouble:
    """When the FTS service is killed, and for how long it stays away; seconds after the begin."""

    at: float
    away_s: float = 0.0


@dataclass(slots=True)
class SceneRun:
    """What one run gave. `cpu_ms`: of each process, for one file; `idle`: of the machine, while injecting."""

    plan: LoadPlan
    began: datetime
    measures: Measures
    account: FinalAccount
    costs: dict[str, dict[str, float]]
    cpu_ms: dict[str, float]
    idle: float
    drained_s: float
    ledger_mb: float
    away: list[tuple[float, float]] = field(default_factory=list)


class Scene:
    """One ledger; runs follow each other on it."""

    def __init__(self, folder: Path, server: MariaDbServer, ledger: Engine, fts: FtsProcess) -> None:
        self.folder = folder
        self._server = server
        self.ledger = ledger
        self.fts = fts

    def fill(self, rows: int) -> None:
        fill(self.ledger, rows)

    @property
    def ledger_url(self) -> str:
        """With the password."""
        return self.ledger.url.render_as_string(hide_password=False)

    def run(
        self, plan: LoadPlan, *, troubles: Sequence[Trouble] = (), drain_s: float, profile: bool = False,
        processes: bool = True, rucio: Mapping[str, Any] | None = None,
    ) -> SceneRun:  # fmt: skip
        """Inject for the minutes of the plan, then wait until every file has ended, or for `drain_s`.

        What waits for a retry then is made due at once. Without `processes` others run the components. `rucio`: the
        connection of the catalogue and a folder for its tokens; None: the ledger is the catalogue.
        """
        mark, mb = Mark.of(self.ledger), ledger_mb(self.ledger)
        before, idle = self._cpu(), Idle()
        roles = ROLES if processes else {}
        workers = {name: self._worker(plan, name, components, profile, rucio) for name, components in roles.items()}
        away: list[tuple[float, float]] = []
        injector = self._users(plan)
        began, start = utc(), time.monotonic()
        try:
            pest = threading.Thread(target=self._trouble, args=(troubles, start, away), daemon=True)
            pest.start()
            self._watch(mark, injector, start)
            injected = _ended(injector)
            share = idle.share()
            pest.join()
            say(f"{injected['files']:,} files requested, at most {injected['late_s']} s late; now the rest")
            drained = self._drain(plan, mark, drain_s)
        finally:
            injector.kill()
            costs = self._stop(workers)
        after = self._cpu()
        spent = {name: after[name] - before[name] for name in after} | {"inject": injected["cpu_s"]}
        spent |= {name: cost["cpu_s"] for name, cost in costs.items()}
        per_file = {name: round(1000 * seconds / injected["files"], 2) for name, seconds in spent.items()}
        measures = Measures.of(self.ledger, mark, began)
        account = final_account(self.ledger, mark, injected["files"], self.fts.there, in_ledger=rucio is None)
        return SceneRun(
            plan, began, measures, account, costs, per_file, share, drained, ledger_mb(self.ledger) - mb, away
        )  # fmt: skip

    @contextmanager
    def injecting(self, plan: LoadPlan) -> Iterator[None]:
        """Users send their requests while the block lasts."""
        injector = self._users(plan)
        try:
            yield
        finally:
            injector.kill()
            injector.wait()

    def _watch(self, mark: Mark, injector: subprocess.Popen[str], start: float) -> None:
        while injector.poll() is None:
            try:
                injector.wait(SAY_EVERY_S)
            except subprocess.TimeoutExpired:
                say(f"{time.monotonic() - start:5.0f} s: {_told(open_files(self.ledger, mark))}")

    def _trouble(self, troubles: Sequence[Trouble], start: float, away: list[tuple[float, float]]) -> None:
        for trouble in troubles:
            time.sleep(max(0.0, start + trouble.at - time.monotonic()))
            gone = time.monotonic() - start
            self.fts.kill()
            time.sleep(trouble.away_s)
            self.fts.start()
            away.append((gone, time.monotonic() - start))
            say(f"{gone:5.0f} s: the FTS service was killed; it replied again after {away[-1][1] - gone:.1f} s")

    def _drain(self, plan: LoadPlan, mark: Mark, drain_s: float) -> float:
        """Seconds until every file has ended. When only blocks are open, the workflows are closed."""
        began = said = time.monotonic()
        closed = float("-inf")
        while left := open_files(self.ledger, mark):
            self._end_waits()
            if set(left) <= _VERIFIED and time.monotonic() - closed > CLOSE_EVERY_S:
                # again and again: a file that comes into a block after it would wait for further files
                closed = time.monotonic()
                for user in range(plan.users):
                    close_workflow(self.ledger, plan.owner(user), workflow(plan.run), now=utc())
            if time.monotonic() - began > drain_s:
                say(f"after {drain_s:.0f} s: {_told(left)}")
                break
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                say(f"draining: {_told(left)}")
            time.sleep(1.0)
        return time.monotonic() - began

    def _end_waits(self) -> None:
        columns = stageout_transfers.c
        waiting = (columns.state == TransferState.RETRY_WAIT.value, columns.due_at > utc())
        writing(self.ledger, lambda connection: connection.execute(
            update(stageout_transfers).where(*waiting).values(due_at=utc())
        ))  # fmt: skip

    def _worker(
        self, plan: LoadPlan, name: str, components: Sequence[str], profile: bool, rucio: Mapping[str, Any] | None
    ) -> subprocess.Popen[str]:
        job = {"plan": plan.to_json(), "fts": self.fts.url, "name": name, "components": list(components)}
        job |= {"rucio": rucio}
        return self._start(
            "bench.stageouting.worker", job | ({"profile": str(self.folder / f"{name}.profile")} if profile else {})
        )

    def _users(self, plan: LoadPlan) -> subprocess.Popen[str]:
        """The users who send requests, at the lowest priority: in production they are on other machines."""
        injector = self._start("bench.stageouting.injector", {"plan": plan.to_json()}, apart=True)
        step_back(injector.pid)
        return injector

    def _start(self, module: str, job: dict[str, Any], *, apart: bool = False) -> subprocess.Popen[str]:
        job |= {"ledger": self._server.url(DATABASE), "password": self._server.password}
        process = subprocess.Popen(
            [sys.executable, "-m", module], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=apart,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.close()
        return process

    def _stop(self, workers: dict[str, subprocess.Popen[str]]) -> dict[str, dict[str, float]]:
        for process in workers.values():
            process.send_signal(signal.SIGTERM)
        return {name: cost for process in workers.values() for name, cost in _ended(process).items()}

    def _cpu(self) -> dict[str, float]:
        return {"mariadb": cpu_s(self._server.process.pid), "fts": self.fts.cpu_s()}


def _told(left: Counter[str]) -> str:
    return f"{left.total():,} files have not ended: {', '.join(f'{count:,} {state}' for state, count in left.items())}"


def _ended(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    output = process.stdout.read()
    if process.wait():
        raise RuntimeError(f"{process.args!r} ended with code {process.returncode}")
    return json.loads(output.splitlines()[-1])


def large_database(folder: Path, memory_gb: int = 1) -> MariaDbServer:
    """One with memory for millions of rows; a commit is on disk within a second, as on a server with a standby."""
    return MariaDbServer(folder, options=(f"--innodb-buffer-pool-size={memory_gb}G", "--innodb-log-file-size=512M"))


@contextmanager
def opened(folder: Path, *, mean_s: float, memory_gb: int = 1) -> Iterator[Scene]:
    """All of it goes away at the end; `memory_gb`: what the database keeps of its rows."""
    with large_database(folder / "server", memory_gb) as server:
        ledger = open_ledger(server.create_database(DATABASE), password=server.password)
        migrate(ledger)
        fts = FtsProcess(folder, mean_s=mean_s)
        fts.start()
        try:
            yield Scene(folder, server, ledger, fts)
        finally:
            fts.kill()
            ledger.dispose()


def say(text: str) -> None:
    print(text, flush=True)
