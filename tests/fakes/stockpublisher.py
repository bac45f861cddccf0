"""A publisher that behaves as `cvmfs_swissknife sync` does with a gateway.

It mounts a revision, sends all objects in packs by the legacy payload call, then the catalogs derived from the mounted
root, and reports the manifest of that moment.

Requests are written as the stock client writes them, byte for byte but for the host. No retry, no check, as there.
"""

from __future__ import annotations

import http.client
import itertools
import json
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalog import MARKER
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import PARTIAL, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import compress
from include.cvmfs.ingest.chunker import Chunker, ChunkLimits
from include.cvmfs.revision.repository import Repository
from include.gateway.protocol import authorization
from tests.fakes.packs import Pack

FORM = "application/x-www-form-urlencoded"
_PACK = 20
"""Objects of a pack: a publication takes several."""
DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, mtime=1, linkcount=2)


def cut_marks(data: bytes, limits: ChunkLimits | None = None) -> list[int]:
    """Offsets at which ``data`` is cut: starts of all pieces but the first."""
    chunker = Chunker(limits)
    return list(itertools.accumulate(len(piece) for piece in [*chunker.feed(data), *chunker.finish()]))[:-1]


class StockPanic(Exception):
    """What makes the stock publisher stop: the reply of a call that failed."""

    def __init__(self, call: str, reply: Mapping[str, Any]) -> None:
        super().__init__(f"{call}: {dict(reply)}")
        self.reply = dict(reply)

    @property
    def reason(self) -> str:
        return str(self.reply.get("reason", ""))


@dataclass
class StockWire:
    """The calls of a stock client, one connection each."""

    url: str
    key_id: str
    secret: str

    def acquire(self, path: str) -> dict[str, Any]:
        body = b'{"path" : "%b", "api_version" : "2", "hostname" : "stock"}' % path.encode()
        return self._json("POST", "/leases", body, signed=body)

    def drop(self, token: str) -> dict[str, Any]:
        return self._json("DELETE", f"/leases/{token}", b"", signed=token.encode())

    def commit(self, token: str, old: ObjectHash, new: ObjectHash, tag: str = "") -> dict[str, Any]:
        body = (
            f'{{"old_root_hash":"{old.with_suffix("C").text}","new_root_hash":"{new.with_suffix("C").text}",'
            f'"tag_name":"{tag}","tag_channel":0,"tag_description":""}}'
        ).encode()
        return self._json("POST", f"/leases/{token}", body, signed=token.encode())

    def payload(self, token: str, pack: Pack, *, legacy: bool = True) -> dict[str, Any]:
        header = pack.header.format()
        return self.raw_payload(token, pack.digest, len(header), b"".join(pack.blocks()), legacy=legacy)

    def raw_payload(
        self, token: str, digest: str, header_size: int | str, data: bytes, *, legacy: bool = True
    ) -> dict[str, Any]:
        """A payload whose message may say anything of the bytes that follow."""
        head = payload_message(token, digest, header_size)
        route, signed = ("/payloads", head) if legacy else (f"/payloads/{token}", token.encode())
        return self._json("POST", route, head + data, signed=signed, message_size=len(head))

    def call(
        self, method: str, route: str, body: bytes, *, signed: bytes, message_size: int | None = None
    ) -> tuple[int, bytes]:
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        headers = {
            "User-Agent": "cvmfs/2.11.5",
            "Accept": "*/*",
            "Authorization": authorization(self.key_id, self.secret, signed),
            **({} if message_size is None else {"Message-Size": str(message_size)}),
            "Content-Length": str(len(body)),
            "Content-Type": FORM,
        }
        try:
            connection.request(method, f"/api/v1{route}", body, headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def _json(
        self, method: str, route: str, body: bytes, *, signed: bytes, message_size: int | None = None
    ) -> dict[str, Any]:
        status, reply = self.call(method, route, body, signed=signed, message_size=message_size)
        if status != 200:
            return {"status": "error", "http": status, "reason": reply.decode()}
        found: dict[str, Any] = json.loads(reply)
        return found


def payload_message(token: str, digest: str, header_size: int | str) -> bytes:
    """The message before a pack, as the stock client spells it."""
    return (
        f'{{"session_token" : "{token}", "payload_digest" : "{digest}", '
        f'"header_size" : "{header_size}", "api_version" : "2"}}'
    ).encode()


@dataclass
class Transaction:
    """An open transaction: the lease, the mounted revision and the changes to it."""

    token: str
    edit: Edit
    objects: list[tuple[ObjectHash, bytes]] = field(default_factory=list)


@dataclass
class StockPublisher:
    """``read`` opens the repository as it is now."""

    fqrn: str
    wire: StockWire
    read: Callable[[], Repository]
    chunking: ChunkLimits = field(default_factory=lambda: ChunkLimits(1 << 14, 1 << 15, 1 << 16))
    algorithm: Algorithm = Algorithm.SHA1
    payloads: int = 0
    _mounted: Repository | None = None

    def mount(self) -> ObjectHash:
        """See the revision of this moment, as a remount does; a transaction works on what was mounted last."""
        self._mounted = self.read()
        return self._mounted.manifest.root

    @contextmanager
    def transaction(self, path: str) -> Iterator[Transaction]:
        """Aborted if the block raises; ``publish`` is up to the block."""
        if self._mounted is None:
            self.mount()
        assert self._mounted is not None
        reply = self.wire.acquire(f"{self.fqrn}{path or '/'}")
        if reply["status"] != "ok":
            raise StockPanic("transaction", reply)
        edit = Edit(CatalogCache(self._mounted.store), self._mounted.manifest.root)
        try:
            yield Transaction(reply["session_token"], edit)
        except BaseException:
            self.wire.drop(reply["session_token"])
            raise

    def write(self, transaction: Transaction, path: str, content: bytes, **fields: Any) -> None:
        """Put a file, whole or in chunks; a file that is there is replaced."""
        if transaction.edit.lookup(path) is not None:
            transaction.edit.remove(path)
        marks = [0, *cut_marks(content, self.chunking), len(content)]
        entry = Dirent("", stat.S_IFREG | 0o644, size=len(content), mtime=1, algorithm=self.algorithm, **fields)
        if len(marks) == 2:
            name = self._object(transaction, content)
            transaction.edit.add(path, entry.changed(hash=name))
            return
        pieces = [content[start:end] for start, end in pairwise(marks)]
        chunks = [
            Chunk(start, len(piece), self._object(transaction, piece, PARTIAL))
            for start, piece in zip(marks, pieces, strict=False)
        ]
        transaction.edit.add(path, entry.changed(chunked=True), chunks)

    def ingest(self, transaction: Transaction, base: str, files: Mapping[str, bytes]) -> None:
        """A tree of files; directories with a marker become nested catalogs, as the stock tools make them."""
        nested = {path.rpartition("/")[0] for path in files if path.rpartition("/")[2] == MARKER}
        for path in sorted(files):
            parts = path.split("/")
            for depth in range(len(parts)):
                folder = "/".join([base, *parts[:depth]])
                if transaction.edit.lookup(folder) is not None:
                    continue
                if "/".join(parts[:depth]) in nested:
                    transaction.edit.make_nested(folder, DIRECTORY)
                    self._object(transaction, b"")
                else:
                    transaction.edit.add(folder, DIRECTORY)
            if parts[-1] != MARKER:
                self.write(transaction, f"{base}/{path}", files[path])

    def publish(self, transaction: Transaction, *, tag: str = "", now: int = 1) -> int:
        """Send everything and commit; the new revision. Raises StockPanic at the first reply that is not ok."""
        new = transaction.edit.finish(now)
        self._send(transaction, transaction.objects)
        self._send(transaction, [(packed.hash, packed.data) for packed in new.catalogs])
        told = self.read().manifest.root
        reply = self.wire.commit(transaction.token, told, new.hash, tag)
        if reply["status"] != "ok":
            raise StockPanic("commit", reply)
        self.mount()
        return int(reply["final_revision"])

    def _send(self, transaction: Transaction, objects: list[tuple[ObjectHash, bytes]]) -> None:
        for start in range(0, len(objects), _PACK):
            reply = self.wire.payload(transaction.token, Pack.of(objects[start : start + _PACK]))
            if reply != {"status": "ok"}:
                raise StockPanic("payload", reply)
            self.payloads += 1

    def _object(self, transaction: Transaction, content: bytes, suffix: str = "") -> ObjectHash:
        data = compress(content)
        name = hash_bytes(data, self.algorithm, suffix)
        transaction.objects.append((name, data))
        return name
