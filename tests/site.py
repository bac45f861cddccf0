"""A deployment for tests, built step by step: ``Deployment(tmp_path).with_gateway().with_slot()``.

A repository in a store, a gateway before it, publishers as different workers have them, and the configuration of all.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import uvicorn.server

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import REFLOG_KEY, fence
from include.cvmfs.commit.create import create_repository
from include.cvmfs.coordination.generation import look
from include.cvmfs.format.database import Reflog
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key, save_signer
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import Base, PrepareOptions, prepare
from include.cvmfs.revision.needed_objects import known_objects
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.artifact import DirectorySource
from include.gateway.client.client import GatewayClient
from include.gateway.service.clock import Clock
from include.gateway.service.commits.committer import StoreCommitter
from include.gateway.service.commits.queue import OnPoint, pass_by
from include.gateway.service.config import AcceptedKey, ReadConfig
from include.gateway.service.http.server import serve
from include.publishers.native import NativePublisher
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.changes import leave_condemned
from include.site.site import Site
from include.storage.file import FileStore
from include.storage.store import Store
from tests.fakes.apart import SharedCommitter, one_repository, shared_committer
from tests.fakes.collector import Collector
from tests.fakes.gateway_service import FakeCommitter
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.worker import native

FQRN = "nights.example.org"
MASTER = generate_master()
SIGNER = generate_repository_key(FQRN, datetime.now(UTC))
PUBLIC_KEY = format_public_key(MASTER.public_key())
BUILD = "/nightlies/main/b1"
DESTINATIONS = [f"{BUILD}/{project}/x86_64" for project in ("alpha", "beta", "gamma")]
NESTED = ["/nightlies/main", BUILD]


class _PromptLoop:
    """`asyncio` for uvicorn, whose looks every 0.1 s for its end would make the stops of all tests take a minute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


uvicorn.server.asyncio = _PromptLoop()  # type: ignore[assignment]


def now() -> datetime:
    return datetime.now(UTC)


def connection(login: str, password: str, **more: object) -> str:
    """A connection as Airflow's environment variables have it."""
    return json.dumps({"login": login, "password": password, **more})


@dataclass
class RunningGateway:
    """A service that runs from ``start`` to ``stop``."""

    read_config: ReadConfig
    committer: FakeCommitter | SharedCommitter | StoreCommitter | None = None
    clock: Clock | None = None
    on_point: OnPoint = pass_by
    url: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _clients: list[GatewayClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = self.read_config()

    def start(self) -> RunningGateway:
        ready = threading.Event()

        def listening(url: str) -> None:
            self.url = url
            ready.set()

        def run() -> None:
            serve(
                self.read_config, committer=self.committer, clock=self.clock, ready=listening, stop=self._stop,
                on_point=self.on_point,
            )  # fmt: skip

        self._thread = threading.Thread(target=run, daemon=True, name="gateway")
        self._thread.start()
        assert ready.wait(120), "the gateway did not start"
        return self

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._stop.set()
        if self._thread is not None:
            self._thread.join(20)
            assert not self._thread.is_alive(), "the gateway did not stop"

    def client(self, key_id: str = "rootkey", secret: str | None = None, **settings: object) -> GatewayClient:
        secrets = {key.id: key.secret for key in self.config.all_keys()}
        client = GatewayClient(self.url, key_id, secret or secrets[key_id], timeout_s=20, **settings)  # type: ignore[arg-type]
        self._clients.append(client)
        return client


@dataclass
class Deployment:
    """A repository below a folder, or in the ``store`` that is given; ``with_…`` adds what else there is.

    ``close`` it at the end. ``settings`` are those of its `site.yaml`, where the store of the repository is `cvmfs`;
    ``environment`` has what a process needs to work on the same site.
    """

    folder: Path
    store: Store = None  # type: ignore[assignment]
    public_url: str = ""
    url: str = ""
    algorithm: Algorithm = Algorithm.SHA1
    max_lease_time_s: float = 30.0
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    _gateway: RunningGateway | None = None
    _sites: list[Site] = field(default_factory=list)
    _clients: list[GatewayClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self.store or FileStore(self.folder / "cvmfs" / FQRN)
        self.public_url = self.public_url or self.store.url
        self.settings = {
            "ledger": f"sqlite:///{self.folder}/ledger.db",
            "paths": {"var": f"{self.folder}/var"},
            "stores": {"cvmfs": {"url": self.store.url.removesuffix(f"/{FQRN}")}},
            "repositories": {
                FQRN: {
                    "store": "cvmfs", "public_url": self.public_url, "public_key": f"{self.folder}/repository.pub",
                    "gateway": "gateway",
                }
            },
            **self.settings,
        }  # fmt: skip
        self.environment.setdefault("NIGHTSHIFT_CONFIG", str(self.file))

    # -- its parts

    def create(self, objects: Mapping[str, bytes] | None = None) -> None:
        """A repository of this process's keys: an empty one, or that of the ``objects`` of another site.

        Its signing key is in the folder `keys`.
        """
        if objects is None:
            create_repository(self.store, FQRN, master=MASTER, signer=SIGNER, now=now(), algorithm=self.algorithm)
        for key, content in (objects or {}).items():
            self.store.put(key, content)
        if not (self.folder / "keys" / f"{FQRN}.key").exists():
            save_signer(self.folder / "keys", FQRN, SIGNER)

    def with_repository(self) -> Self:
        self.create()
        return self

    def with_gateway(self, objects: Mapping[str, bytes] | None = None) -> Self:
        """The repository, see ``create``, and the gateway service before it in a thread."""
        self.create(objects)
        self.start()
        return self

    def with_slot(self, name: str = "main", **fields: Any) -> Self:
        slots = self.settings.get("slots", {})
        return self.configure(slots={**slots, name: {"repository": FQRN, "store": "cvmfs", **fields}})

    def with_options(self, **fields: Any) -> Self:
        """Settings of the repository."""
        self.settings["repositories"][FQRN].update(fields)
        return self.configure()

    def configure(self, **blocks: Any) -> Self:
        """Replace blocks of its settings; who has opened it opens it again."""
        self.settings.update(blocks)
        self._dispose()
        (self.folder / "repository.pub").write_bytes(PUBLIC_KEY)
        self.file.write_text(json.dumps(self.settings))
        return self

    @property
    def file(self) -> Path:
        return self.folder / "site.yaml"

    def start(self, committer: StoreCommitter | None = None) -> None:
        """The gateway service, on a new port; it commits in a process apart, unless a committer is given."""
        key, lease_s = AcceptedKey(KEY_ID, SECRET), self.max_lease_time_s
        read_config = partial(one_repository, self.folder, FQRN, self.store, key, max_lease_time_s=lease_s)
        self._gateway = RunningGateway(read_config, committer or shared_committer().serve(read_config)).start()
        self.reached_at(self._gateway.url)

    def reached_at(self, url: str) -> None:
        """The URL of the gateway."""
        self.url = url
        self.environment["AIRFLOW_CONN_GATEWAY"] = connection(KEY_ID, SECRET, host=url)

    def stop(self) -> None:
        """Everything that runs; it may be started again."""
        self._dispose()
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._gateway is not None:
            self._gateway.stop()
            self._gateway = None

    def close(self) -> None:
        self.stop()

    @property
    def site(self) -> Site:
        """The site of its settings as they are now, opened once."""
        if not self._sites:
            self.configure()
            self._sites.append(Site(load(self.file, environ={}), EnvSecrets(self.environment)))
        return self._sites[0]

    def _dispose(self) -> None:
        while self._sites:
            self._sites.pop().ledger.dispose()

    # -- readers and publishers

    def age(self, **delta: float) -> None:
        """Move everything in the reflog into the past by this `timedelta`."""
        reflog = Reflog.load(self.store.get(REFLOG_KEY))
        before = round(timedelta(**delta).total_seconds())
        reflog.add_all([replace(ref, timestamp=ref.timestamp - before) for ref in reflog.refs()])
        self.store.put(REFLOG_KEY, reflog.to_bytes())

    def client(self, url: str | None = None) -> GatewayClient:
        client = GatewayClient(url or self.url, KEY_ID, SECRET, timeout_s=20)
        self._clients.append(client)
        return client

    def worker(self, url: str | None = None, *, store: Store | None = None, **settings: Any) -> NativePublisher:
        """A publisher as another process would have it: nothing shared but the servers."""
        return native(FQRN, store or self.store, self.client(url), lambda: self.head().manifest, **settings)

    def reserve(self, destinations: Sequence[str] = DESTINATIONS) -> int:
        return self.worker().reserve(destinations, nested=NESTED, holder="test", now=now()).revision

    def head(self) -> Repository:
        return Repository.open(self.store, fqrn=FQRN, public_keys=[PUBLIC_KEY])

    def readers(self) -> Repository:
        """Read as a client does: through the public URL, with the public key only."""
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
        self,
        destination: str,
        files: Mapping[str, bytes],
        base: Repository | None = None,
        known_from: Sequence[str] = (),
        **options: Any,
    ) -> Changeset:
        """A changeset of some files for a destination, derived from the current revision unless told otherwise.

        It relies on what the revision holds at ``known_from``, as a night relies on the one before.
        """
        tree = self.tree(f"{abs(hash((destination, *files.items())))}-{os.urandom(4).hex()}", files)
        seen = look(self.store)
        head = base or self.head()
        known = known_objects(head.revision, known_from)
        leave_condemned(known, seen, head.revision)
        return prepare(
            DirectorySource(tree),
            store=self.store,
            fqrn=FQRN,
            destination=destination,
            now=now(),
            known=known,
            base=Base(head.manifest.root, head.manifest.revision, seen.moment),
            options=PrepareOptions(mtime=1, owner=(0, 0), algorithm=self.algorithm, **options),
        )

    def collector(self) -> Collector:
        """A collector as small as the protocol allows, to be stepped."""
        when = now()

        def barrier() -> None:
            fence(self.store, FQRN, signer=SIGNER, now=int(when.timestamp()))

        return Collector(self.store, FQRN, barrier=barrier, now=when)

    def contents_over_time(self, path: str) -> list[ObjectHash | None]:
        """The trees that stood at a path, oldest first, once for every time that it changed."""
        head, contents = self.head(), list[ObjectHash | None]()
        root: ObjectHash | None = head.manifest.root
        while root is not None:
            view = Revision(head.catalogs, root)
            nested = view.nested_at(path)
            contents.append(nested.hash if nested else None)
            root = view.root.previous_revision
        contents.reverse()
        return [tree for place, tree in enumerate(contents) if place == 0 or tree != contents[place - 1]]

    def assert_sound(self) -> None:
        """``check`` finds no problem, every object read included, and nothing is leased."""
        report = check(self.readers(), contents=True)
        assert not report.problems, report.problems
        assert self.client().leases() == []
