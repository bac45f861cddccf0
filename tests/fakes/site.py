"""A deployment whose gateways and publishers are processes that can be killed."""

from __future__ import annotations

import multiprocessing
import os
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY
from include.cvmfs.format.hashes import hash_bytes
from tests.fakes.faultproxy import Fault
from tests.fakes.worker import PRELOADED, run
from tests.site import BUILD, DESTINATIONS, FQRN, MASTER, NESTED, PUBLIC_KEY, SIGNER, Deployment, now

__all__ = ["BUILD", "DESTINATIONS", "FQRN", "MASTER", "NESTED", "PUBLIC_KEY", "SIGNER", "LiveSite"]
LiveSite = Deployment
"""The name in tests of the commands."""


_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(PRELOADED)


class Job:
    """A process of ``tests.fakes.worker``. What it says is kept in order."""

    def __init__(self, verb: str, **order: object) -> None:
        self.said: list[dict[str, Any]] = []
        self._answers, theirs = _processes.Pipe(duplex=False)
        self.process = _processes.Process(target=run, args=({"verb": verb, **order}, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        assert self._answers.poll(timeout_s), f"the process says nothing any more, after {self.said}"
        try:
            self.said.append(self._answers.recv())
        except EOFError:
            return None
        return self.said[-1]

    def wait_for(self, *fields: str, timeout_s: float = 60) -> dict[str, Any]:
        """The next answer that has one of these fields. Fails if the process ends without one."""
        while (line := self._next(timeout_s)) is not None:
            if line.keys() & set(fields):
                return line
        raise AssertionError(f"the process ended without saying {' or '.join(fields)}: {self.said}")

    def outcome(self, timeout_s: float = 60) -> dict[str, Any]:
        """The last thing it said, once it has ended."""
        while self._next(timeout_s) is not None:
            pass
        self.process.join(timeout_s)
        assert self.said, "the process ended without a word"
        return self.said[-1]

    def kill(self) -> None:
        """As kill -9 does; returns when it is gone."""
        self.process.kill()
        self.process.join()

    def pause(self) -> None:
        """SIGSTOP to it and to the processes that it started; returns when all their threads stand still."""
        for process in self._processes():
            process.suspend()
            states = Path(f"/proc/{process.pid}/task")
            while any(_state(task) != "T" for task in states.iterdir()):
                threading.Event().wait(0.002)

    def go_on(self) -> None:
        for process in self._processes():
            process.resume()

    def _processes(self) -> list[psutil.Process]:
        ours = psutil.Process(self.process.pid)
        return [ours, *ours.children(recursive=True)]

    def close(self) -> None:
        if self.process.is_alive():
            self.kill()
        self._answers.close()


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(") ")[2][0]


@dataclass
class ProcessSite(Deployment):
    """A site whose gateways and publishers are processes. ``storage``: how they reach the store, for their orders.

    ``behind``, ``to_store``, ``to_gateway``: URLs that stand between a gateway and the store, publishers and the store,
    publishers and the gateway; usually of proxies that do harm.
    """

    storage: Mapping[str, object] = field(default_factory=dict)
    behind: str | None = None
    to_store: str | None = None
    to_gateway: str | None = None
    max_lease_time_s: float = 60.0
    gateway: Job | None = None
    port: int = 0
    _jobs: list[Job] = field(default_factory=list)
    _ahead_s: float = 0.0

    def create(self, objects: Mapping[str, bytes] | None = None) -> None:
        super().create(objects)
        (self.folder / "keys" / "public").write_bytes(PUBLIC_KEY)
        self.later(0)

    def later(self, seconds: float) -> None:
        """Let the gateways' clocks stand this far ahead of the machine's."""
        (self.folder / "clock").write_bytes(struct.pack("<d", seconds))

    def after_expiry(self) -> None:
        """Let all leases that are held now have expired."""
        self._ahead_s += self.max_lease_time_s
        self.later(self._ahead_s)

    def close(self) -> None:
        super().close()
        for job in self._jobs:
            job.close()

    def start_gateway(
        self, state: str = "state.db", *, port: int | None = None, die_at: str = "", patience_s: float = 60
    ) -> Job:
        """A gateway process, ready; on the port of the one before unless told otherwise.

        ``die_at``: kills itself when a commit comes by this point (``include.gateway.service.commits.queue``).
        """
        job = self.job(
            "gateway",
            **{**self.storage, **({"endpoint": self.behind} if self.behind else {})},
            keys=str(self.folder / "keys"),
            state=str(self.folder / state),
            log=str(self.folder / "gateway.log"),
            clock=str(self.folder / "clock"),
            port=self.port if port is None else port,
            max_lease_time_s=self.max_lease_time_s,
            die_at=die_at,
        )
        url = job.wait_for("url", timeout_s=patience_s)["url"]
        if port is None:
            self.gateway, self.url, self.port = job, url, int(url.rpartition(":")[2])
        return job

    def job(self, verb: str, **order: object) -> Job:
        job = Job(verb, fqrn=FQRN, algorithm=self.algorithm.name, **order)
        self._jobs.append(job)
        return job

    def start(self, verb: str, *, holder: str = "first try", **order: object) -> Job:
        """A publisher process, through the proxies."""
        orders: dict[str, object] = {
            **self.storage,
            **({"endpoint": self.to_store} if self.to_store else {}),
            "gateway": self.to_gateway or self.url,
            "public_key": str(self.folder / "keys" / "public"),
            "owner": holder,
        }
        return self.job(verb, **{**orders, **order})

    def files(self) -> dict[str, bytes]:
        """What a switch replaces: the manifest and the reflog."""
        return {key: self.store.get(key) for key in (MANIFEST_KEY, REFLOG_KEY)}

    def reflog_is_ahead(self) -> bool:
        """Whether the reflog is another one than the manifest names, as after a crash between the two."""
        named = self.head().manifest.reflog
        assert named is not None
        return hash_bytes(self.store.get(REFLOG_KEY), named.algorithm).digest != named.digest

    def goes_on(self) -> None:
        """The next publication works and everything is sound, without anybody's help."""
        before = self.head().manifest.revision
        files = {"next": b"publication", "sub/dir/file": os.urandom(100)}
        done = self.worker().publish(self.prepared(DESTINATIONS[-1], files), holder="next", now=now())
        assert done.revision == before + 1
        self.assert_sound()


def drop(held: Fault) -> None:
    """Let a held request be lost on its way, as one is whose sender's machine went away."""
    held.kind = "cut"
    held.release()
