"""What a deployment adds to the settings of a site, so that its storage can be reached."""

from __future__ import annotations

from dataclasses import dataclass

from include.storage.store import Store


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """What is not needed for the protocols of a site is ignored.

    Attributes:
        store: The store that the site's `store` names, opened with its key; for `s3:` URLs.
        fts_url: The embedded FTS service, which has the files of `mock:` URLs.
        authorities: A PEM bundle, or a folder of hashed names, for the certificates of servers; None: the system's.
        threads: Requests to one site at the same time.
        timeout_s: Seconds that a reply may take to begin, a computed checksum included.
        batch_s: Seconds after which nothing more of a call is begun: what is left is answered as not asked.
    """

    store: Store | None = None
    fts_url: str | None = None
    authorities: str | None = None
    threads: int = 16
    timeout_s: float = 60.0
    batch_s: float = 60.0
