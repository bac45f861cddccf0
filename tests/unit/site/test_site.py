"""Who may switch a manifest in a store, by what that store was seen to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.publishers.capabilities import PublishRoute
from include.publishers.errors import PublisherError
from include.publishers.gateway import NightshiftGateway, StockGateway
from include.settings.load import load
from include.settings.model import GatewayKind, StoreSettings
from include.settings.secrets import EnvSecrets
from include.settings.ssh import NodeSettings
from include.settings.traits import record_traits
from include.site.site import Site, connection_of, native_publisher
from include.storage.file import FileStore
from include.storage.kinds import Traits
from include.storage.roles import Role
from tests.fakes.refused import refused

FQRN = "nights.example.org"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
KEEPS = Traits(put_if_absent=True, replace=True, bulk_delete=True, anonymous_read=True, etag_quotes=True)
IGNORES = replace(KEEPS, replace=False)


@pytest.fixture
def on_site(tmp_path: Path) -> Iterator[Site]:
    """A site whose repository may be switched by two gateways."""
    file = tmp_path / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{tmp_path}/ledger.db"\n'
        f'stores: {{cvmfs: {{url: "file://{tmp_path}/cvmfs"}}}}\n'
        f"repositories:\n  {FQRN}:\n    store: cvmfs\n    public_url: http://127.0.0.1:1\n"
        "    public_key: nights.pub\n    gateway: gateway\n    manifest_writers: 2\n"
    )
    made = Site(load(file, environ={}), EnvSecrets({}))
    yield made
    made.ledger.dispose()


def with_writers(on_site: Site, number: int) -> Site:
    settings = on_site.settings.repository(FQRN).model_copy(update={"manifest_writers": number})
    site = on_site.settings.model_copy(update={"repositories": {FQRN: settings}})
    return Site(site, EnvSecrets({}))


def seen(on_site: Site, traits: Traits) -> None:
    record_traits(on_site.ledger, on_site.settings.store("cvmfs"), traits, now=NOW)


def test_two_writers_need_a_store_that_was_tried(on_site: Site) -> None:
    with refused(PublisherError, fqrn=FQRN) as caught:
        on_site.manifest_store(FQRN)
    assert "writer 1, writer 2" in str(caught.value)
    assert not PublisherError.retryable


def test_two_writers_are_refused_where_conditional_replace_is_ignored(on_site: Site) -> None:
    seen(on_site, IGNORES)
    with refused(PublisherError, fqrn=FQRN):
        on_site.manifest_store(FQRN)


def test_two_writers_may_share_a_store_that_keeps_them_apart(on_site: Site) -> None:
    seen(on_site, KEEPS)
    store = on_site.manifest_store(FQRN)
    assert store.url.endswith(f"/cvmfs/{FQRN}")


def test_what_was_seen_last_counts(on_site: Site) -> None:
    seen(on_site, KEEPS)
    seen(on_site, IGNORES)
    with pytest.raises(PublisherError):
        on_site.manifest_store(FQRN)


def test_one_writer_needs_no_help_from_the_store(on_site: Site) -> None:
    alone = with_writers(on_site, 1)
    assert alone.manifest_store(FQRN).writable
    seen(alone, IGNORES)
    assert alone.manifest_store(FQRN).writable
    alone.ledger.dispose()


def test_a_store_is_opened_once_for_each_role(on_site: Site) -> None:
    assert on_site.store("cvmfs") is on_site.store("cvmfs", Role.PUBLISHER)
    assert on_site.store("cvmfs") is not on_site.store("cvmfs", Role.GATEWAY)


@pytest.mark.parametrize(
    ("role", "apart", "alone"),
    [
        (Role.PUBLISHER, "publishing", "publishing"),
        (Role.GATEWAY, "switching", "publishing"),
        (Role.COLLECTOR, "collecting", "publishing"),
        (Role.READER, None, None),
    ],
)
def test_each_role_has_the_key_that_the_store_names_for_it(role: Role, apart: str | None, alone: str | None) -> None:
    store = {"name": "cvmfs", "url": "s3://nights", "connection": "publishing"}
    own = {"gateway_connection": "switching", "collector_connection": "collecting"}
    assert connection_of(StoreSettings.model_validate({**store, **own}), role) == apart
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
    made = Site(load(file, environ={}), EnvSecrets({}))
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
    on_site: Site, kind: str, ours: bool, chosen: type, asked: int
) -> None:
    settings = on_site.settings.repository(FQRN).model_copy(update={"gateway_kind": GatewayKind(kind)})
    greeting, store = Greeting(ours=ours), on_site.repository_store(FQRN)
    publisher = native_publisher(settings, store, greeting, lambda: on_site.head(FQRN).manifest)  # type: ignore[arg-type]
    assert greeting.asked == 0
    assert [type(publisher.gateway()) for _ in range(2)] == [chosen, chosen]
    assert greeting.asked == asked


@pytest.mark.parametrize(
    ("kind", "ours", "way"),
    [
        ("auto", True, PublishRoute.NATIVE_OURS),
        ("auto", False, PublishRoute.NATIVE_STOCK),
        ("stock", True, PublishRoute.NATIVE_STOCK),
        ("embedded", False, PublishRoute.NATIVE_OURS),
    ],
)
def test_a_gateway_is_asked_for_its_kind_before_a_manifest_is_replaced_beside_it(
    on_site: Site, monkeypatch: pytest.MonkeyPatch, kind: str, ours: bool, way: PublishRoute
) -> None:
    settings = on_site.settings.repository(FQRN).model_copy(update={"gateway_kind": GatewayKind(kind)})
    site = on_site.settings.model_copy(update={"repositories": {FQRN: settings}})
    made = Site(site, EnvSecrets({}))
    monkeypatch.setattr(made, "gateway", lambda fqrn: Greeting(ours=ours))
    assert made.way_of_switching(FQRN) is way


@pytest.mark.parametrize(
    ("behind", "way"),
    [
        ("stock", PublishRoute.SERVER_STOCK),
        ("none", PublishRoute.SERVER_LOCAL),
        ("nightshift", PublishRoute.NATIVE_OURS),
    ],
)
def test_what_a_node_publishes_through_decides_for_its_repository(
    on_site: Site, behind: str, way: PublishRoute
) -> None:
    node = NodeSettings.model_validate(
        {"host": "node", "user": "cv", "known_hosts": "known", "behind": behind, "agent": True},
        context={"root": Path("/")},
    )
    settings = on_site.settings.repository(FQRN).model_copy(update={"server": node})
    site = on_site.settings.model_copy(update={"repositories": {FQRN: settings}})
    assert Site(site, EnvSecrets({})).way_of_switching(FQRN) is way
