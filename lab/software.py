"""Generated software of a night, and the archives that it is packed into."""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import stat
import sys
import sysconfig
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from io import BytesIO
from pathlib import Path

import zstandard

from lab.errors import LabError

INTERPRETER = "python"
# The largest packages of the environment and some small ones; with the interpreter more than 10,000 files a platform.
PROJECTS = (
    INTERPRETER, "airflow", "botocore", "mypy", "pygments", "libcst", "opentelemetry", "sqlalchemy", "celery",
    "pydantic", "dns", "rich",
)  # fmt: skip
REQUIRES = {"airflow": ("sqlalchemy", "opentelemetry"), "celery": ("botocore",), "rich": ("pygments",)}

CHANGE_PERIOD_DAYS = 14
CATALOG_MARKER = ".cvmfscatalog"
CATALOG_FILES = 400  # a folder with as many files below it becomes a catalog of its own
NEARLY_ALL = 0.97

# Not software, or not the interpreter's own: what it makes when it runs, its tests, and packages.
_LEFT_OUT = {"__pycache__"}
_LEFT_OUT_OF_INTERPRETER = _LEFT_OUT | {"site-packages", "dist-packages", "test", "tests", "ensurepip"}


class Platform(Enum):
    """How modules are compiled: with assertions and docstrings, or without."""

    DEBUG = "dbg"
    OPTIMISED = "opt"

    @classmethod
    def of(cls, name: str) -> Platform:
        """The kind of a platform by the end of its name, as x86_64-py311-opt; anything else is compiled as it is."""
        return cls.OPTIMISED if name.rpartition("-")[2] == cls.OPTIMISED.value else cls.DEBUG

    @property
    def level(self) -> int:
        return 2 if self is Platform.OPTIMISED else 0

    @property
    def suffix(self) -> str:
        """The end of a compiled module's name."""
        optimised = f".opt-{self.level}" if self.level else ""
        return f".{sys.implementation.cache_tag}{optimised}.pyc"


def default_platforms() -> tuple[str, ...]:
    """This machine and interpreter, in both kinds."""
    machine = f"{os.uname().machine}-py{sys.version_info.major}{sys.version_info.minor}"
    return tuple(f"{machine}-{kind.value}" for kind in (Platform.OPTIMISED, Platform.DEBUG))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, or a symbolic link, of the machine and its place in the project."""

    path: str
    origin: Path
    link: str | None = None  # the target of a symbolic link

    @property
    def is_module(self) -> bool:
        return self.link is None and self.path.endswith(".py")


def project_files(project: str) -> list[SourceFile]:
    """The files of a project, sorted by path. Raises LabError: the machine has no such package."""
    if project == INTERPRETER:
        library = _tree(Path(sysconfig.get_path("stdlib")), _library(), _LEFT_OUT_OF_INTERPRETER)
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        links = (SourceFile(f"bin/{alias}", Path(sys.executable), link=name) for alias in ("python3", "python"))
        files = [*library, SourceFile(f"bin/{name}", Path(sys.executable).resolve()), *links]
    else:
        root = Path(sysconfig.get_path("purelib")) / project
        if not root.is_dir():
            cure = "name packages of the environment in the slot's projects, or run make venv"
            raise LabError(f"project {project}: nothing to pack at {root}; {cure}")
        files = [*_tree(root, f"{_library()}/site-packages/{project}", _LEFT_OUT)]
    return sorted(files, key=lambda file: file.path)


def last_change(project: str, path: str, day: date) -> date:
    """The day, not after `day`, on which a module last changed."""
    digest = hashlib.sha256(f"/{project}/{path}".encode()).digest()
    phase = int.from_bytes(digest[:8], "big") % CHANGE_PERIOD_DAYS
    return date.fromordinal(day.toordinal() - (day.toordinal() - phase) % CHANGE_PERIOD_DAYS)


def stamped(source: bytes, changed: date) -> bytes:
    """A module as it was after its last change; an empty one stays empty."""
    if not source:
        return source
    newline = b"" if source.endswith((b"\n", b"\r")) else b"\n"
    return source + newline + f"# last changed in the build of {changed.isoformat()}\n".encode()


def catalog_folders(paths: Sequence[str]) -> list[str]:
    """The folders that get a catalog of their own: large ones that are not nearly all of the folder above."""
    below = Counter(folder for path in paths for folder in _folders(path))
    return sorted(
        folder
        for folder, count in below.items()
        if count >= CATALOG_FILES and count < NEARLY_ALL * below.get(folder.rpartition("/")[0], len(paths))
    )


def _tree(root: Path, prefix: str, left_out: Set[str]) -> Iterator[SourceFile]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in left_out and not name.startswith("config-"))
        inside = Path(folder).relative_to(root).as_posix()
        for name in names:
            origin = Path(folder) / name
            place = f"{prefix}/{name}" if inside == "." else f"{prefix}/{inside}/{name}"
            if origin.is_symlink():
                target = str(origin.readlink())
                if target.startswith("/") or not origin.exists():
                    continue  # leads out of the software
                yield SourceFile(place, origin, link=target)
            elif origin.is_file() and not name.endswith(".pyc"):
                yield SourceFile(place, origin)


def _library() -> str:
    return f"lib/python{sys.version_info.major}.{sys.version_info.minor}"


COMPRESSION_LEVEL = 3
HASH_BASED_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: the file times of a repository say nothing
PLAIN_MARSHAL = 2  # without back references, whose use depends on what else the process holds


@dataclass(frozen=True, slots=True)
class Job:
    """Software to pack, and the path of the archive."""

    project: str
    platform: str
    day: date
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
            changed = last_change(job.project, file.path, job.day)
            original, content = content, stamped(content, changed)
            mtime = int(datetime(changed.year, changed.month, changed.day, tzinfo=UTC).timestamp())
            compiled = code.compiled(original, file.path, platform.level)
            if compiled is not None:
                folder, _, name = file.path.rpartition("/")
                place = f"{folder}/__pycache__/{name.removesuffix('.py')}{platform.suffix}"
                members.append(_Member(place, _header(content) + compiled, 0o644, mtime))
        members.append(_Member(file.path, content, mode, mtime))
    code.save()
    marked = catalog_folders([member.path for member in members])
    members += [_Member(f"{folder}/{CATALOG_MARKER}", b"", 0o644, 0) for folder in marked]
    return sorted(members, key=lambda member: member.path)


def _header(source: bytes) -> bytes:
    return importlib.util.MAGIC_NUMBER + HASH_BASED_UNCHECKED + importlib.util.source_hash(source)


class _CodeCache:
    """Compiled code by the hash of its source; one file, of this interpreter's own making, per project and kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[bytes, bytes | None] = {}
        self._used: dict[bytes, bytes | None] = {}
        self._stored: dict[bytes, bytes | None] | None = None  # as the file has it
        if path.exists():
            try:
                self._stored = dict(marshal.loads(path.read_bytes()))  # noqa: S302 - our own file, in our own folder
            except (EOFError, ValueError, TypeError):
                pass  # cut short by a crash: compile again
            else:
                self._known = dict(self._stored)

    def compiled(self, source: bytes, path: str, level: int) -> bytes | None:
        """The code of a module, or None for one that does not compile, as templates and old dialects."""
        key = hashlib.sha256(path.encode() + b"\0" + source).digest()
        if key not in self._known:
            self._known[key] = _compile(source, path, level)
        self._used[key] = self._known[key]
        return self._used[key]

    def save(self) -> None:
        if self._used == self._stored:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.write_bytes(marshal.dumps(self._used))
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
        for folder in _folders(member.path):
            newest[folder] = max(newest.get(folder, 0), member.mtime)
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
