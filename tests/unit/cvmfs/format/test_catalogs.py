"""Facts that catalogs above state of one are read once, and only for its own path."""

from contextlib import closing

from include.cvmfs.errors import CatalogError
from include.cvmfs.format.catalogs import CatalogCache
from tests.fakes.local import DIRECTORY, LocalRepository
from tests.fakes.refused import refused


def test_what_is_stated_of_a_catalog_is_read_once_and_for_its_own_path_alone() -> None:
    repository = LocalRepository()
    repository.change(lambda edit: edit.make_nested("/a", DIRECTORY))
    reference = repository.opened().revision.nested_at("/a")
    assert reference is not None
    cache = CatalogCache(repository.store, budget=0)
    with closing(cache.open(reference.hash)) as catalog:
        stated = catalog.size, catalog.root_entry, catalog.statistics.total
    mountable = cache.mountable("/a", reference.hash)
    assert (mountable.size, mountable.root_entry, mountable.totals) == stated
    gets = repository.store.counters.gets
    assert cache.mountable("/a", reference.hash) == mountable
    assert cache.totals(reference) == mountable.totals
    with refused(CatalogError, path="/b"):
        cache.mountable("/b", reference.hash)
    assert repository.store.counters.gets == gets
