"""A stock gateway as it was observed: a real HTTP server with its answers, its surprises and knobs for its failures.

Protocol: docs/formats.md, gateway. It shares no code with our service; leases are in SQLite, where LIKE decides.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from include.cvmfs.commit.commit import REFLOG_KEY, NewTag, load_history, read_head
from include.cvmfs.coordination.generation import STATUS_KEY
from include.cvmfs.errors import FormatError, ObjectMissing
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Reflog, RefType
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.revision.revision import Revision
from include.storage.errors import NotFound
from include.storage.store import Store
from tests.fakes.stockreceiver import Panic, Receiver, Refused

API = "/api/v1"
WELCOME = "You are in an open field on the west side of a white house with a boarded front door."


@dataclass
class StockGateway:
    """Serves one repository on a free port while it is entered. ``renews``: as the gateway of 2026 does.

    ``fail``: texts that the next commits answer instead of publishing; ``fail_after``: after they have published.
    ``lose_replies``: how many of the next commits end without a reply.

    ``during_collection`` is called within a collection, before it deletes anything; ``collection_fails``: texts that
    the next ones answer instead; ``lose_collections``: how many end without a reply, ``cut_collections``: how many lose
    their connection at once and go on; ``scripts``: those of the old gateway are there, which refuse to collect while
    anything is leased; ``keeps_disabled``: it says ok to enabling and does not do it.
    """

    receiver: Receiver
    keys: dict[str, str]
    admins: set[str] = field(default_factory=set)
    max_lease_time_s: float = 7200.0
    renews: bool = False
    fail: list[str] = field(default_factory=list)
    fail_after: list[str] = field(default_factory=list)
    lose_replies: int = 0
    enabled: bool = True
    keeps_disabled: bool = False
    during_collection: Callable[[], object] | None = None
    collection_fails: list[str] = field(default_factory=list)
    lose_collections: int = 0
    cut_collections: int = 0
    scripts: bool = False
    url: str = ""
    collections: list[dict[str, Any]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    leased: list[str] = field(default_factory=list)
    _counters: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _repository: threading.Lock = field(default_factory=threading.Lock)
    _cut: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> StockGateway:
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.execute("CREATE TABLE lease (token TEXT PRIMARY KEY, path TEXT, key TEXT, expires INT, host TEXT)")
        gateway = self

        class Handler(_Handler):
            stock = gateway

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
        for thread in self._cut:
            thread.join(10)
        self._db.close()

    def restart(self) -> None:
        """Leases are in a file and survive; the counters that a commit needs, and what is disabled, were in memory."""
        self._counters.clear()
        self.enabled = True

    def expire_all(self) -> None:
        """Let all leases have expired; their rows stay until another one is granted."""
        self._db.execute("UPDATE lease SET expires = 0")

    def held(self) -> list[str]:
        """The paths of the leases that have not expired."""
        rows = self._db.execute("SELECT path FROM lease WHERE expires > ?", (_now_ms(),)).fetchall()
        return sorted(str(path) for (path,) in rows)

    # -- calls, each under the one lock

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, str] | None:
        """Status and text; None is a reply that is lost."""
        route = path.removeprefix(API)
        self.calls.append(f"{method} {'/leases/<token>' if route.startswith('/leases/') else route}")
        if method == "GET" and route == "":
            return _json(welcome=WELCOME)
        if method == "GET" and route == "/repos":
            keys = dict.fromkeys(self.keys, "/")
            return _json(status="ok", data={self.receiver.fqrn: {"keys": keys, "enabled": self.enabled}})
        if route.startswith("/repos/") and method == "POST":
            return self._enable(headers, body)
        if route == "/gc" and method == "POST":
            return self._collect(headers, body)
        if method == "GET" and route == "/leases":
            with self._lock:
                rows = self._rows()
            return _json(status="ok", data={row["path"]: row for row in rows.values()})
        if route.startswith("/leases-by-path/") and method == "DELETE":
            return self._cancel(path, headers)
        if route == "/leases" and method == "POST":
            return self._acquire(headers, body)
        if route.startswith("/leases/"):
            token = route.removeprefix("/leases/")
            if method == "GET":
                with self._lock:
                    row = self._rows().get(token)
                return (500, "invalid lease\n") if row is None else _json(data=row)
            if method == "PATCH" and not self.renews:
                return 405, ""
            if not self._signed(headers, token.encode()):
                return _error("invalid_hmac")
            handlers = {"POST": self._commit, "DELETE": self._drop, "PATCH": self._renew}
            if method in handlers:
                with self._lock:
                    return handlers[method](token, body)
            return 405, ""
        return 404, "404 page not found\n"

    def _acquire(self, headers: Any, body: bytes) -> tuple[int, str]:
        if not self._signed(headers, body):
            return _error("invalid_hmac")
        try:
            asked = json.loads(body)
            version = int(asked["api_version"]) if isinstance(asked["api_version"], str) else None
        except (ValueError, KeyError):
            return 400, "invalid request body\n"
        if version is None:
            return 400, "invalid request body\n"
        if version < 2:
            return _error(f"incompatible request version: {version}, min version: 2")
        full = str(asked["path"])
        if full.startswith("/"):
            return _error("input has leading slash")
        repository, slash, _ = full.partition("/")
        if not slash:
            return _error("missing repository name or subpath")
        if repository != self.receiver.fqrn:
            return _error("repository not found: %!w(<nil>)")
        if not self.enabled:
            return _error("repo_disabled")
        with self._lock:
            path, now = full[len(repository) :], _now_ms()
            busy = self._db.execute(
                "SELECT expires FROM lease WHERE expires > ?1 AND (?2 LIKE (path || '%') OR path LIKE (?2 || '%'))",
                (now, path),
            ).fetchone()
            if busy:
                return _json(status="path_busy", time_remaining=_duration(busy[0] - now))
            self._db.execute("DELETE FROM lease WHERE expires <= ?", (now,))
            token = base64.b32encode(os.urandom(32)).decode()
            expires = now + round(self.max_lease_time_s * 1000)
            key = str(headers["Authorization"]).partition(" ")[0]
            host = asked.get("hostname") or "127.0.0.1"
            self._db.execute("INSERT INTO lease VALUES (?, ?, ?, ?, ?)", (token, path, key, expires, host))
            self._counters.add(path)
            self.leased.append(path)
        return _json(status="ok", session_token=token, max_api_version=min(version, 3))

    def _commit(self, token: str, body: bytes) -> tuple[int, str] | None:
        try:
            asked = json.loads(body)
        except ValueError:
            return 400, "invalid request body\n"
        row = self._rows().get(token)
        if row is None:
            return _error("invalid lease")
        path = row["path"][len(self.receiver.fqrn) :]
        if path not in self._counters:
            full = row["path"]
            return _error(f"could not obtain statistics counters: no statistics counters for lease {full}")
        self._counters.discard(path)
        self.commits.append({**asked, "path": path})
        if self.fail:
            return _error(self.fail.pop(0))
        tag = NewTag(asked["tag_name"], asked["tag_description"]) if asked["tag_name"] else None
        try:
            old, new = ObjectHash.parse(asked["old_root_hash"]), ObjectHash.parse(asked["new_root_hash"])
            with self._repository:
                revision = self.receiver.commit(path, old, new, tag)
        except (Panic, FormatError) as panic:
            return _error(f"runtime error: {panic}")
        except Refused as refused:
            return _error(str(refused))
        if self.fail_after:
            return _error(self.fail_after.pop(0))
        self._db.execute("DELETE FROM lease WHERE token = ?", (token,))
        if self.lose_replies:
            self.lose_replies -= 1
            return None
        return _json(status="ok", final_revision=revision)

    def _drop(self, token: str, _: bytes) -> tuple[int, str]:
        gone = self._db.execute("DELETE FROM lease WHERE token = ?", (token,)).rowcount
        return _json(status="ok") if gone else _error("invalid lease")

    def _renew(self, token: str, body: bytes) -> tuple[int, str]:
        if token not in self._rows():
            return _error("invalid lease")
        wanted_s = json.loads(body).get("expires_in_sec") if body else None
        expires = _now_ms() + round(min(wanted_s or self.max_lease_time_s, self.max_lease_time_s) * 1000)
        self._db.execute("UPDATE lease SET expires = ? WHERE token = ?", (expires, token))
        return _json(status="ok", data={"expires": _time(expires)})

    def _cancel(self, path: str, headers: Any) -> tuple[int, str]:
        if (refusal := self._refusal(headers, path.encode())) is not None:
            return refusal
        place = path.removeprefix(f"{API}/leases-by-path/").removeprefix(self.receiver.fqrn)
        with self._lock:
            self._db.execute("DELETE FROM lease WHERE path LIKE (? || '%')", (place,))
        return _json(status="ok")

    def _enable(self, headers: Any, body: bytes) -> tuple[int, str]:
        if (refusal := self._refusal(headers, body)) is not None:
            return refusal
        self.enabled = json.loads(body)["enable"] and not self.keeps_disabled
        return _json(status="ok")  # also where it failed

    def _collect(self, headers: Any, body: bytes) -> tuple[int, str] | None:
        """Only the lock of the repository's commits is held, and no lease is looked at."""
        if (refusal := self._refusal(headers, body)) is not None:
            return refusal
        asked = json.loads(body)
        self.collections.append({**asked, "leased": self.held(), "enabled": self.enabled})
        if self.scripts and self.held():
            return _error("exit status 1")
        if "timestamp" in asked:
            return _error("exit status 1")  # `date` does not take it as Go writes it
        if self.collection_fails:
            return _error(self.collection_fails.pop(0))
        if self.cut_collections:
            self.cut_collections -= 1
            self._cut.append(threading.Thread(target=self._run_collection, args=(asked,), daemon=True))
            self._cut[-1].start()
            return None
        output = self._run_collection(asked)
        if self.lose_collections:
            self.lose_collections -= 1
            return None
        return _json(status="ok", output=output)

    def _run_collection(self, asked: dict[str, Any]) -> str:
        with self._repository:
            if self.during_collection is not None:
                self.during_collection()
            return collected(self.receiver.store, self.receiver.fqrn, asked["num_revisions"], dry_run=asked["dry_run"])

    def _refusal(self, headers: Any, message: bytes) -> tuple[int, str] | None:
        key = str(headers["Authorization"]).partition(" ")[0]
        if not self._signed(headers, message):
            return _error("invalid_hmac")
        return None if key in self.admins else _error("no_admin_key")

    def _signed(self, headers: Any, message: bytes) -> bool:
        key, _, signature = str(headers["Authorization"]).partition(" ")
        digits = hmac.new(self.keys.get(key, "").encode(), message, hashlib.sha1).hexdigest()
        return key in self.keys and signature == base64.b64encode(digits.encode()).decode()

    def _rows(self) -> dict[str, dict[str, str]]:
        rows = self._db.execute("SELECT token, path, key, expires, host FROM lease WHERE expires > ?", (_now_ms(),))
        return {
            token: {"key_id": key, "path": self.receiver.fqrn + path, "expires": _time(expires), "hostname": host}
            for token, path, key, expires, host in rows
        }


class _Handler(BaseHTTPRequestHandler):
    stock: StockGateway
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body leave in one piece

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.stock.answer(self.command, self.path, self.headers, body)
        if answer is None:
            self.close_connection = True
            return
        status, text = answer
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _serve  # noqa: N815 - names that the library calls

    def log_message(self, *_: object) -> None:
        """Nothing: the base class writes to stderr."""


def _json(**members: object) -> tuple[int, str]:
    text = json.dumps(dict(sorted(members.items())), separators=(",", ":"))
    return 200, text.replace("<", "\\u003c").replace(">", "\\u003e")


def _error(reason: str) -> tuple[int, str]:
    return _json(reason=reason, status="error")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _time(unix_ms: int) -> str:
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{unix_ms % 1000:03d} +0000 UTC"


def _duration(ms: int) -> str:
    minutes, seconds = divmod(max(ms, 1) / 1000, 60)
    return f"{minutes:.0f}m{seconds:.9f}s" if minutes else f"{seconds:.9f}s"


# -- `cvmfs_server gc -f -l`, by the rules of the stock tools: the manifest is not signed again


DAYS_3_S = 3 * 24 * 3600


def collected(store: Store, fqrn: str, revisions: int, *, dry_run: bool) -> str:
    """`revisions` before the current one stay, or those of 3 days; the output."""
    catalogs, manifest = CatalogCache(store), read_head(store, fqrn).manifest
    reflog = Reflog.load(store.get(REFLOG_KEY))
    times = {one.hash.digest: one.timestamp for one in reflog.refs(RefType.CATALOG)}
    said = ["Running Garbage Collection ", "  --> marking unreferenced objects [now]"]
    kept = set[bytes]()
    roots, depth, oldest = [manifest.root], 0, time.time() - DAYS_3_S
    while (previous := Revision(catalogs, roots[-1]).root.previous_revision) is not None:
        too_old = times.get(roots[-1].digest, 0) < oldest
        if (depth >= revisions if revisions else too_old) or not store.exists(previous.key):
            break
        depth += 1
        roots.append(previous)
    roots += [tag.hash.with_suffix(CATALOG) for tag in load_history(store, manifest).tags()]
    for root in roots:
        said.append(f"Preserving Revision {Revision(catalogs, root).root.revision} (then / added @ then)")
        said.append(f"├─ {root} /")
        kept |= {one.digest for one in _named(catalogs, root)}
    said.append("  --> sweeping unreferenced objects [now]")
    asked = set[bytes]()
    condemned = [one.hash for one in reflog.refs(RefType.CATALOG) if one.hash.digest not in kept]
    for number, root in enumerate(condemned, start=1):
        try:
            names = list(_named(catalogs, root))
        except ObjectMissing:
            continue
        said.append(f"Sweeping Revision {Revision(catalogs, root).root.revision} (then)")
        for name in names:
            if name.digest not in kept | asked:
                asked.add(name.digest)
                said.append(f"Sweep: {name.text}")
                if not dry_run:
                    store.delete([name.key])
        done = f"{number * 100 // len(condemned):02}%    {number} / {len(condemned)}"
        said.append(f"      - {done} unreferenced revisions removed [now]")
    if not dry_run:
        reflog.remove_all(condemned)
        store.put(REFLOG_KEY, reflog.to_bytes())
        _note(store)
    return "\n".join([*said, "  --> done garbage collecting [now]", ""])


def _named(catalogs: CatalogCache, root: ObjectHash) -> Iterator[ObjectHash]:
    yield from (name for name, _ in Revision(catalogs, root).objects_below(""))
    yield root


def _note(store: Store) -> None:
    """With the resolution of a second, and never the time of the collection before."""
    try:
        status = json.loads(store.get(STATUS_KEY))
    except NotFound:
        status = {}
    moment = time.time()
    while (text := time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(moment))) == status.get("last_gc"):
        moment += 1
    store.put(STATUS_KEY, json.dumps({**status, "last_gc": text}).encode())
