"""One artifact of a build: a project for a platform as a .tar.zst, the same bytes for the same date.

Compiled code is kept in a cache between builds: a comment changes a module's hash, not its code.
"""

import hashlib
import importlib.util
import marshal
import os
import stat
import tarfile
import warnings
from dataclasses import dataclass
from datetime import UTC, date, datetime
from io import BytesIO
from pathlib import Path

import zstandard

from lab.software import CATALOG_MARKER, Platform, catalog_folders, last_change, project_files, stamped

COMPRESSION_LEVEL = 3
HASH_BASED_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: the file times of a repository say nothing
PLAIN_MARSHAL = 2  # without back references, whose use depends on what else the process holds


@dataclass(frozen=True, slots=True)
class Job:
    """What to pack, and where to put the archive."""

    project: str
    platform: str
    day: date
    seed: str
    cache: Path
    target: Path


@dataclass(frozen=True, slots=True)
class PackedArchive:
    """A finished archive; `size` in bytes, `files` without folders."""

    project: str
    platform: str
    path: Path
    size: int
    sha256: str
    files: int


def pack(job: Job) -> PackedArchive:
    """Packs one archive. The file is complete when it has its name."""
    members = _members(job)
    job.target.parent.mkdir(parents=True, exist_ok=True)
    draft = job.target.with_name(f"{job.target.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file, zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).stream_writer(file) as stream:
            _write(stream, members)
        with draft.open("rb") as archive:
            digest = hashlib.file_digest(archive, "sha256").hexdigest()
        draft.replace(job.target)
    finally:
        draft.unlink(missing_ok=True)
    size = job.target.stat().st_size
    return PackedArchive(job.project, job.platform, job.target, size, digest, len(members))


@dataclass(frozen=True, slots=True)
class _Member:
    path: str
    content: bytes
    mode: int
    mtime: int
    link: str | None = None


def _members(job: Job) -> list[_Member]:
    platform = Platform.of(job.platform)
    code = _CodeCache(job.cache / f"{job.project}-{platform.value}{platform.suffix}.marshal")
    members = []
    for file in project_files(job.project):
        if file.link is not None:
            members.append(_Member(file.path, b"", 0o777, int(file.origin.lstat().st_mtime), file.link))
            continue
        status = file.origin.stat()
        mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        content, mtime = file.origin.read_bytes(), int(status.st_mtime)
        if file.is_module and content:
            changed = last_change(job.project, file.path, job.day, job.seed)
            original, content = content, stamped(content, changed)
            mtime = int(datetime(changed.year, changed.month, changed.day, tzinfo=UTC).timestamp())
            compiled = code.compiled(original, file.path, platform.level)
            if compiled is not None:
                members.append(_Member(_compiled_path(file.path, platform), _header(content) + compiled, 0o644, mtime))
        members.append(_Member(file.path, content, mode, mtime))
    code.save()
    marked = catalog_folders([member.path for member in members])
    members += [_Member(f"{folder}/{CATALOG_MARKER}", b"", 0o644, 0) for folder in marked]
    return sorted(members, key=lambda member: member.path)


def _header(source: bytes) -> bytes:
    return importlib.util.MAGIC_NUMBER + HASH_BASED_UNCHECKED + importlib.util.source_hash(source)


def _compiled_path(path: str, platform: Platform) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}{platform.suffix}"


class _CodeCache:
    """Compiled code by the hash of its source; one file, of this interpreter's own making, per project and kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[bytes, bytes | None] = {}
        self._used: dict[bytes, bytes | None] = {}
        if path.exists():
            try:
                self._known = marshal.loads(path.read_bytes())  # noqa: S302 - our own file, in our own state folder
            except (EOFError, ValueError, TypeError):
                self._known = {}  # cut short by a crash: compile again

    def compiled(self, source: bytes, path: str, level: int) -> bytes | None:
        """The code of a module, or None for one that does not compile, as templates and old dialects."""
        key = hashlib.sha256(path.encode() + b"\0" + source).digest()
        if key not in self._known:
            self._known[key] = _compile(source, path, level)
        self._used[key] = self._known[key]
        return self._used[key]

    def save(self) -> None:
        if self._used.keys() == self._known.keys() and self.path.exists():
            old = self.path.stat().st_size
            data = marshal.dumps(self._used)
            if len(data) == old:
                return
        else:
            data = marshal.dumps(self._used)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.write_bytes(data)
        draft.replace(self.path)


def _compile(source: bytes, path: str, level: int) -> bytes | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = compile(source, path, "exec", dont_inherit=True, optimize=level)
        except (SyntaxError, ValueError):
            return None
    return marshal.dumps(code, PLAIN_MARSHAL)


def _write(stream: zstandard.ZstdCompressionWriter, members: list[_Member]) -> None:
    newest: dict[str, int] = {}
    for member in members:
        folder = member.path.rpartition("/")[0]
        while folder:
            newest[folder] = max(newest.get(folder, 0), member.mtime)
            folder = folder.rpartition("/")[0]
    written: set[str] = set()
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as tar:
        for member in members:
            for folder in _folders(member.path):
                if folder not in written:
                    written.add(folder)
                    tar.addfile(_info(folder, tarfile.DIRTYPE, 0o755, newest[folder]))
            if member.link is not None:
                info = _info(member.path, tarfile.SYMTYPE, member.mode, member.mtime)
                info.linkname = member.link
                tar.addfile(info)
            else:
                info = _info(member.path, tarfile.REGTYPE, member.mode, member.mtime)
                info.size = len(member.content)
                tar.addfile(info, BytesIO(member.content))


def _folders(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _info(path: str, kind: bytes, mode: int, mtime: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.mtime = kind, mode, mtime
    info.uname = info.gname = "root"
    return info
