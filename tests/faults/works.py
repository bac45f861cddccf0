"""Publishers with a lease and a stored change each, to be committed when a test wants it; and sites for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import NewTag, store_all
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.gateway.client.client import GatewayClient
from include.gateway.client.values import Lease
from include.gateway.errors import GatewayError
from include.storage.open import open_store
from include.storage.store import Store
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import FQRN, ProcessSite


@dataclass(frozen=True)
class Work:
    """A publisher's lease and the change that is stored already, to be committed."""

    client: GatewayClient
    lease: Lease
    base: ObjectHash
    new: ObjectHash

    @property
    def path(self) -> str:
        return self.lease.path

    def commit(self) -> int | GatewayError:
        try:
            return self.client.commit(self.lease, self.base, self.new, tag=NewTag(self.path.rpartition("/")[2]))
        except GatewayError as error:
            return error


def work(site: ProcessSite, path: str, url: str | None = None) -> Work:
    client = GatewayClient(url or site.url, KEY_ID, SECRET, timeout_s=20, retries=0)
    lease = client.acquire(FQRN, path, hostname="publisher")
    base = site.head().manifest.root
    edit = Edit(CatalogCache(site.store), base)
    edit.make_nested(path, Dirent("", 0o040755, size=4096, linkcount=2, mtime=1_700_000_000))
    edit.symlink(f"{path}/whole", "there", now=1_700_000_000)
    new = edit.finish(1_700_000_000)
    store_all(site.store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
    return Work(client, lease, base, new.hash)


@contextmanager
def made(
    folder: Path,
    reserved: Mapping[str, bytes],
    storage: Mapping[str, object],
    public_url: str = "",
    store: Store | None = None,
) -> Iterator[ProcessSite]:
    """A site with a reserved build; no gateway runs."""
    store = store or open_store(str(storage["store"]))
    site = ProcessSite(folder, store, public_url or store.url, storage=storage)
    site.create(reserved)
    yield site
    site.close()


def seen(site: ProcessSite, works: Sequence[Work]) -> dict[str, bool]:
    """Whether each change is there; wholly, or not at all."""
    repository, found = site.head(), {}
    for one in works:
        whole = [repository.revision.lookup(path) is not None for path in (one.path, f"{one.path}/whole")]
        assert all(whole) or not any(whole), f"{one.path} is there in part"
        found[one.path] = all(whole)
    return found


def sound(site: ProcessSite) -> None:
    report = check(site.readers(), contents=True)
    assert not report.problems, report.problems
