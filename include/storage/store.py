"""The interface of every object store: keys, versions, counters and the verbs."""

from __future__ import annotations

import hashlib
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from include.storage.errors import BadKey, StoreError
from include.storage.kinds import StoreKind, Traits

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Version:
    """Identifies one content of one object. Compare it, hand it back to ``replace``, never take it apart."""

    etag: str


class ContentVersion(Version):
    """Version by the bytes, which are hashed when it is first compared with another: a reflog has megabytes.

    For stores without versions of their own: inode numbers come back, and clocks tick slower than writers write.
    """

    data: bytes

    def __init__(self, data: bytes) -> None:
        object.__setattr__(self, "data", data)

    @cached_property
    def etag(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Facts that a store reports about an object without sending it. ``size`` in bytes, ``modified`` with time zone."""

    key: str
    size: int
    modified: datetime
    version: Version


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A write that was begun and not finished. ``size`` in bytes, None if not reported; ``since``: aware."""

    name: str
    size: int | None
    since: datetime


@dataclass(slots=True)
class Counters:
    """Requests to a store since it was opened. Successful requests; retries by cause ("503", "timeout", ...)."""

    puts: int = 0
    gets: int = 0
    heads: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_put: int = 0
    bytes_got: int = 0
    retries: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **more: int) -> None:
        """Count requests and bytes, by the names of these fields; safe from any thread."""
        with self._lock:
            for name, count in more.items():
                setattr(self, name, getattr(self, name) + count)

    def retry(self, cause: str) -> None:
        """Count one repeated attempt; safe from any thread."""
        with self._lock:
            self.retries[cause] = self.retries.get(cause, 0) + 1


class Store(ABC):
    """Objects under a URL. Safe to use from many threads at once.

    A key is a relative path with "/", of at most 1,024 bytes (`check_key`). Every verb raises BadKey for another one,
    and StoreError where the store fails or refuses: Forbidden, BucketMissing, Unavailable (after its retries),
    Unsupported or RequestRejected. What a verb raises besides is listed with it. Times are aware of their zone.

    Attributes:
        url: Where the objects are, without credentials.
        counters: What was asked of the store; shared with its children.
    """

    url: str
    counters: Counters

    @property
    @abstractmethod
    def kind(self) -> StoreKind:
        """The kind of store. It has no default: each implementation states whether its stores are local."""

    @property
    def is_local(self) -> bool:
        """Tell whether it is files of this machine, where the stock tools trust what they find."""
        return self.kind.is_local

    @property
    def writable(self) -> bool:
        """False for a store that can only be read."""
        return self.kind.writable

    def free_bytes(self) -> int | None:
        """Return how many more bytes it can hold; None if the store does not report that."""
        return None

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Read an object.

        Args:
            key: Its key.

        Returns:
            All of its bytes.

        Raises:
            NotFound: There is no such object.
        """

    @abstractmethod
    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Read an object that is going to be replaced.

        Args:
            key: Its key.

        Returns:
            All of its bytes, and their version for `replace`.

        Raises:
            NotFound: There is no such object.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object.

        Args:
            key: Its key.
            start: Offset of the first byte.
            length: Most bytes to read.

        Returns:
            The bytes; fewer than ``length``, or none, at the object's end.

        Raises:
            NotFound: There is no such object.
        """

    @abstractmethod
    def stream(self, key: str, *, block: int = 1 << 20) -> Iterator[bytes]:
        """Read an object piece by piece; a dropped connection is taken up where it broke.

        Args:
            key: Its key.
            block: About how many bytes a piece has.

        Returns:
            The pieces, read as they are taken.

        Raises:
            NotFound: There is no such object.
            Conflict: It was replaced while it was read.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectMeta | None:
        """Look an object up without reading it.

        Args:
            key: Its key.

        Returns:
            Its size, time and version; None if there is no such object.
        """

    def exists(self, key: str) -> bool:
        """Tell whether there is an object.

        Args:
            key: Its key.

        Returns:
            False only if the store says that there is none.
        """
        return self.head(key) is not None

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Store an object, whatever was there. Readers see the old bytes or the new, never a mix.

        Args:
            key: Its key.
            data: All of its bytes.
        """

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store an object unless there is one.

        When a reply is lost, an object with exactly our bytes counts as ours: callers that need to know whether they
        won must write bytes that no other caller writes.

        Args:
            key: Its key.
            data: All of its bytes.

        Returns:
            Whether it was stored; False: there was one, which stays.
        """

    @abstractmethod
    def replace(self, key: str, data: bytes, *, expected: Version | None) -> Version:
        """Replace exactly the version that was read: compare and swap.

        When a reply leaves open what happened, the object is read back and its bytes are compared.

        Args:
            key: Its key.
            data: All of its new bytes.
            expected: From `get_versioned`; None: there is no object yet.

        Returns:
            The new version.

        Raises:
            Conflict: The object is not, or no longer, ``expected``: another writer came first.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List objects at any depth, in no promised order.

        Args:
            prefix: The folder, with or without a slash at its end; "": the whole store.

        Returns:
            What is there, asked for page by page.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> int:
        """Delete objects. A key without an object is no error.

        Args:
            keys: Their keys.

        Returns:
            How many different keys were asked for.

        Raises:
            StoreError: The first refusal; what other keys came to is not known.
        """

    def delete_each(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Delete as many objects as possible. A key without an object is no error.

        After an outage the rest is not tried.

        Args:
            keys: Their keys; very many may be given, since they are taken as the work goes on.

        Returns:
            The keys that were not deleted, with why.
        """
        refused: dict[str, StoreError] = {}
        for key in keys:
            try:
                self.delete([key])
            except StoreError as error:
                refused[key] = error
        return refused

    def flush(self) -> None:  # noqa: B027 - most stores acknowledge only what they keep
        """Everything that this machine has stored survives a power failure when this returns, if the store is set to.

        Callers that write objects call it before they ask others to name them.
        """

    def unfinished(self) -> Iterator[Unfinished]:
        """Writes that are under way, or whose writer was killed: they take room, and are in no listing."""
        return iter(())

    def remove_unfinished(self, older_than: datetime) -> Sequence[Unfinished]:  # noqa: ARG002 - most stores leave none
        """Remove writes that were begun and never finished.

        Args:
            older_than: Only those that were begun before this time.

        Returns:
            What was removed.
        """
        return []

    def versioning(self) -> bool:
        """Tell whether it keeps the old versions of objects, so that deleted objects still take up space."""
        return False

    @abstractmethod
    def child(self, prefix: str) -> Store:
        """The store of everything below a folder; it shares connections and counters.

        Args:
            prefix: The folder, with or without a slash at its end.

        Returns:
            The store, whose keys are relative to the folder.
        """

    def remove_folder(self) -> None:  # noqa: B027 - most stores have no folders
        """Remove the folder of a child that holds no object any more; stores without folders have nothing to remove."""

    @property
    def traits(self) -> Traits | None:
        """Return what this store is known to keep; None if that was never probed."""
        return None

    def with_traits(self, traits: Traits) -> Store:  # noqa: ARG002 - stores of fixed traits ignore it
        """The same store, respecting what was probed.

        Args:
            traits: From `include.storage.probe`.

        Returns:
            The store; itself where its traits are fixed.
        """
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def check_key(key: str) -> str:
    """The key itself. Raises BadKey if it is empty, absolute, too long, or could leave the store's prefix."""
    if _OBJECT.fullmatch(key):  # nearly all are; nothing of what follows can be wrong with one
        return key
    reason = None
    if not key:
        reason = "it is empty"
    elif _UNSPEAKABLE.search(key):
        reason = "it contains a NUL, another control character, or a backslash (which some servers take for a slash)"
    elif key.startswith("/"):
        reason = "it starts with a slash; keys are relative to the store"
    elif any(part in ("", ".", "..") for part in key.split("/")):
        reason = 'it has a component that is empty, "." or ".."'
    else:
        try:
            if len(key.encode()) > MAX_KEY_BYTES:
                reason = f"it is longer than {MAX_KEY_BYTES} bytes"
        except UnicodeEncodeError:
            reason = "it is not valid Unicode"
    if reason is not None:
        raise BadKey(f"key {key!r} is refused: {reason}", key=key)
    return key


def check_prefix(prefix: str) -> str:
    """A folder to list or descend into, without a slash at its end; "" is the store itself. Raises BadKey."""
    prefix = prefix.removesuffix("/")
    return check_key(prefix) if prefix else ""


def headers_for(key: str) -> dict[str, str]:
    """Content-Type and Cache-Control of an object, as CernVM-FS stores serve them (docs/formats.md, object names)."""
    name = key.rpartition("/")[2]
    if name.startswith(".cvmfs"):
        return {"Content-Type": "application/x-cvmfs", "Cache-Control": "max-age=61"}
    if name.endswith(".html"):
        return {"Content-Type": "text/html"}
    if is_content_addressed(key):
        return {"Content-Type": "application/octet-stream", "Cache-Control": f"max-age={3 * DAY_S}"}
    if name.endswith(".json"):
        return {"Content-Type": "application/json"}
    return {"Content-Type": "application/octet-stream"}


def is_content_addressed(key: str) -> bool:
    """Tell whether a key is that of an object named by its hash."""
    return _CONTENT_ADDRESSED.search(key) is not None


MAX_KEY_BYTES = 1024  # what S3 takes
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f\\]")
_OBJECT = re.compile(r"data/[0-9a-f]{2}/[0-9a-f]{38}[0-9A-Za-z-]{0,10}")
_CONTENT_ADDRESSED = re.compile(r"(?:^|/)data/[0-9a-f]{2}/")
