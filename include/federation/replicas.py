"""Replicas of a logical name at sites, as our reader takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from include.reading.source import Patience, ReplicaAddress, unreadable
from include.settings.sites import RemoteSite
from include.stageout.errors import StageoutError
from include.stageout.files import SiteOperation, site_urls


def replicas_of(
    name: str,
    sites: Iterable[RemoteSite],
    *,
    patience: Patience | None = None,
    left_out: Callable[[str, str], object] = lambda *_: None,
) -> list[ReplicaAddress]:
    """The replicas of a logical name, in the order of the sites, each by the first URL that can be read here.

    ``patience``: rules in the place of those of each site. ``left_out``: called with a site without such a URL, and the
    reason.
    """
    replicas = []
    for site in sites:
        try:
            reasons = {url: unreadable(url) for url in site_urls(site, SiteOperation.READ, name).values()}
        except StageoutError as error:
            left_out(site.name, str(error))
            continue
        url = next((url for url, reason in reasons.items() if reason is None), None)
        if url is None:
            left_out(site.name, "; ".join(filter(None, reasons.values())))
        else:
            replicas.append(ReplicaAddress(site.name, url, patience or Patience(**site.reading.model_dump())))
    return replicas
