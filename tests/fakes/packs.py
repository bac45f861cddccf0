"""Object packs as a stock publisher sends them; Nightshift's own publishers send none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from include.cvmfs.format.hashes import ObjectHash
from include.gateway.service.commits.intake import PackHeader, PackObject


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack to send: header and objects one behind the other."""

    header: PackHeader
    objects: tuple[bytes, ...]

    @classmethod
    def of(cls, objects: Sequence[tuple[ObjectHash, bytes]]) -> Pack:
        """Objects as stored, by their hashes."""
        index = tuple(PackObject(name, len(data)) for name, data in objects)
        return cls(PackHeader(index), tuple(data for _, data in objects))

    @property
    def digest(self) -> str:
        """``payload_digest``: SHA-1 of the header, in hex."""
        return hashlib.sha1(self.header.format(), usedforsecurity=False).hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """Yield what is sent after the message."""
        yield self.header.format()
        yield from self.objects
