"""Names in a shared cache: objects, temporary files, files of the root, and foreign ones. Pure.

The client and `cvmfs_preload` decide the names (docs/formats.md, shared caches).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.manifest import Manifest

OBJECT_NAME = re.compile(r"([0-9a-f]{38})(-rmd160|-shake128)?")
"""The name of an object's file: the rest of its digest, and the id of its algorithm."""
SHARDS = tuple(f"{number:02x}" for number in range(256))
"""The folders of objects."""
TXN, QUARANTINE, OWN = "txn", "quarantaine", ".nightshift"
"""Folders beside them: temporary files of clients, damaged objects (so spelt by the client), and our own."""
_SUFFIX = 6  # random characters that end a temporary name
_ROOT_FILE = re.compile(
    r"\.cvmfscache|no_nfs_maps\..+|cvmfschecksum\..+|dirtab\..+|uuid|cvmfs_io\..+|lock\..+|running\..+"
    r"|cachemgr.*|cvmfs\.log"
)
BREADCRUMB = "cvmfschecksum."
DIRTAB = "dirtab."


class NameKind(Enum):
    """The kinds of what is in a cache."""

    OBJECT = "object"
    TEMPORARY = "temporary"
    FOREIGN = "foreign"


def kind_in_shard(name: str) -> NameKind:
    """The kind of a file in a folder of objects, by its name."""
    if OBJECT_NAME.fullmatch(name):
        return NameKind.OBJECT
    return NameKind.TEMPORARY if OBJECT_NAME.fullmatch(name[:-_SUFFIX]) else NameKind.FOREIGN


def is_ours_in_root(name: str) -> bool:
    """Tell whether a client, `cvmfs_preload` or Nightshift puts something of this name into the root of a cache."""
    return name in SHARDS or name in (TXN, QUARANTINE, OWN) or _ROOT_FILE.fullmatch(name) is not None


def place_of(name: ObjectHash) -> str:
    """The path of an object below the root. Kinds have no letter here: a catalog and a file differ by nothing."""
    text = str(name)
    return f"{text[:2]}/{text[2:]}"


@dataclass(frozen=True, slots=True)
class Breadcrumb:
    """The revision with which a client without network mounts: root catalog, and Unix s of its publication."""

    root: ObjectHash
    timestamp: int

    @classmethod
    def of(cls, manifest: Manifest) -> Breadcrumb:
        """The one of a revision."""
        return cls(manifest.root, manifest.timestamp)

    @classmethod
    def parse(cls, text: str) -> Breadcrumb:
        """Read `<hash>T<time>`; newer clients append `R<revision>`. Raises FormatError."""
        match = re.fullmatch(r"([0-9a-f]{40}(?:-rmd160|-shake128)?)T([0-9]{1,19})(?:R[0-9]+)?\s*", text)
        if match is None:
            raise FormatError("breadcrumb", repr(text[:80]))
        return cls(ObjectHash.parse(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.root}T{self.timestamp}"
