"""Replicas in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.replicas.configs import client_config
from include.settings.errors import InvalidSettings, SettingsError
from include.settings.load import parse
from include.settings.services import chosen

FQRN = "r.example.org"
SITE = """
stores: {{s: {{url: "file:///s"}}}}
repositories:
  {fqrn}:
    store: s
    public_url: "http://s0.example.org/{fqrn}"
    public_key: k.pub
    gateway: g
    replicas: [{replicas}]
"""
ONE = '{name: s1, url: "http://s1.example.org/cvmfs/r"}'


def load(*replicas: str):
    text = SITE.format(fqrn=FQRN, replicas=", ".join(replicas))
    return parse(text, file="site.yaml", root=Path("/root"), environ={}).repository(FQRN)


def test_a_replica_has_limits_by_default_and_a_machine_only_if_named() -> None:
    (replica,) = load(ONE).replicas
    assert (replica.longest_snapshot_minutes, replica.max_lag_hours, replica.node) == (240, 24.0, None)
    node = "{host: s1, user: cvmfs, known_hosts: hosts, key: id}"
    (replica,) = load(f'{{name: s1, url: "http://s1/r", node: {node}}}').replicas
    assert replica.node is not None
    assert replica.node.known_hosts == Path("/root/hosts")


@pytest.mark.parametrize(
    "replicas",
    [
        [ONE, ONE],
        ['{name: s1, url: "s3://bucket/r"}'],
        ['{name: s1, url: "http://me:secret@s1/r"}'],
        ['{name: s1, url: "http://s1/r", max_lag_hours: 0}'],
        ['{name: s1, url: "http://s1/r", longest_snapshot_minutes: 0}'],
        ['{name: s1, url: "http://s1/r", node: {host: s1, user: u, known_hosts: h}}'],
    ],
)
def test_what_cannot_be_a_replica_is_refused_with_a_cure(replicas: list[str]) -> None:
    with pytest.raises(InvalidSettings) as refused:
        load(*replicas)
    (problem,) = refused.value.problems
    assert problem.key.startswith(f"repositories.{FQRN}.replicas")
    assert problem.cure
    assert "secret" not in str(refused.value)


def test_replicas_are_chosen_by_name() -> None:
    replicas = load(ONE, ONE.replace("s1,", "s2,")).replicas
    assert [one.name for one in chosen(FQRN, replicas)] == ["s1", "s2"]
    assert [one.name for one in chosen(FQRN, replicas, ["s2"])] == ["s2"]
    with pytest.raises(SettingsError):
        chosen(FQRN, replicas, ["s3"])


def test_a_client_reads_through_proxies_from_servers_in_their_order() -> None:
    servers, proxies = ["https://a.org/r", "http://b.org:8000/cvmfs/r"], ["http://p1:3128", "http://p2:3128"]
    lines = client_config(FQRN, Path("/keys/r.pub"), servers=servers, proxies=proxies).splitlines()
    assert 'CVMFS_SERVER_URL="https://a.org/r;http://b.org:8000/cvmfs/r"' in lines
    assert 'CVMFS_HTTP_PROXY="http://p1:3128|http://p2:3128"' in lines
    assert f"CVMFS_PUBLIC_KEY=/etc/cvmfs/keys/{FQRN}.pub" in lines
    assert "CVMFS_USE_SSL_SYSTEM_CA=true" in lines
    direct = client_config(FQRN, Path("/keys/r.pub"), servers=servers[1:], proxies=[]).splitlines()
    assert 'CVMFS_HTTP_PROXY="DIRECT"' in direct
    assert "CVMFS_USE_SSL_SYSTEM_CA=true" not in direct
    # no URL ends the line that it is in
    for url in ('http://a/"; rm', "http://a/$(x)", "ftp://a", "http://me:pw@a/r", "http://a;b", "a\nb"):
        for servers, proxies in (([url], []), (["http://a"], [url])):
            with pytest.raises(SettingsError):
                client_config(FQRN, Path("k"), servers=servers, proxies=proxies)
