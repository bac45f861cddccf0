"""Who may switch a manifest in a store, by what that store was seen to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.publishers.capabilities import Way
from include.publishers.connect import Connections, native_publisher
from include.publishers.errors import PublisherError
from include.publishers.gateway import NightshiftGateway, StockGateway
from include.publishers.stores import connection_of
from include.settings.load import load
from include.settings.model import GatewayKind, NodeSettings, StoreSettings
from include.settings.secrets import EnvSecrets
from include.settings.traits import record_traits
from include.storage.file import FileStore
from include.storage.options import Traits
from include.storage.roles import Role
from tests.fakes.refused import refused

FQRN = "nights.example.org"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
KEEPS = Traits(put_if_absent=True, replace=True, bulk_delete=True, anonymous_read=True, etag_quotes=True)
IGNORES = replace(KEEPS, replace=False)


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[Connections]:
    """A site whose repository may be switched by two gateways."""
    file = tmp_path / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{tmp_path}/ledger.db"\n'
        f'stores: {{cvmfs: {{url: "file://{tmp_path}/cvmfs"}}}}\n'
        f"repositories:\n  {FQRN}:\n    store: cvmfs\n    public_url: http://127.0.0.1:1\n"
        "    public_key: nights.pub\n    gateway: gateway\n    manifest_writers: 2\n"
    )
    made = Connections(load(file, environ={}), EnvSecrets({}))
    yield made
    made.ledger.dispose()


def with_writers(connections: Connections, number: int) -> Connections:
    settings = connections.site.repository(FQRN).model_copy(update={"manifest_writers": number})
    site = connections.site.model_copy(update={"repositories": {FQRN: settings}})
    return Connections(site, EnvSecrets({}))


def seen(connections: Connections, traits: Traits) -> None:
    record_traits(connections.ledger, connections.site.store("cvmfs"), traits, now=NOW)


def test_two_writers_need_a_store_that_was_tried(connections: Connections) -> None:
    with refused(PublisherError, fqrn=FQRN) as caught:
        connections.manifest_store(FQRN)
    assert "writer 1, writer 2" in str(caught.value)
    assert not PublisherError.retryable


def test_two_writers_are_refused_where_conditional_replace_is_ignored(connections: Connections) -> None:
    seen(connections, IGNORES)
    with refused(PublisherError, fqrn=FQRN):
        connections.manifest_store(FQRN)


def test_two_writers_may_share_a_store_that_keeps_them_apart(connections: Connections) -> None:
    seen(connections, KEEPS)
    store = connections.manifest_store(FQRN)
    assert store.url.endswith(f"/cvmfs/{FQRN}")


def test_what_was_seen_last_counts(connections: Connections) -> None:
    seen(connections, KEEPS)
    seen(connections, IGNORES)
    with pytest.raises(PublisherError):
        connections.manifest_store(FQRN)


def test_one_writer_needs_no_help_from_the_store(connections: Connections) -> None:
    alone = with_writers(connections, 1)
    assert alone.manifest_store(FQRN).writable
    seen(alone, IGNORES)
    assert alone.manifest_store(FQRN).writable
    alone.ledger.dispose()


def test_a_store_is_opened_once_for_each_role(connections: Connections) -> None:
    assert connections.store("cvmfs") is connections.store("cvmfs", Role.PUBLISHER)
    assert connections.store("cvmfs") is not connections.store("cvmfs", Role.GATEWAY)


@pytest.mark.parametrize(
    ("role", "apart", "alone"),
    [
        (Role.PUBLISHER, "publishing", "publishing"),
        (Role.GATEWAY, "switching", "publishing"),
        (Role.COLLECTOR, "publishing", "publishing"),
        (Role.READER, None, None),
    ],
)
def test_each_role_has_the_key_that_the_store_names_for_it(role: Role, apart: str | None, alone: str | None) -> None:
    store = {"name": "cvmfs", "url": "s3://nights", "connection": "publishing"}
    assert connection_of(StoreSettings.model_validate({**store, "gateway_connection": "switching"}), role) == apart
    assert connection_of(StoreSettings.model_validate(store), role) == alone


@pytest.mark.parametrize(
    ("written", "expected"), [("", "switch"), (", fsync: always", "always"), (", fsync: never", "never")]
)
def test_when_a_folder_is_flushed_is_a_setting_of_its_store(tmp_path: Path, written: str, expected: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{tmp_path}/ledger.db"\n'
        f'stores: {{cvmfs: {{url: "file://{tmp_path}/cvmfs"{written}}}}}\n'
        f"repositories:\n  {FQRN}:\n    store: cvmfs\n    public_url: http://127.0.0.1:1\n"
        "    public_key: nights.pub\n    gateway: gateway\n"
    )
    made = Connections(load(file, environ={}), EnvSecrets({}))
    try:
        stores = made.repository_store(FQRN), made.gateway_store(FQRN), made.manifest_store(FQRN)
        assert [one.fsync for one in stores if isinstance(one, FileStore)] == [expected] * 3
    finally:
        made.ledger.dispose()


class Greeting:
    """A gateway that was asked for its kind."""

    def __init__(self, *, ours: bool) -> None:
        self.ours = ours
        self.asked = 0

    def judges_bases(self) -> bool:
        self.asked += 1
        return self.ours


@pytest.mark.parametrize(
    ("kind", "ours", "chosen", "asked"),
    [
        ("auto", True, NightshiftGateway, 1),
        ("auto", False, StockGateway, 1),
        ("stock", True, StockGateway, 0),
        ("embedded", False, NightshiftGateway, 0),
    ],
)
def test_a_publisher_finds_out_the_kind_of_its_gateway_once_and_not_before_it_matters(
    connections: Connections, kind: str, ours: bool, chosen: type, asked: int
) -> None:
    settings = connections.site.repository(FQRN).model_copy(update={"gateway_kind": GatewayKind(kind)})
    greeting, store = Greeting(ours=ours), connections.repository_store(FQRN)
    publisher = native_publisher(settings, store, greeting, lambda: connections.head(FQRN).manifest)  # type: ignore[arg-type]
    assert greeting.asked == 0
    assert [type(publisher.gateway()) for _ in range(2)] == [chosen, chosen]
    assert greeting.asked == asked


@pytest.mark.parametrize(
    ("kind", "ours", "way"),
    [
        ("auto", True, Way.NATIVE_OURS),
        ("auto", False, Way.NATIVE_STOCK),
        ("stock", True, Way.NATIVE_STOCK),
        ("embedded", False, Way.NATIVE_OURS),
    ],
)
def test_a_gateway_is_asked_for_its_kind_before_a_manifest_is_replaced_beside_it(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, kind: str, ours: bool, way: Way
) -> None:
    settings = connections.site.repository(FQRN).model_copy(update={"gateway_kind": GatewayKind(kind)})
    site = connections.site.model_copy(update={"repositories": {FQRN: settings}})
    made = Connections(site, EnvSecrets({}))
    monkeypatch.setattr(made, "gateway", lambda fqrn: Greeting(ours=ours))
    assert made.way_of_switching(FQRN) is way


@pytest.mark.parametrize(
    ("behind", "way"), [("stock", Way.SERVER_STOCK), ("none", Way.SERVER_LOCAL), ("nightshift", Way.NATIVE_OURS)]
)
def test_what_a_node_publishes_through_decides_for_its_repository(
    connections: Connections, behind: str, way: Way
) -> None:
    node = NodeSettings.model_validate(
        {"host": "node", "user": "cv", "known_hosts": "known", "behind": behind, "agent": True},
        context={"root": Path("/")},
    )
    settings = connections.site.repository(FQRN).model_copy(update={"server": node})
    site = connections.site.model_copy(update={"repositories": {FQRN: settings}})
    assert Connections(site, EnvSecrets({})).way_of_switching(FQRN) is way
