"""Whether the source of a transfer may be removed, and for how long its removal is tried; pure."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from include.settings.names import is_below
from include.settings.sites import RemoteSite
from include.settings.stageout import StageoutSettings
from include.stageout.errors import StageoutError
from include.stageout.places.verify import verified_on_proof
from include.stageout.states import TransferState
from include.stageout.urls import SiteOperation, site_urls

FIRST_WAIT, LONGEST_WAIT = timedelta(minutes=5), timedelta(hours=12)
GIVEN_UP = timedelta(days=3)
"""A source that could not be removed for so long is kept."""
_T = TransferState
DONE_WITH_SOURCE = frozenset({_T.REGISTERED, _T.CLEANING, _T.CLEANED, _T.KEPT})
"""States of a transfer that will not be copied again: another one in any other state needs the same source."""


@dataclass(frozen=True, slots=True)
class SourceToClean:
    """The source of a transfer that is complete, and where the copy is."""

    owner: str
    source: str
    source_name: str
    destination: str
    destination_name: str


def kept_because(settings: StageoutSettings, sites: Mapping[str, RemoteSite], file: SourceToClean) -> str | None:
    """Why the source of a verified copy is never removed; None: it may be."""
    site, destination = sites.get(file.source), sites.get(file.destination)
    if site is None or destination is None:
        return f"site {file.source if site is None else file.destination} is not in the configuration"
    if not site.clean or site.temporary is None:
        return f"site {site.name} is not cleaned"
    if not verified_on_proof(destination):
        return f"only the size was compared at {destination.name}, which does not have `clean_on_size`"
    if not is_below(file.source_name, site.temporary):
        return f"it is outside of the temporary area {site.temporary} of {site.name}"
    if not is_in_folder_of(settings, site.temporary, file.owner, file.source_name):
        return f"it is outside of the folder of {file.owner} in the temporary area of {site.name}"
    # two sites may be names of one storage, where the removal would remove the copy
    if _have_same_url((site, file.source_name), (destination, file.destination_name)):
        return "source and destination have the same URL"
    return None


def is_in_folder_of(settings: StageoutSettings, area: str, owner: str, name: str) -> bool:
    """Whether a logical name is in a user's folder below a temporary area."""
    folder = settings.temporary_of(owner, area)
    # a name with a slash would be a folder of another user
    return "/" not in settings.user_of(owner) and is_below(name, folder) and name != folder


def is_same_file(sites: Mapping[str, RemoteSite], name: str, site: str, other: str) -> bool:
    """Whether a name may be one file at two sites: they are names of one storage, or one is not known any more."""
    if site == other or site not in sites or other not in sites:
        return True
    return _have_same_url((sites[site], name), (sites[other], name))


def removal_wait(tried_for: timedelta) -> timedelta | None:
    """After how long a failed removal is tried again, by how long it has been tried; None: it is given up."""
    if tried_for >= GIVEN_UP:
        return None
    # as long again as it took so far: the waits double, and no row has to count; in steps, so that rows are alike
    return min(max(FIRST_WAIT, tried_for // FIRST_WAIT * FIRST_WAIT), LONGEST_WAIT)


def _have_same_url(file: tuple[RemoteSite, str], other: tuple[RemoteSite, str]) -> bool:
    """Whether two names, each at its site, have a URL in common."""
    here, there = (tuple(rule.url for rule in site.rules) for site, _ in (file, other))
    return _may_meet(here, there) and bool(_urls(*file) & _urls(*other))


@lru_cache(4096)
def _may_meet(here: tuple[str, ...], there: tuple[str, ...]) -> bool:
    """Whether URLs with these beginnings may be the same: two sites are compared once, and not for each file."""
    return any(url.startswith(other) or other.startswith(url) for url in here for other in there)


def _urls(site: RemoteSite, name: str) -> set[str]:
    """All URLs of a name at a site."""
    found: set[str] = set()
    for operation in SiteOperation:
        with suppress(StageoutError):  # the site has no rule for it
            found |= set(site_urls(site, operation, name).values())
    return found
