"""The trees that are published: small files of random bytes in folders, each with a catalog marker, as tarballs."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHANGED_EVERY = 20  # 5 % of the files change until the second night
_MTIME = 1_790_000_000
_MARKER = ".cvmfscatalog"


@dataclass(frozen=True, slots=True)
class Shape:
    """How many files in how many folders, and the bytes of each."""

    files: int
    folders: int
    file_bytes: int = 4096

    @property
    def changed(self) -> int:
        """Files that have other content on the second night."""
        return len(range(0, self.files, CHANGED_EVERY))

    def members(self) -> Iterator[tuple[str, int | None]]:
        """Paths in order, with the number of the file; None for a marker."""
        for folder in range(self.folders):
            name = f"folder{folder:04d}"
            yield f"{name}/{_MARKER}", None
            for number in range(folder, self.files, self.folders):
                yield f"{name}/file{number:07d}.dat", number

    def content(self, seed: int, number: int, *, second_night: bool = False) -> bytes:
        """A file's bytes: incompressible, and like no other file's. ``seed``: one for each publication."""
        changed = second_night and number % CHANGED_EVERY == 0
        return random.Random(seed << 40 | changed << 32 | number).randbytes(self.file_bytes)


def write_tarball(path: Path, shape: Shape, seed: int, *, second_night: bool = False) -> None:
    """Write the tree as a plain tar archive."""
    padding = bytes(-shape.file_bytes % tarfile.BLOCKSIZE)
    with path.open("wb", buffering=1 << 20) as archive:
        for name, number in shape.members():
            header = tarfile.TarInfo(name)
            header.mtime = _MTIME
            header.size = 0 if number is None else shape.file_bytes
            archive.write(header.tobuf(tarfile.GNU_FORMAT))
            if number is not None:
                archive.write(shape.content(seed, number, second_night=second_night) + padding)
        archive.write(bytes(2 * tarfile.BLOCKSIZE))


def write_files(folder: Path, shape: Shape, seed: int) -> list[Path]:
    """Write the tree's files out for loops that read files; returns them in order."""
    files = []
    for name, number in shape.members():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if number is None else shape.content(seed, number))
        files.append(path)
    return files
