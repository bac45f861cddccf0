"""The files of the lab's users: planned, with injected failures, and put at their sites."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from include.settings.model import SiteSettings
from include.settings.sites import ChecksumMode, RemoteSite
from include.site.site import Site
from include.stageout.files import FileKind, FileToTransfer, StageoutRequest
from include.stageout.retry import TransferFailureClass
from include.stageout.urls import SiteOperation, site_urls
from include.storage.store import Store

USERS = ("ada", "ben", "cleo", "dan", "eva")
LINKS = (("Lab_North", "Lab_South"), ("Lab_South", "Lab_North"), ("Lab_East", "Lab_West"), ("Lab_West", "Lab_East"))
FAULTY = 20
"""Every so many files one has a fault: 5 %."""
LARGEST = 64 << 10


class LabFault(Enum):
    """What is wrong with a file; the value is the class of failure that it leads to."""

    NO_SOURCE = TransferFailureClass.SOURCE_MISSING
    WRONG_CHECKSUM = TransferFailureClass.SOURCE_CHECKSUM
    TAKEN = TransferFailureClass.DESTINATION_EXISTS


@dataclass(frozen=True, slots=True)
class LabFile:
    """A file of a user. Its bytes follow from its seed."""

    owner: str
    file: FileToTransfer
    seed: int
    fault: LabFault | None

    @property
    def content(self) -> bytes:
        return content_of(self.seed)


def content_of(seed: int) -> bytes:
    """The bytes of a file."""
    made = random.Random(seed)  # noqa: S311 - no secret
    return made.randbytes(made.randint(1, LARGEST))


def planned(settings: SiteSettings, workflow: str, files: int, *, seed: int) -> tuple[LabFile, ...]:
    """The files of a workflow: shared among users and links; half of them belong to a data set.

    Args:
        settings: The name spaces of users, and the temporary areas of sites.
        workflow: Its name; no two have files in common.
        files: How many in all.
        seed: Of their contents.
    """
    faults = list(LabFault)
    found = []
    for number in range(files):
        owner = USERS[number % len(USERS)]
        source, destination = LINKS[number // len(USERS) % len(LINKS)]
        block, position = divmod(number, FAULTY)
        # another place in each block, so that all users and links have some
        fault = faults[block % len(faults)] if position == block % FAULTY else None
        found.append(_planned(settings, workflow, owner, (source, destination), seed + number, fault))
    return tuple(found)


def requests_of(workflow: str, files: Sequence[LabFile]) -> Iterator[StageoutRequest]:
    """Yield one request for each user."""
    for owner in dict.fromkeys(file.owner for file in files):
        theirs = tuple(file.file for file in files if file.owner == owner)
        yield StageoutRequest(owner, f"{workflow}-{owner}", workflow, theirs)


class LabPlaces:
    """Files at the sites of the lab, which are folders and buckets of this machine."""

    def __init__(self, site: Site) -> None:
        self._sites: Mapping[str, RemoteSite] = site.settings.sites
        self._stores = {name: site.store(one.store) for name, one in self._sites.items() if one.store is not None}

    def put(self, file: LabFile) -> None:
        """Put a file where its job would have left it, and what its fault takes."""
        if file.fault is not LabFault.NO_SOURCE:
            self._write(file.file.source, file.file.source_name, file.content)
        if file.fault is LabFault.TAKEN:
            self._write(file.file.destination, file.file.destination_name, b"of another")

    def read(self, site: str, name: str) -> bytes | None:
        """The bytes of a file, None if it does not exist."""
        place = self._place(site, name)
        if isinstance(place, Path):
            return place.read_bytes() if place.is_file() else None
        store, key = place
        return b"".join(store.stream(key)) if store.exists(key) else None

    def _write(self, site: str, name: str, content: bytes) -> None:
        place = self._place(site, name)
        if isinstance(place, Path):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        else:
            store, key = place
            store.put(key, content)

    def _place(self, site: str, name: str) -> Path | tuple[Store, str]:
        (url,) = site_urls(self._sites[site], SiteOperation.WRITE, name).values()
        store = self._stores.get(site)
        if store is None:
            return Path(urlsplit(url).path)
        return store, urlsplit(url).path.removeprefix(f"/{urlsplit(store.url).hostname}").lstrip("/")


def _planned(
    settings: SiteSettings, workflow: str, owner: str, link: tuple[str, str], seed: int, fault: LabFault | None
) -> LabFile:
    source, destination = link
    if fault is LabFault.WRONG_CHECKSUM and settings.sites[source].checksum is ChecksumMode.READ_BACK:
        # of such a site FTS compares the copy only, and a difference of a copy is retried for hours
        fault = LabFault.NO_SOURCE
    content = content_of(seed)
    checksum = zlib.adler32(content) ^ (1 if fault is LabFault.WRONG_CHECKSUM else 0)
    stageout, area = settings.stageout, settings.sites[source].temporary or "/store/temp"
    name = f"{workflow}/{seed}.root"
    file = FileToTransfer(
        source=source,
        source_name=f"{stageout.temporary_of(owner, area)}/{name}",
        destination=destination,
        destination_name=f"{stageout.name_space_of(owner)}/{name}",
        kind=FileKind.OUTPUT,
        size=len(content),
        checksum=f"adler32:{checksum:08x}",
        dataset=f"/{workflow}/{owner}" if seed % 2 else None,
        user_job=f"{workflow}.{seed % 10}",
    )
    return LabFile(owner, file, seed, fault)
