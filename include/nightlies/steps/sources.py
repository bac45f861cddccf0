"""Place of an artifact: the configured store that holds a URL, and the tree or archive that is read from it.

Also the index of a slot's build: read as nights read it, and written of a folder of archives.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import unquote, urlsplit

from include.cvmfs.sources.artifact import DirectorySource, open_artifact
from include.cvmfs.sources.source import SourceLimits, TreeSource
from include.nightlies.errors import (
    INDEX_NOT_WRITTEN,
    SOURCE_AMBIGUOUS,
    ArtifactDirectory,
    ArtifactMissing,
    ArtifactSize,
    BadIndex,
    BuildMissing,
    SourceNotAllowed,
    listed,
)
from include.nightlies.rules.index import (
    MAX_INDEX_BYTES,
    MAX_SIGNATURE_BYTES,
    Artifact,
    BuildIndex,
    public_key,
    require_signature,
)
from include.nightlies.steps.values import Item
from include.settings.model import Slot
from include.settings.prepare import ArtifactLimits
from include.settings.text_types import fill
from include.site.site import Site
from include.storage.errors import NotFound
from include.storage.file import FileStore
from include.storage.kinds import FILE, kind_of
from include.storage.objects import put_object
from include.storage.store import Store


def absolute(site: Site, store: str, url: str) -> str:
    """An artifact's URL as a full one: relative ones start at the store of their index."""
    return url if urlsplit(url).scheme else f"{site.settings.store(store).url}/{url}"


def locate(site: Site, url: str, only: str | None = None) -> tuple[Store, str]:
    """The store of the configuration that holds `url`, and the key in it.

    With several, the one that names it most closely counts; with ``only``, no store but that one. This also keeps a
    worker's other files out of reach. Raises SourceNotAllowed if there is none, SOURCE_AMBIGUOUS if stores at different
    endpoints have one URL.
    """
    stores = site.settings.stores if only is None else {only: site.settings.store(only)}
    found = [
        (len(settings.url), name) for name, settings in stores.items() if url.startswith(settings.url.rstrip("/") + "/")
    ]
    if not found:
        raise SourceNotAllowed(url, sorted(settings.url for settings in stores.values()), only)
    longest, name = max(found)
    places = {stores[name].endpoint: name for length, name in found if length == longest}
    if len(places) > 1:
        names = " and ".join(sorted(places.values()))
        what = f"source {url} may lie in the stores {names}, whose URLs are the same at different endpoints"
        raise SOURCE_AMBIGUOUS(f"{what}. Copy it to a store whose URL no other one has, or rename one of the buckets.")
    key = url[len(site.settings.store(name).url.rstrip("/")) + 1 :].rstrip("/")
    return site.store(name), unquote(key) if kind_of(url) is FILE else key


def opened(site: Site, item: Item, limits: ArtifactLimits) -> TreeSource:
    """The tree of an item, to be read once; looks first whether it is there in the announced size.

    A directory has neither size nor sum: it is read only where none was announced. Raises SourceNotAllowed,
    ArtifactDirectory, ArtifactMissing or ArtifactSize.
    """
    return opened_at(*locate(site, item.source, item.store), item, limits)


def opened_at(store: Store, key: str, item: Item, limits: ArtifactLimits) -> TreeSource:
    """The same of a place that is known already."""
    where = f"{store.url}/{key}"
    folder = _folder(store, key)
    if folder is not None:
        if item.size is not None or item.sha256 is not None:
            raise ArtifactDirectory(item.name, where)
        return DirectorySource(folder, item.name)
    meta = store.head(key)
    if meta is None:
        # an index always has the size; a publication by hand has none
        raise ArtifactMissing(item.name, where, listed=item.size is not None)
    if item.size is not None and meta.size != item.size:
        raise ArtifactSize(item.name, where, meta.size, item.size)
    return open_artifact(store.stream(key), item.name, sha256=item.sha256, size=meta.size, limits=source_limits(limits))


def source_limits(limits: ArtifactLimits) -> SourceLimits:
    """Return what an artifact may hold, in the words of those who read it."""
    return SourceLimits(members=limits.members, bytes=int(limits.bytes), file_bytes=int(limits.file_size))


def _folder(store: Store, key: str) -> Path | None:
    """The directory on this worker that the key names; None for stores elsewhere and for files."""
    if not isinstance(store, FileStore):
        return None
    root = store.root.resolve()
    path = (root / key).resolve()
    if not path.is_relative_to(root):  # a link in the store that leads out of it
        raise SourceNotAllowed(f"{store.url}/{key}", [store.url])
    return path if path.is_dir() else None


LOOKS = 3
PAUSE_S = 1.0
"""A run that waits for nothing looks this often at an index that may be half written, with these pauses."""


def index_place(slot: Slot, build_date: date) -> str:
    """The key of a build's index in the slot's store."""
    return fill(slot.index, {"slot": slot.name, "date": build_date.isoformat()})


def read_index(site: Site, slot: Slot, wanted: date) -> tuple[BuildIndex, str]:
    """The build of a slot's date and the URL of its index.

    Raises BuildMissing, BadIndex (where the slot asks for a signature, also for a missing or wrong one), or
    StoreError.
    """
    store, key = site.store(slot.store), index_place(slot, wanted)
    url = f"{store.url}/{key}"
    try:
        data = _bounded(store, key, MAX_INDEX_BYTES)
    except NotFound:
        raise BuildMissing(slot.name, wanted, url) from None
    if slot.index_signature is not None:
        signer = slot.index_signature
        try:
            signature = _bounded(store, key + signer.suffix, MAX_SIGNATURE_BYTES)
        except NotFound:
            what = f"has no signature at {url}{signer.suffix}"
            raise BadIndex(url, what, "Let the builder sign it, and write both.") from None
        require_signature(data, signature, public_key(signer.public_key), file=url)
    within = site.settings.store(slot.store).url
    return BuildIndex.parse(data, slot=slot.name, build_date=wanted, file=url, store=within), url


def read_again(
    site: Site, slot: Slot, wanted: date, *, pause: Callable[[float], object] = time.sleep
) -> tuple[BuildIndex, str]:
    """Read as `read_index` does; an index that cannot be used is read again: it may be written in this very moment."""
    for _ in range(LOOKS - 1):
        try:
            return read_index(site, slot, wanted)
        except BadIndex:
            pause(PAUSE_S)
    return read_index(site, slot, wanted)


def index_version(site: Site, slot: Slot, wanted: date) -> object:
    """Return what changes whenever the index or its signature is written again; None while there is no index."""
    store, key = site.store(slot.store), index_place(slot, wanted)
    keys = [key] if slot.index_signature is None else [key, key + slot.index_signature.suffix]
    found = [store.head(candidate) for candidate in keys]
    return (
        None
        if found[0] is None
        else tuple((meta.version, meta.size, meta.modified) if meta else None for meta in found)
    )


def _bounded(store: Store, key: str, limit: int) -> bytes:
    """The object, or just more than `limit` bytes of it, which the parser refuses by their number."""
    data = bytearray()
    for block in store.stream(key):
        data += block
        if len(data) > limit:
            break
    return bytes(data)


SUFFIXES = (".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.zst", ".tzst", ".tar", ".zip")
"""Ends of the names of archives that nights unpack."""
_ARCHITECTURES = "x86_64|aarch64|arm64|i686|ppc64le|riscv64|s390x|noarch"
_NAMED = re.compile(rf"(?P<project>.+?)[-.](?P<platform>(?:{_ARCHITECTURES})(?:[-+._].*)?)")


@dataclass(frozen=True, slots=True)
class NamedArchive:
    """An archive of a folder, with what its name says that it is."""

    path: Path
    project: str
    platform: str


def named_archives(folder: Path, platforms: Iterable[str] = (), otherwise: str = "") -> list[NamedArchive]:
    """The archives in a folder: `PROJECT/PLATFORM.tar.gz`, or `PROJECT-PLATFORM.tar.gz`, with any of `SUFFIXES`.

    Other files and links are passed over.

    Args:
        folder: Where they are.
        platforms: Names of platforms; a name may also end with one that begins with a usual architecture.
        otherwise: The platform of an archive whose name has none.

    Raises INDEX_NOT_WRITTEN: there is no archive, or the name of one has no platform.
    """
    archives, nameless = [], []
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        stem = _stem(path.name)
        if stem is None or path.is_symlink() or not path.is_file():
            continue
        project, platform = (path.parent.name, stem) if path.parent != folder else _split(stem, platforms, otherwise)
        if platform:
            archives.append(NamedArchive(path, project, platform))
        else:
            nameless.append(path.name)
    if nameless:
        cure = "Give it by --platform, or name each PROJECT-PLATFORM.tar.gz or PROJECT/PLATFORM.tar.gz"
        raise INDEX_NOT_WRITTEN(f"{folder}: the names of archives have no platform. {cure}:{listed(nameless)}")
    if not archives:
        what = f"there is no archive in it ({', '.join(SUFFIXES)})" if folder.is_dir() else "there is no such folder"
        raise INDEX_NOT_WRITTEN(f"{folder}: {what}. Give the folder of the archives.")
    return archives


def _stem(name: str) -> str | None:
    return next((name[: -len(suffix)] for suffix in SUFFIXES if name.endswith(suffix) and name != suffix), None)


def _split(stem: str, platforms: Iterable[str], otherwise: str) -> tuple[str, str]:
    for platform in sorted(platforms, key=len, reverse=True):
        if stem.endswith((f"-{platform}", f".{platform}")):
            return stem[: -len(platform) - 1], platform
    if match := _NAMED.fullmatch(stem):
        return match["project"], match["platform"]
    return stem, otherwise


@dataclass(frozen=True, slots=True)
class WrittenIndex:
    """An index as it is in its store, or in a dry run would be; `uploaded`: keys of archives that were sent."""

    index: BuildIndex
    url: str
    unchanged: bool
    uploaded: tuple[str, ...]


def write_index(
    site: Site, slot: Slot, day: date, archives: Sequence[NamedArchive], *,
    build_id: str = "", upload: bool = False, replace: bool = False, dry_run: bool = False,
) -> WrittenIndex:  # fmt: skip
    """Write the index of a complete build of these archives as a build system does: the index last.

    Args:
        site: With the store of the slot.
        slot: The series that the build is of.
        day: Its build date.
        archives: From `named_archives`.
        build_id: The id of the build; by default its date.
        upload: Store the archives beside the index; otherwise they are in the slot's store, which is a folder.
        replace: Take the place of another index, and of other archives.
        dry_run: Change nothing.

    Raises INDEX_NOT_WRITTEN: the archives are not in the slot's store, or nights would refuse the index or one of
    them; Conflict: another index or archive exists; StoreError. Nothing was changed then.
    """
    store, key = site.store(slot.store), index_place(slot, day)
    folder = key.rpartition("/")[0]
    keys = {
        archive.path: "/".join(filter(None, (folder, archive.project, f"{archive.platform}{_end(archive.path)}")))
        if upload
        else _key_in(store, slot, archive.path)
        for archive in archives
    }
    artifacts = tuple(
        Artifact(archive.project, archive.platform, keys[archive.path], *_size_and_sum(archive.path))
        for archive in archives
    )
    data = BuildIndex(slot.name, build_id or day.isoformat(), day, complete=True, artifacts=artifacts).format()
    url = f"{store.url}/{key}"
    index = BuildIndex.parse(data, slot=slot.name, build_date=day, file=url, store=site.settings.store(slot.store).url)
    if index.rejected:
        lines = [f"{rejected.name}: {rejected.reason}" for rejected in index.rejected]
        raise INDEX_NOT_WRITTEN(f"nights would refuse these archives; nothing was written:{listed(lines)}")
    if not store.writable:
        cure = "Write it where the builds are, and give the slot a store of that folder or bucket."
        raise INDEX_NOT_WRITTEN(f"store {slot.store}, {store.url}, can only be read. {cure}")
    stored = put_object(store, key, data, replaces=replace, dry_run=True)
    uploads = _uploads(store, keys if upload else {}, replace=replace)
    if not dry_run:
        for path in uploads:
            put_object(store, keys[path], path.read_bytes(), replaces=replace)
        if not stored.unchanged:
            put_object(store, key, data, replaces=replace)
        store.flush()
    return WrittenIndex(index, url, stored.unchanged, tuple(keys[path] for path in uploads))


def _uploads(store: Store, keys: dict[Path, str], *, replace: bool) -> list[Path]:
    """The archives that the store does not have; raises Conflict for another one in the place of one."""
    return [
        path
        for path, key in keys.items()
        if not put_object(store, key, path.read_bytes(), replaces=replace, dry_run=True).unchanged
    ]


def _end(path: Path) -> str:
    return path.name[len(_stem(path.name) or "") :]


def _key_in(store: Store, slot: Slot, path: Path) -> str:
    root = store.root.resolve() if isinstance(store, FileStore) else None
    if root is None or not path.resolve().is_relative_to(root):
        cure = "Give --upload, which copies the archives there first, or move the folder there."
        raise INDEX_NOT_WRITTEN(f"{path} is not in the store of slot {slot.name}, {store.url}. {cure}")
    return path.resolve().relative_to(root).as_posix()


def _size_and_sum(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
