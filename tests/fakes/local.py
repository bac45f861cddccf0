"""A repository in memory whose publications are committed in this process, as a gateway would, and trees on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import NewTag, read_head, store_all
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.schema import Statistics
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.revision.repository import Repository
from include.cvmfs.sources.artifact import DirectorySource
from tests.fakes.commits import commit_change
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, master_key, public_key, signer

CHUNKS = ChunkLimits(1 << 12, 1 << 13, 1 << 14)
NAMES = ["a", "b", "lib", ".cvmfscatalog", "é x"]
ODD_NAMES = [
    *NAMES, "-rf", "a\nb", "$(HOME)", "%41", "日本", "e\u0301", ".hidden", "..x", "'\";", "n" * 255, "\x7f",
    ".nightshift-part-0",
]  # fmt: skip
NODES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["file", "file", "file", "symlink", "fifo", "socket", "directory"]),
        "mode": st.sampled_from([0o644, 0o755, 0o600, 0o444]),
        "mtime_ns": st.integers(0, 2_000_000_000_000_000_000),
        "content": st.binary(max_size=20) | st.integers(200, 9_000).map(lambda size: b"%05d" % size * (size // 5)),
        "link": st.booleans(),
        "xattrs": st.dictionaries(st.sampled_from(["user.a", "user.é b"]), st.binary(max_size=255), max_size=2),
    }
)
TREES = st.dictionaries(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join), NODES, max_size=14)
ODD_TREES = st.dictionaries(
    st.lists(st.sampled_from(ODD_NAMES), min_size=1, max_size=5).map("/".join), NODES, max_size=20
)
DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)


@dataclass
class LocalRepository:
    """Empty at first; each publication is one revision, a minute after the one before."""

    algorithm: Algorithm = Algorithm.SHA1
    store: MemoryStore = field(default_factory=MemoryStore)
    seconds: int = int(NOW.timestamp())

    def __post_init__(self) -> None:
        create_repository(
            self.store, FQRN, master=master_key(), signer=signer(), now=NOW, algorithm=self.algorithm, mtime_ns=True
        )

    def opened(self) -> Repository:
        return Repository.open(self.store, fqrn=FQRN, public_keys=[public_key()], now=NOW)

    def change(self, apply: Callable[[Edit], object], *, lease: str = "", tag: str | None = None) -> None:
        """Commit an edit of the current revision under a lease."""
        self.seconds += 60
        old = read_head(self.store, FQRN).manifest.root
        edit = Edit(CatalogCache(self.store), old)
        apply(edit)
        new = edit.finish(self.seconds)
        store_all(self.store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
        commit_change(
            self.store, fqrn=FQRN, signer=signer(), lease_path=lease, old_root=old, new_root=new.hash,
            now=self.seconds, tag=NewTag(tag) if tag else None,
        )  # fmt: skip

    def publish(self, folder: Path, destination: str, *, tag: str | None = None, **options: Any) -> None:
        """Prepare a folder and hang it, parents made as needed."""
        settings = {"chunking": CHUNKS, "mtime_ns": True, "specials": Specials.KEEP, "xattrs": ("user.",)} | options
        changeset = prepare(
            DirectorySource(folder), store=self.store, fqrn=FQRN, destination=destination, now=NOW,
            options=PrepareOptions(algorithm=self.algorithm, layout=Layout.MTIME_NS, **settings),
        )  # fmt: skip

        def hang(edit: Edit) -> None:
            parts = destination.split("/")[1:-1]
            for depth in range(1, len(parts) + 1):
                if edit.lookup(above := "/" + "/".join(parts[:depth])) is None:
                    edit.add(above, DIRECTORY)
            edit.hang(changeset.reference, changeset.root_entry, changeset.statistics.total)

        self.change(hang, tag=tag)

    def statistics(self) -> Statistics:
        return self.opened().revision.catalog_at("").statistics

    def problems(self) -> list[str]:
        """What a full check finds, every object read."""
        return [str(problem) for problem in check(self.opened(), contents=True).problems]


def read_folder(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a folder, by relative path: type, mode, time, content and the names of the same file."""
    found: dict[str, tuple[Any, ...]] = {}
    names: dict[int, list[str]] = {}
    for above, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(above) / name
            names.setdefault(path.lstat().st_ino, []).append(path.relative_to(folder).as_posix())
    for paths in names.values():
        for relative in paths:
            path = folder / relative
            status = path.lstat()
            content: object = None
            if stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = str(path.readlink())
            mode = 0 if path.is_symlink() else stat.S_IMODE(status.st_mode)
            found[relative] = (
                stat.S_IFMT(status.st_mode), mode, status.st_mtime_ns, content, tuple(sorted(paths)),
                tuple(sorted((name, os.getxattr(path, name)) for name in _attributes(path))),
            )  # fmt: skip
    return found


def _attributes(path: Path) -> list[str]:
    return [] if path.is_symlink() else [name for name in os.listxattr(path) if name.startswith("user.")]


def make_folder(folder: Path, nodes: Mapping[str, Mapping[str, Any]]) -> Path:
    """A tree on disk out of arbitrary nodes (``kind``, ``content``, ``mode``, ``mtime_ns``, ``link``) by path."""
    folder.mkdir(parents=True)
    directories: list[tuple[Path, Mapping[str, Any]]] = []
    first: dict[Path, Path] = {}
    for path, node in sorted(nodes.items()):
        place = folder / path
        if any(".cvmfs" in part for part in path.split("/")[:-1]):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        kind = "directory" if any(other.startswith(f"{path}/") for other in nodes) else node["kind"]
        if place.name.startswith(".cvmfs"):
            place.write_bytes(b"")
            continue
        if kind == "directory":
            place.mkdir(exist_ok=True)
            directories.append((place, node))
            continue
        if kind == "symlink":
            place.symlink_to(node["content"].hex()[:60] or "nowhere")
        elif kind in ("fifo", "socket"):
            os.mknod(place, 0o600 | (stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK))
        elif node["link"] and place.parent in first:
            place.hardlink_to(first[place.parent])
            continue
        else:
            place.write_bytes(node["content"])
            _attach(place, node)
            first.setdefault(place.parent, place)
        if kind != "symlink":
            place.chmod(node["mode"])
        os.utime(place, ns=(node["mtime_ns"], node["mtime_ns"]), follow_symlinks=False)
    for place, node in reversed(directories):
        _attach(place, node)
        place.chmod(node["mode"] | 0o700)
        os.utime(place, ns=(node["mtime_ns"], node["mtime_ns"]))
    return folder


def _attach(place: Path, node: Mapping[str, Any]) -> None:
    for name, value in node.get("xattrs", {}).items():
        os.setxattr(place, name, value)
