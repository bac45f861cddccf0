"""Storage sites in memory: files, who wrote them, and what must never happen to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from include.fts.states import FailureReason
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED
from include.stageout.places.facts import FileFacts

DOMAIN = "example.org"
DOOR = "/data"
FOREIGN = "foreign"
"""Who wrote a file that is no transfer's."""


@dataclass(frozen=True, slots=True)
class Content:
    """A file as it is: `by` is the FTS job that wrote it, the user's job, or FOREIGN."""

    size: int
    checksum: str
    by: str
    since: datetime

    def same_as(self, other: Content, *, by_size: bool = False) -> bool:
        return self.size == other.size and (by_size or self.checksum == other.checksum)


@dataclass
class SimulatedStorages:
    """What all sites have: (site, logical name) -> content.

    Attributes:
        may_go: Whether a source may be removed now, in words: None if it may.
        silent: Sites that cannot be asked.
        tried: Destinations that FTS has found free.
        violations: What happened and must not.
    """

    clock: Callable[[], datetime]
    may_go: Callable[[str, str], str | None]
    files: dict[tuple[str, str], Content] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    tried: set[tuple[str, str]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)

    def put(self, site: str, name: str, size: int, checksum: str, by: str) -> None:
        self.files[site, name] = Content(size, checksum, by, self.clock())

    def overwrite(self, site: str, name: str, content: Content, *, allowed: bool) -> None:
        """FTS writes a file: what others wrote is never replaced."""
        there = self.files.get((site, name))
        if there is not None and (there.by == FOREIGN or not allowed):
            self.violations.append(f"{content.by} replaces {name} at {site}, which {there.by} wrote")
        self.files[site, name] = content


@dataclass(frozen=True)
class SimulatedPlace:
    """A `SitePlace` of one site. `reach` is called before and after each call that changes something."""

    storages: SimulatedStorages
    site: str
    reach: Callable[[str], None]

    def look(self, names: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, FileFacts | FailureReason | None]:
        self.reach(f"before look at {self.site}")
        if self.site in self.storages.silent:
            return dict.fromkeys(names, FailureReason(None, None, "Connection timed out"))
        found: dict[str, FileFacts | FailureReason | None] = {}
        for name in names:
            content = self.storages.files.get((self.site, name))
            told = None if checksum is ChecksumMode.NONE or content is None else content.checksum
            found[name] = FileFacts(content.size, told, content.since) if content else content
        return found

    def remove(self, names: Sequence[str]) -> Mapping[str, FailureReason | None]:
        self.reach(f"before removal at {self.site}")
        if self.site in self.storages.silent:
            return dict.fromkeys(names, FailureReason(None, None, "Connection timed out"))
        for name in names:
            why = self.storages.may_go(self.site, name)
            if why is not None and (self.site, name) in self.storages.files:
                self.storages.violations.append(f"{name} at {self.site} is removed: {why}")
            self.storages.files.pop((self.site, name), None)
        self.reach(f"after removal at {self.site}")
        return dict.fromkeys(names)

    def close(self) -> None: ...

    def listed(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        self.reach(f"before listing {self.site}")
        if self.site in self.storages.silent:
            raise PLACE_UNLISTED(f"{prefix} at {self.site}", "Connection timed out")
        for (site, name), content in sorted(self.storages.files.items()):
            if site == self.site and name.startswith(f"{prefix}/"):
                yield name, content.size, content.since


def remote_site(name: str, **more: object) -> RemoteSite:
    """A site that is reached by davs."""
    rules = ({"prefix": "/", "url": f"davs://{name}.{DOMAIN}{DOOR}"},)
    return RemoteSite.model_validate({"name": name, "read": rules, "write": rules, "third_party": rules, **more})


def place_of(url: str) -> tuple[str, str]:
    """Site and logical name of a URL."""
    parts = urlsplit(url)
    return (parts.hostname or "").removesuffix(f".{DOMAIN}"), parts.path.removeprefix(DOOR)
