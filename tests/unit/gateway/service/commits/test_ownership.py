"""Two gateways on one repository: kept apart by the store, or one of them refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from include.cvmfs.commit.create import create_repository
from include.gateway.service.commits import ownership
from include.gateway.service.commits.committer import StoreCommitter
from include.gateway.service.commits.ownership import KEY, GatewayOwner, Owned, Ownership, claim
from include.gateway.service.commits.queue import CommitOrder
from include.gateway.service.config import AcceptedKey, RepositoryConfig, ServiceConfig
from include.storage.kinds import Traits
from include.storage.store import Store
from tests.fakes.edits import change
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, master_key, signer
from tests.fakes.refused import refused

NONE = Traits(put_if_absent=False, replace=False, bulk_delete=True)


class Careless(MemoryStore):
    """Keeps no conditions, and is known for it."""

    @property
    def traits(self) -> Traits:
        return NONE


@pytest.fixture
def store() -> Careless:
    return Careless()


@pytest.fixture
def held() -> Iterator[list[Ownership]]:
    found: list[Ownership] = []
    yield found
    for one in found:
        one.release()


def take(store: Store, **more: object) -> Ownership | None:
    settings = {"patience_s": 2.0, "renewed_every_s": 0.01} | more
    return claim(store, FQRN, **settings)[1]  # type: ignore[arg-type]


def test_a_store_that_keeps_conditions_needs_no_owner() -> None:
    store = MemoryStore()
    assert take(store) is None
    assert KEY not in store.objects


def test_the_second_process_is_refused_and_the_message_names_the_first(store: Careless, held: list[Ownership]) -> None:
    first = take(store)
    assert first
    held.append(first)
    first.require()
    renewed = threading.Event()
    store.before = lambda verb, _: renewed.set() if verb == "put" else None
    assert renewed.wait(30)
    owner = GatewayOwner.parse(store.objects[KEY])
    assert owner
    with pytest.raises(Owned, match=f"process {owner.pid} on {owner.host}"):
        take(store, sleep=lambda _: renewed.clear() or renewed.wait(30))
    first.require()


def test_what_was_released_is_free_at_once(store: Careless, held: list[Ownership]) -> None:
    first = take(store)
    assert first
    first.release()
    assert KEY not in store.objects
    again = take(store, patience_s=1e9)
    assert again
    held.append(again)


def test_a_dead_holder_of_this_machine_is_followed(
    store: Careless, held: list[Ownership], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: int, __: int) -> None:
        raise ProcessLookupError

    store.put(KEY, GatewayOwner.of_this_process().format())
    monkeypatch.setattr(ownership.os, "kill", gone)
    second = take(store, patience_s=1e9)
    assert second
    held.append(second)


def test_a_holder_elsewhere_that_stops_is_taken_over(store: Careless, held: list[Ownership]) -> None:
    slept = Ownership(store, FQRN, replace(GatewayOwner.of_this_process(), host="elsewhere"), renewed_every_s=1e6)
    store.put(KEY, slept._owner.format())
    waited: list[float] = []
    second = take(store, sleep=waited.append)
    assert second
    held.append(second)
    assert sum(waited) >= 2.0
    with refused(Owned):
        slept.require()
    second.require()
    slept.release()
    assert KEY in store.objects, "what is another's is not taken away"


def test_of_two_that_find_it_free_at_once_one_gets_it(store: Careless) -> None:
    rival = GatewayOwner.of_this_process()
    with pytest.raises(Owned):
        take(store, sleep=lambda _: store.put(KEY, rival.format()))


PIDS = (b'"7"', b"true", b"-1", b"1.5", b"%d" % (1 << 62))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1]", b'{"format": 2}', b'{"format": 1, "id": "x"}', b"\xff", b"[" * 9999,
     *(b'{"format": 1, "id": "x", "host": "h", "boot": "b", "since": "", "pid": %b}' % pid for pid in PIDS)],
)  # fmt: skip
def test_what_is_no_document_has_no_owner(data: bytes) -> None:
    assert GatewayOwner.parse(data) is None


def test_the_document_comes_back() -> None:
    owner = replace(GatewayOwner.of_this_process(), count=7)
    assert GatewayOwner.parse(owner.format()) == owner


def test_a_configuration_that_is_read_again_gives_nothing_away(store: Careless, tmp_path: Path) -> None:
    create_repository(store, FQRN, master=master_key(), signer=signer(), now=NOW)
    served = RepositoryConfig(lambda: store, signer, (AcceptedKey("k", "s"),))
    config = ServiceConfig(state=tmp_path / "state.db", repositories={FQRN: served})
    committer = StoreCommitter(config, lambda _: signer())
    committer.start()
    owner = GatewayOwner.parse(store.objects[KEY])
    committer.reconfigure(config)
    old, new = change(store, "/a")
    order = CommitOrder(FQRN, "/a", old, new, "", "")
    assert committer.commit([order], fence=lambda _: {}, on_step=lambda _: None) == [1]
    kept = GatewayOwner.parse(store.objects[KEY])
    assert owner
    assert kept
    assert owner.id == kept.id
    store.put(KEY, replace(owner, id="another").format())
    [refused] = committer.commit(
        [CommitOrder(FQRN, "/b", *change(store, "/b"), "", "")], fence=lambda _: {}, on_step=lambda _: None
    )
    assert isinstance(refused, Owned), "who lost the repository does not switch"
    store.put(KEY, owner.format())
    committer.reconfigure(replace(config, repositories={}))
    committer.close()
    assert KEY not in store.objects
