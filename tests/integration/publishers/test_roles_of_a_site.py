"""A site with a key pair for each role: its gateway founds and switches, its publishers cannot, and all is tried."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cli.settings import policies
from include.monitoring.findings import Severity
from include.monitoring.store_checks import look_at_collector, look_at_store, roles
from include.settings.load import parse
from include.settings.secrets import EnvSecrets
from include.settings.traits import record_traits
from include.site.bootstrap import found_repository, found_stores
from include.site.site import Site, try_store
from include.storage.buckets import PolicyServer, admin_client, ensure_bucket
from include.storage.errors import Forbidden
from include.storage.kinds import Credentials
from lab.servers.s3 import S3Server
from tests.integration.conftest import ON_ONE_S3, USERS

FQRN = "nights.example.org"
SITE = """\
ledger: "sqlite:///ledger.db"
gateway: {{keys: keys}}
stores:
  main:
    url: "{url}"
    endpoint: "{endpoint}"
    connection: main
    gateway_connection: main_gateway
    collector_connection: main_collector
repositories:
  nights.example.org: {{store: main, public_url: "{public}/{fqrn}", public_key: keys/{fqrn}.pub, gateway: gw}}
"""


def connection(keys: Credentials) -> str:
    return json.dumps({"login": keys.access_key, "password": keys.secret_key})


def keys(*, collector: str = "collector") -> EnvSecrets:
    """Of a site; ``collector``: whose key its collector has."""
    users = {"MAIN": "publisher", "MAIN_GATEWAY": "gateway", "MAIN_COLLECTOR": collector}
    found = {f"AIRFLOW_CONN_{name}": connection(USERS[user]) for name, user in users.items()}
    return EnvSecrets({**found, "AIRFLOW_CONN_GW": connection(Credentials("key1", "not-a-secret"))})


@pytest.fixture
def on_site(s3_server: S3Server, s3_prefix: str, tmp_path: Path) -> Site:
    """Of a site in a bucket whose owner has set what `nightshift settings roles` prints."""
    url = f"s3://site-{s3_prefix}/repositories"
    public = s3_server.public_url(*url.removeprefix("s3://").split("/"))
    text = SITE.format(url=url, endpoint=s3_server.endpoint, public=public, fqrn=FQRN)
    site = parse(text, file="site.yaml", root=tmp_path, environ={})
    ensure_bucket(url, s3_server.credentials, s3_server.options())
    policy = policies(site, "main", s3_server.kind, user_prefix="")["bucket_policy"]
    admin_client(s3_server.credentials, s3_server.options()).put_bucket_policy(
        Bucket=f"site-{s3_prefix}", Policy=json.dumps(policy)
    )
    return Site(site, keys())


def test_the_gateway_founds_a_publisher_cannot_and_the_collector_deletes(on_site: Site, s3_server: S3Server) -> None:
    found_stores(on_site, {"main"}, say=print)
    assert found_repository(on_site, FQRN, say=print)
    assert on_site.repository(FQRN).verified
    (looked,) = look_at_store(on_site, "main")  # with the key that publishes
    assert looked.severity is Severity.OK
    publisher, gateway = on_site.repository_store(FQRN), on_site.manifest_store(FQRN)
    data, version = publisher.get_versioned(".cvmfspublished")
    publisher.put("data/zz/cd", b"object")
    for forbidden in (
        lambda: publisher.put(".cvmfspublished", data),
        lambda: publisher.replace(".cvmfspublished", data + b"x", expected=version),
        lambda: gateway.delete(["data/zz/cd"]),
    ):
        with pytest.raises(Forbidden):
            forbidden()
    newer = gateway.replace(".cvmfspublished", data + b"x", expected=version)
    assert publisher.get_versioned(".cvmfspublished") == (data + b"x", newer)

    traits = try_store(on_site.settings, on_site.secrets, "main")
    assert traits is not None
    assert (traits.put_if_absent, traits.replace, traits.anonymous_read) == (True, True, True)
    assert traits.bulk_delete is (s3_server.kind is not PolicyServer.RADOSGW)

    # the collector deletes in bulk by its own key, whatever the publishers' was refused
    record_traits(on_site.ledger, on_site.settings.store("main"), traits, now=datetime.now(UTC))
    store, names = on_site.collector_store(FQRN), [f"data/zz/{n}" for n in range(30)]
    for key in names:
        on_site.repository_store(FQRN).put(key, b"")
    assert store.traits is not None
    assert (store.traits.bulk_delete, store.traits.etag_quotes) == (True, traits.etag_quotes)
    assert set(on_site.repository_store(FQRN).delete_each(names)) == set(names)
    assert store.delete_each(names) == {}
    assert {meta.key for meta in store.list("data/zz")} == {"data/zz/cd"}


@ON_ONE_S3
@pytest.mark.parametrize(("key", "good"), [("collector", True), ("gateway", False)])
def test_the_key_of_the_collector_is_tried_before_it_is_needed(on_site: Site, key: str, good: bool) -> None:
    site = Site(on_site.settings, keys(collector=key))
    [checked] = look_at_collector(site, "main")
    assert (checked.subject, checked.severity is Severity.OK) == (FQRN, good)
    found = {finding.subject: finding.severity for finding in roles(site, FQRN)}
    assert found == {
        f"{FQRN} as publisher": Severity.OK,
        f"{FQRN} as gateway": Severity.OK,
        f"{FQRN} as collector": Severity.OK if good else Severity.ERROR,
    }
