"""Metadata objects: stored under their hashes, remembered, looked for before a manifest names them; the stock
checksum."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from include.cvmfs.errors import FormatError, HeadDamaged, ObjectDamaged, ObjectMissing, ReflogError
from include.cvmfs.format.database import History, Reflog
from include.cvmfs.format.hashes import HISTORY, ObjectHash, hash_bytes
from include.cvmfs.format.manifest import Manifest, alternative_key
from include.cvmfs.format.objects import compress, compress_database, load
from include.storage.errors import NotFound
from include.storage.store import Store, Version

STOCK_SPOOL = Path("/var/spool/cvmfs")
NAME = "reflog.chksum"

log = logging.getLogger(__name__)


def keep_checksum(file: Path, reflog: ObjectHash) -> bool:
    """Write the hash of the reflog that the manifest names, whole or not at all; whether the file has it now.

    Mode and, where this user may, owner stay as they were. A failure is logged and not raised: the switch is done, and
    the next one writes the file again.
    """
    text = str(reflog).encode()
    staged = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with contextlib.suppress(FileNotFoundError):
            if file.read_bytes() == text:
                return True
        try:
            before = file.stat()
        except FileNotFoundError:
            before = None
        try:
            staged.write_bytes(text)
            staged.chmod(0o644 if before is None else stat.S_IMODE(before.st_mode))
            if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.chown(staged, before.st_uid, before.st_gid)
            staged.replace(file)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        log.warning(
            "%s is not written: %s; let this user write the folder, or write %s into it, or cvmfs_server refuses "
            "to work on this repository", file, error.strerror or error, text.decode()
        )  # fmt: skip
        return False
    return True


def stale_checksum(fqrn: str, reflog: ObjectHash) -> str | None:
    """The warning if stock tools of this machine know another reflog, with the hint; None if none do."""
    file = STOCK_SPOOL / fqrn / NAME
    try:
        stored = file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if stored == str(reflog):
        return None
    return (
        f"cvmfs_server of this machine knows another reflog and will refuse to work: write {reflog} into {file}, or "
        f"let Nightshift keep it with `reflog_checksum: {file}` in the repository's settings"
    )


REFLOG_KEY = ".cvmfsreflog"


@dataclass(frozen=True, slots=True)
class StoredReflog:
    """A reflog, its file, and the store's version of that for compare-and-swap."""

    reflog: Reflog
    data: bytes
    version: Version
    hash: ObjectHash

    def is_of(self, manifest: Manifest) -> bool:
        """Tell whether the manifest names it; one that is ahead was left by a commit that died before its switch."""
        return manifest.reflog is None or self.hash.digest == manifest.reflog.digest


class Records:
    """Not for several threads at once. What is taken is the taker's to change; he keeps it again when it is stored."""

    def __init__(self) -> None:
        self._history: tuple[bytes, History] | None = None
        self._reflog: StoredReflog | None = None

    def history(self, store: Store, manifest: Manifest) -> History:
        """The tags of a revision, to be read. Raises HeadDamaged, StoreError."""
        history = self.take_history(store, manifest)
        if manifest.history is not None:
            self.keep_history(manifest.history, history)
        return history

    def take_history(self, store: Store, manifest: Manifest) -> History:
        kept, self._history = self._history, None
        if manifest.history is None:
            return History.create(manifest.fqrn)
        if kept is not None and kept[0] == manifest.history.digest:
            return kept[1]
        try:
            return History.load(load(store, manifest.history.with_suffix(HISTORY)))
        except (ObjectMissing, ObjectDamaged, FormatError) as fault:
            cure = f"its tags cannot be read: {fault}; run: nightshift repo repair {manifest.fqrn} --empty-history"
            raise HeadDamaged(manifest.fqrn, cure) from fault

    def keep_history(self, name: ObjectHash, history: History) -> None:
        self._history = name.digest, history

    def reflog(self, store: Store, manifest: Manifest) -> StoredReflog:
        """The reflog, to be read. Raises ReflogError, StoreError."""
        reflog = self.take_reflog(store, manifest)
        self.keep_reflog(reflog)
        return reflog

    def take_reflog(self, store: Store, manifest: Manifest) -> StoredReflog:
        kept, self._reflog = self._reflog, None
        if kept is not None and manifest.reflog is not None and kept.hash.digest == manifest.reflog.digest:
            return kept
        try:
            data, version = store.get_versioned(REFLOG_KEY)
        except NotFound:
            raise ReflogError(manifest.fqrn, f"{REFLOG_KEY} is missing; run: nightshift repo repair --reflog") from None
        try:
            reflog = Reflog.load(data)
        except FormatError as fault:
            raise ReflogError(manifest.fqrn, f"unreadable: {fault}; run: nightshift repo repair --reflog") from fault
        return StoredReflog(reflog, data, version, hash_bytes(data, manifest.root.algorithm))

    def keep_reflog(self, reflog: StoredReflog) -> None:
        self._reflog = reflog


_AT_ONCE = 16
_SLOW_S = 0.002
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Stored:
    """An object that a manifest is going to lead to. ``size``: its stored bytes; None where only its name is known."""

    hash: ObjectHash
    size: int | None = None


def store_all(store: Store, objects: Sequence[tuple[str, bytes]]) -> None:
    """Put content-addressed objects, some at a time; all are stored, and flushed, when this returns."""
    _each(store, lambda pair: store.put(*pair), objects)
    if objects:
        store.flush()


def _each(store: Store, step: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """The result of a step for each item: several at a time, unless the store is a folder that answers at once."""
    # Threads cost more than what they are for where a step is a system call; a folder may be on a network as well.
    done, slow = list[_Result](), not store.is_local and len(items) > 1
    while len(done) < len(items) and not slow:
        began = time.monotonic()
        done.append(step(items[len(done)]))
        slow = time.monotonic() - began > _SLOW_S
    if rest := items[len(done) :]:
        with ThreadPoolExecutor(min(_AT_ONCE, len(rest))) as pool:
            done += pool.map(step, rest)
    return done


def store_compressed(store: Store, data: bytes, like: ObjectHash, suffix: str, *, again: bool = False) -> Stored:
    """Store metadata, compressed, under its hash; the algorithm is that of ``like``.

    Sent unless it is there in its full size; ``again``: in any case.
    """
    packed = compress_database(data) if suffix == HISTORY else compress(data)
    name = hash_bytes(packed, like.algorithm, suffix)
    stored = None if again else store.head(name.key)
    if stored is None or stored.size != len(packed):
        store.put(name.key, packed)
    return Stored(name, len(packed))


def require_stored(store: Store, objects: Iterable[Stored]) -> None:
    """Look for objects before a manifest leads to them: a store may acknowledge and lose, or keep an empty file.

    Raises ObjectMissing for one that is absent, ObjectDamaged for one that is empty or has another size than was sent.
    """
    sizes: dict[ObjectHash, int | None] = {}
    for needed in objects:
        sizes[needed.hash] = needed.size or sizes.get(needed.hash)
    metas = _each(store, lambda name: store.head(name.key), list(sizes))
    for (name, size), meta in zip(sizes.items(), metas, strict=True):
        if meta is None:
            raise ObjectMissing(name.key, f"{store.url} does not have it; {_CURE}")
        if meta.size != (size or meta.size or 1):
            right = f"{size} bytes" if size else "its content"
            raise ObjectDamaged(name.key, f"{store.url} has {meta.size} bytes of it in the place of {right}; {_CURE}")


def store_alternatives(store: Store, manifest: Manifest) -> None:
    """Copy what the manifest names to its alternative names, if its clients ask for these (``A yes``).

    Raises ObjectMissing or ObjectDamaged for an object that cannot be copied, StoreError.
    """
    for name in manifest.named if manifest.alt_paths else ():
        copy, source = store.head(alternative_key(name)), store.head(name.key)
        if copy is not None and source is not None and copy.size == source.size:
            continue
        try:
            data = store.get(name.key)
        except NotFound:
            raise ObjectMissing(name.key) from None
        if hash_bytes(data, name.algorithm).digest != name.digest:
            raise ObjectDamaged(name.key)
        store.put(alternative_key(name), data)


_CURE = "commit again; if the current revision lost it, this names the cure: nightshift repo repair --dry-run"
