"""Software of this machine as the files of a build: packages of the environment, and the interpreter with its library.

A file of a build is the machine's file, but for modules: each carries, as a comment, the day on which it last changed.
One module in fourteen changes on each day, chosen by a hash of its path: with their compiled twins about 5 % of all
files. So consecutive builds differ like real ones, and a date always gives the same bytes.
"""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path

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
    def of(cls, name: str) -> "Platform":
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
    """The files of a project, sorted by path.

    Raises:
        LabError: the machine has no such package.
    """
    if project == INTERPRETER:
        files = [*_interpreter_files()]
    else:
        root = Path(sysconfig.get_path("purelib")) / project
        if not root.is_dir():
            cure = "name packages of the environment in the slot's projects, or run make venv"
            raise LabError(f"project {project}: nothing to pack at {root}; {cure}")
        files = [*_tree(root, f"{_library()}/site-packages/{project}", _LEFT_OUT)]
    return sorted(files, key=lambda file: file.path)


def last_change(project: str, path: str, day: date, seed: str) -> date:
    """The day, not after `day`, on which a module last changed."""
    digest = hashlib.sha256(f"{seed}/{project}/{path}".encode()).digest()
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
    below: dict[str, int] = {}
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder:
            below[folder] = below.get(folder, 0) + 1
            folder = folder.rpartition("/")[0]
    return sorted(
        folder
        for folder, count in below.items()
        if count >= CATALOG_FILES and count < NEARLY_ALL * below.get(folder.rpartition("/")[0], len(paths))
    )


def _interpreter_files() -> Iterator[SourceFile]:
    yield from _tree(Path(sysconfig.get_path("stdlib")), _library(), _LEFT_OUT_OF_INTERPRETER)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    yield SourceFile(f"bin/{name}", Path(sys.executable).resolve())
    for alias in ("python3", "python"):
        yield SourceFile(f"bin/{alias}", Path(sys.executable), link=name)


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
