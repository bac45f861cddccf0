"""What clients mount with and what the settings pin is found, also while the origins are away."""

from __future__ import annotations

from include.aliencache.cache import AlienCache
from include.aliencache.contents import Wanted
from include.aliencache.errors import PIN_UNKNOWN
from include.aliencache.pins import PinnedObjects, catalogs_in, pinned_objects
from include.aliencache.warm import WarmOptions, warm
from include.cvmfs.revision.repository import Repository
from include.settings.caches import Pins
from include.storage.errors import Unavailable
from tests.fakes.minirepo import FQRN, MiniRepository, opened
from tests.fakes.refused import refused


def pinned(cache: AlienCache, mini: MiniRepository, **pins: object) -> PinnedObjects:
    return pinned_objects(cache, [FQRN], lambda _: opened(mini.store), Pins(**pins))  # type: ignore[arg-type]


def away(_: str) -> Repository:
    raise Unavailable("the server is away", key="", cause="refused")


def test_catalogs_of_breadcrumbs_and_the_certificate_are_pinned(cache: AlienCache, mini: MiniRepository) -> None:
    warm(cache, opened(mini.store), [mini.store], WarmOptions(Wanted()))
    manifest = mini.manifest
    assert manifest is not None
    assert manifest.certificate is not None
    assert len(list(catalogs_in(cache, [FQRN]))) == 3
    digests = pinned(cache, mini)
    assert manifest.root.digest in digests
    assert manifest.certificate.digest in digests
    assert mini.entries["/readme"].hash.digest not in digests  # type: ignore[union-attr]
    assert len(digests) == 4


def test_paths_are_pinned_and_kept_while_the_origins_are_away(cache: AlienCache, mini: MiniRepository) -> None:
    name = mini.entries["/sw/app/lib/code"].hash
    assert name is not None
    assert name.digest in pinned(cache, mini, paths=("/sw/app/lib",))
    later = pinned_objects(cache, [FQRN], away, Pins())
    assert name.digest in later
    assert len(later.notes) == 1


def test_a_pin_that_names_nothing_is_refused(cache: AlienCache, mini: MiniRepository) -> None:
    with refused(PIN_UNKNOWN):
        pinned(cache, mini, paths=("/absent",))
    with refused(PIN_UNKNOWN):
        pinned(cache, mini, tags=("absent",))


def test_a_breadcrumb_that_cannot_be_read_is_noted(cache: AlienCache, mini: MiniRepository) -> None:
    (cache.path / f"cvmfschecksum.{FQRN}").write_text("?")
    assert len(pinned(cache, mini).notes) == 1
