"""What a stock receiver would lose on the way into the repository is refused before it is sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.layout import Layout
from include.publishers.capabilities import Loss
from include.publishers.errors import Lossy, NotSupported
from tests.fakes.refused import refused
from tests.fakes.stocksite import StockSite
from tests.site import BUILD, DESTINATIONS, FQRN

NOW = datetime.now(UTC)
DIRECTORY = Dirent("", 0o40755, size=4096, linkcount=2)
FILES = {"lib/a": b"a"}


@pytest.fixture
def plain(reserved: StockSite) -> StockSite:
    """With single entries below a directory that is no nested catalog of its own."""

    def fill(edit: Edit) -> None:
        content = edit.nested_at(DESTINATIONS[0])
        assert content is not None
        edit.add(f"{BUILD}/plain", DIRECTORY)
        edit.add(f"{BUILD}/plain/f", Dirent("", 0o100644, size=0, mtime=5, hash=_empty(edit)))

    reserved.worker().change(f"{BUILD}/plain", fill, holder="test", now=NOW)
    return reserved


def _empty(edit: Edit) -> Any:
    marker = edit.lookup(f"{DESTINATIONS[0]}/.cvmfscatalog")
    assert marker is not None
    return marker.hash


def _chown(edit: Edit) -> None:
    entry = edit.lookup(f"{BUILD}/plain")
    assert entry is not None
    edit.touch(f"{BUILD}/plain", entry.changed(uid=1000))


def _fifo(edit: Edit) -> None:
    edit.add(f"{BUILD}/plain/pipe", Dirent("", 0o010644, mtime=5))


def _hard_links(edit: Edit) -> None:
    one = Dirent("", 0o100644, mtime=5, hash=_empty(edit), linkcount=2, hardlink_group=9)
    edit.add(f"{BUILD}/plain/a", one)
    edit.add(f"{BUILD}/plain/b", one)


@pytest.mark.parametrize(
    ("change", "loss", "path"),
    [
        (_chown, Loss.OWNERS, f"{BUILD}/plain"),
        (_fifo, Loss.SPECIALS, f"{BUILD}/plain/pipe"),
        (_hard_links, Loss.HARD_LINKS, f"{BUILD}/plain/a"),
    ],
)
def test_what_the_receiver_would_drop_is_refused_by_name_unless_the_settings_allow_it(
    plain: StockSite, change: Any, loss: Loss, path: str
) -> None:
    before, commits = plain.head().manifest, len(plain.gateway.commits)
    with refused(Lossy, path=path, loss=loss):
        plain.worker().change(f"{BUILD}/plain", change, holder="test", now=NOW)
    assert plain.head().manifest == before
    assert len(plain.gateway.commits) == commits
    done = plain.worker(allow_lossy=[loss.value]).change(f"{BUILD}/plain", change, holder="test", now=NOW)
    assert done.revision == before.revision + 1
    after = plain.readers()
    assert after.revision.entry(f"{BUILD}/plain").uid == 0, "the receiver lost it, as was allowed"
    assert after.revision.lookup(f"{BUILD}/plain/pipe") is None
    plain.assert_sound()


def test_a_tree_with_nanoseconds_is_refused_before_it_is_leased(reserved: StockSite) -> None:
    changeset = reserved.prepared(DESTINATIONS[0], FILES, layout=Layout.MTIME_NS, mtime_ns=True)
    leased = len(reserved.gateway.leased)
    with refused(NotSupported, path=DESTINATIONS[0]):
        reserved.worker(allow_lossy=[loss.value for loss in Loss]).publish(changeset, holder="test", now=NOW)
    assert len(reserved.gateway.leased) == leased
    reserved.assert_sound()


def test_changed_hard_links_break_a_receiver_and_are_refused_whatever_is_allowed(plain: StockSite) -> None:
    # they came by other ways than this gateway
    from include.cvmfs.commit.commit import read_head, switch
    from include.cvmfs.format.catalogs import CatalogCache
    from tests.fakes.site import SIGNER

    head = read_head(plain.store, FQRN)
    edit = Edit(CatalogCache(plain.store), head.manifest.root)
    _hard_links(edit)
    switch(plain.store, head, edit.finish(int(NOW.timestamp())), signer=SIGNER, now=int(NOW.timestamp()))
    with refused(NotSupported, path=f"{BUILD}/plain/a"):
        plain.worker(allow_lossy=[loss.value for loss in Loss]).remove(f"{BUILD}/plain/a", holder="test", now=NOW)
    plain.assert_sound()


def test_a_change_of_everything_is_refused_since_its_lease_would_end_in_a_slash(reserved: StockSite) -> None:
    with refused(NotSupported, path="/"):
        reserved.worker().change("", lambda edit: edit.remove(BUILD), holder="test", now=NOW)
    assert "/" not in reserved.gateway.leased
    reserved.assert_sound()
