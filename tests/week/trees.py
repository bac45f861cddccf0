"""What the artifacts of the simulated week hold: small trees, alike where real builds are alike. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.objects import compress

STAMP = "share/BUILD"
"""The file that says which tree it is in; no other tree has the same."""
COMMON, CHANGING, OF_PLATFORM = 14, 3, 6


@dataclass(frozen=True, slots=True, order=True)
class Tree:
    """What one artifact holds. `version` counts rebuilds from 1 on."""

    slot: str
    build_id: str
    project: str
    platform: str
    version: int = 1

    @property
    def name(self) -> str:
        return f"{self.project}/{self.platform}"

    @property
    def path(self) -> str:
        """Where the slots' rule puts it."""
        return f"/nightlies/{self.slot}/{self.build_id}/{self.project}/{self.platform}"

    @property
    def stamp(self) -> bytes:
        """The content of its `STAMP`."""
        return f"{self.slot} {self.build_id} {self.project} {self.platform} version {self.version}\n".encode()

    def files(self) -> dict[str, bytes]:
        """Every file by its path in the tree: most as in every build, some of the platform, some of this build."""
        found = {f"lib/{self.project}/part{n:02}.so": _bytes(f"{self.project} {n}", 3000) for n in range(COMMON)}
        found |= {f"bin/tool{n}": _bytes(f"{self.project} {self.platform} {n}", 2000) for n in range(OF_PLATFORM)}
        mine = f"{self.slot} {self.build_id} {self.version}"
        found |= {f"python/new{n}.py": _bytes(f"{self.project} {mine} {n}", 1000) for n in range(CHANGING)}
        return {**found, STAMP: self.stamp}


@cache
def stored_hash(content: bytes) -> str:
    """The name of the object that a repository keeps of a file's content."""
    return str(hash_bytes(compress(content)))


def directories(files: Iterator[str] | dict[str, bytes]) -> set[str]:
    """The directories above these files."""
    return {name[:place] for name in files for place, letter in enumerate(name) if letter == "/"}


@cache
def _bytes(seed: str, length: int) -> bytes:
    """Text that compresses to about half, the same for the same seed."""
    lines, number = bytearray(), 0
    while len(lines) < length:
        lines += hashlib.sha256(f"{seed} {number}".encode()).hexdigest().encode() + b"\n"
        number += 1
    return bytes(lines[:length])
