"""A repository on a real store; gateways and publishers before it, as threads or as processes that can be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY
from include.cvmfs.commit.create import create_repository
from include.cvmfs.coordination.generation import look
from include.cvmfs.format.database import Reflog
from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key, save_signer
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import Base, PrepareOptions, prepare
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.directory import DirectorySource
from include.gateway.client.client import GatewayClient
from include.publishers.native import NativePublisher
from include.storage.store import Store
from tests.fakes.faultproxy import Fault
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.worker import PRELOADED, native, run

FQRN = "nights.example.org"
MASTER = generate_master()
SIGNER = generate_repository_key(FQRN, datetime.now(UTC))
PUBLIC_KEY = format_public_key(MASTER.public_key())
BUILD = "/nightlies/main/b1"
DESTINATIONS = [f"{BUILD}/{project}/x86_64" for project in ("alpha", "beta", "gamma")]
NESTED = ["/nightlies/main", BUILD]


@dataclass
class LiveSite:
    """What workers share: the store, the gateway's URL and the keys. Whoever makes one starts its gateway."""

    folder: Path
    store: Store
    public_url: str
    url: str = ""
    algorithm: Algorithm = Algorithm.SHA1
    _clients: list[GatewayClient] = field(default_factory=list)

    def create(self, objects: Mapping[str, bytes] | None = None) -> None:
        """A repository of this process's keys: an empty one, or that of the ``objects`` of another site."""
        if objects is None:
            create_repository(
                self.store, FQRN, master=MASTER, signer=SIGNER, now=datetime.now(UTC), algorithm=self.algorithm
            )
        for key, content in (objects or {}).items():
            self.store.put(key, content)

    def age(self, **delta: float) -> None:
        """Move everything in the reflog into the past by this `timedelta`."""
        reflog = Reflog.load(self.store.get(REFLOG_KEY))
        before = round(timedelta(**delta).total_seconds())
        reflog.add_all([replace(ref, timestamp=ref.timestamp - before) for ref in reflog.refs()])
        self.store.put(REFLOG_KEY, reflog.to_bytes())

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def client(self, url: str | None = None) -> GatewayClient:
        client = GatewayClient(url or self.url, KEY_ID, SECRET, timeout_s=20)
        self._clients.append(client)
        return client

    def worker(self, url: str | None = None, *, store: Store | None = None, **settings: Any) -> NativePublisher:
        """A publisher as another process would have it: nothing shared but the servers."""
        return native(FQRN, store or self.store, self.client(url), lambda: self.head().manifest, **settings)

    def reserve(self, destinations: Sequence[str] = DESTINATIONS) -> int:
        return self.worker().reserve(destinations, nested=NESTED, holder="test", now=datetime.now(UTC)).revision

    def head(self) -> Repository:
        return Repository.open(self.store, fqrn=FQRN, public_keys=[PUBLIC_KEY])

    def readers(self) -> Repository:
        """As a client reads: through the public URL, with the public key only."""
        return Repository.open(self.public_url, fqrn=FQRN, public_keys=[PUBLIC_KEY])

    def tree(self, name: str, files: Mapping[str, bytes]) -> Path:
        """A folder with these files."""
        tree = self.folder / "trees" / name
        tree.mkdir(parents=True)
        for path, content in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        return tree

    def prepared(
        self, destination: str, files: Mapping[str, bytes], base: Repository | None = None, **options: Any
    ) -> Changeset:
        """A changeset of some files for a destination, derived from the current revision unless told otherwise."""
        tree = self.tree(f"{abs(hash((destination, *files.items())))}-{os.urandom(4).hex()}", files)
        seen = look(self.store)
        head = base or self.head()
        return prepare(
            DirectorySource(tree),
            store=self.store,
            fqrn=FQRN,
            destination=destination,
            now=datetime.now(UTC),
            base=Base(head.manifest.root, head.manifest.revision, seen.moment),
            options=PrepareOptions(mtime=1, owner=(0, 0), algorithm=self.algorithm, **options),
        )

    def contents_over_time(self, path: str) -> list[ObjectHash | None]:
        """What stood at a path, oldest first, once for every time that it changed."""
        head, found = self.head(), []
        root: ObjectHash | None = head.manifest.root
        while root is not None:
            view = Revision(head.catalogs, root)
            nested = view.nested_at(path)
            found.append(nested.hash if nested else None)
            root = view.root.previous_revision
        found.reverse()
        return [one for place, one in enumerate(found) if place == 0 or one != found[place - 1]]

    def assert_sound(self) -> None:
        """``check`` finds no problem, every object read included, and nothing is leased."""
        report = check(self.readers(), contents=True)
        assert not report.problems, report.problems
        assert self.client().leases() == []


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
        """SIGSTOP; returns when all its threads stand still."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        states = Path(f"/proc/{self.process.pid}/task")
        while any(_state(task) != "T" for task in states.iterdir()):
            threading.Event().wait(0.002)

    def go_on(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self.process.is_alive():
            self.kill()
        self._answers.close()


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(") ")[2][0]


@dataclass
class ProcessSite(LiveSite):
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
        save_signer(self.folder / "keys", FQRN, SIGNER)
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
        self,
        state: str = "state.db",
        *,
        port: int | None = None,
        die_at: str = "",
        patience_s: float = 60,
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
        done = self.worker().publish(self.prepared(DESTINATIONS[-1], files), holder="next", now=datetime.now(UTC))
        assert done.revision == before + 1
        self.assert_sound()


def drop(held: Fault) -> None:
    """Let a held request be lost on its way, as one is whose sender's machine went away."""
    held.kind = "cut"
    held.release()
