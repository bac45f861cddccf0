"""A manifest is switched in a store by the writers that the store can keep apart."""

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
from include.settings.services import NodeSettings
from include.settings.traits import record_traits
from include.site.site import Site, connection_of, native_publisher
from include.storage.buckets import Role
from include.storage.file import FileStore
from include.storage.kinds import Traits
from tests.fakes.refused import refused

FQRN = "nights.example.org"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
KEEPS = Traits(put_if_absent=True, replace=True, bulk_delete=True, anonymous_read=True, etag_quotes=True)
IGNORES = replace(KEEPS, replace=False)


def site_of(folder: Path, store: str = "", repository: str = "") -> Site:
    """A site of one repository, whose settings have these lines too."""
    file = folder / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{folder}/ledger.db"\n'
        f'stores: {{cvmfs: {{url: "file://{folder}/cvmfs"{store}}}}}\n'
        f"repositories:\n  {FQRN}:\n    store: cvmfs\n    public_url: http://127.0.0.1:1\n"
        f"    public_key: nights.pub\n    gateway: gateway\n{repository}"
    )
    return Site(load(file, environ={}), EnvSecrets({}))


@pytest.fixture
def on_site(tmp_path: Path) -> Iterator[Site]:
    """A site whose repository may be switched by two gateways."""
    made = site_of(tmp_path, repository="    manifest_writers: 2\n")
    yield made
    made.ledger.dispose()


def changed(on_site: Site, **settings: object) -> Site:
    """The site with other settings of its repository."""
    repository = on_site.settings.repository(FQRN).model_copy(update=settings)
    return Site(on_site.settings.model_copy(update={"repositories": {FQRN: repository}}), EnvSecrets({}))


def seen(on_site: Site, traits: Traits) -> None:
    record_traits(on_site.ledger, on_site.settings.store("cvmfs"), traits, now=NOW)


def test_two_writers_need_a_store_that_was_tried(on_site: Site) -> None:
    with refused(PublisherError, fqrn=FQRN) as caught:
        on_site.manifest_store(FQRN)
    assert "writer 1, writer 2" in str(caught.value)
    assert not PublisherError.retryable


@pytest.mark.parametrize("tries", [[IGNORES], [KEEPS, IGNORES]], ids=["ignored", "ignored at last"])
def test_two_writers_are_refused_where_conditional_replace_is_ignored(on_site: Site, tries: list[Traits]) -> None:
    for traits in tries:
        seen(on_site, traits)
    with refused(PublisherError, fqrn=FQRN):
        on_site.manifest_store(FQRN)


def test_two_writers_may_share_a_store_that_keeps_them_apart(on_site: Site) -> None:
    seen(on_site, KEEPS)
    store = on_site.manifest_store(FQRN)
    assert store.url.endswith(f"/cvmfs/{FQRN}")


def test_one_writer_needs_no_help_from_the_store(on_site: Site) -> None:
    alone = changed(on_site, manifest_writers=1)
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
    made = site_of(tmp_path, store=written)
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


KINDS = [
    ("auto", True, NightshiftGateway, 1, PublishRoute.NATIVE_OURS),
    ("auto", False, StockGateway, 1, PublishRoute.NATIVE_STOCK),
    ("stock", True, StockGateway, 0, PublishRoute.NATIVE_STOCK),
    ("embedded", False, NightshiftGateway, 0, PublishRoute.NATIVE_OURS),
]


@pytest.mark.parametrize(("kind", "ours", "chosen", "asked", "way"), KINDS)
def test_the_kind_of_a_gateway_is_asked_once_before_it_matters(
    on_site: Site, monkeypatch: pytest.MonkeyPatch, kind: str, ours: bool, chosen: type, asked: int, way: PublishRoute
) -> None:
    made = changed(on_site, gateway_kind=GatewayKind(kind))
    greeting, store = Greeting(ours=ours), made.repository_store(FQRN)
    publisher = native_publisher(made.settings.repository(FQRN), store, greeting, lambda: on_site.head(FQRN).manifest)  # type: ignore[arg-type]
    assert greeting.asked == 0
    assert [type(publisher.gateway()) for _ in range(2)] == [chosen, chosen]
    assert greeting.asked == asked
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
    assert changed(on_site, server=node).way_of_switching(FQRN) is way
