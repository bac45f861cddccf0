"""Replicas of a logical name: the order of sites, their rules, and sites that are left out."""

from __future__ import annotations

import sys

from include.federation.replicas import replicas_of
from include.reading.source import Patience, ReplicaAddress
from tests.fakes.places import ruled

PISA = ruled(
    read=[("/store", "root://x.pisa.it:1095//cms/store"), ("/store", "davs://w.pisa.it/cms/store")],
    write=[("/store/user", "davs://w.pisa.it:8443/user"), ("/store", "davs://w.pisa.it/cms")],
    third_party=[("/store", "root://x.pisa.it//cms/store"), ("/store", "davs://tpc.pisa.it/cms/store")],
)


def test_replicas_are_in_the_order_of_the_sites_with_the_rules_of_each(monkeypatch):
    name, left_out = "/store/user/a.root", {}
    rome = ruled(
        "rome", read=[("/store", "gsiftp://rome.it/store"), ("/store", "https://rome.it/store")],
        reading={"retries": 9, "timeout_s": 5},
    )  # fmt: skip
    sites = [rome, ruled("tape", read=[("/store", "gsiftp://tape.it/store")]), ruled("empty"), PISA]
    rules = Patience(retries=9, timeout_s=5)
    http = ReplicaAddress("pisa", "davs://w.pisa.it/cms/store/user/a.root")
    xroot = ReplicaAddress("pisa", "root://x.pisa.it:1095//cms/store/user/a.root")
    first = ReplicaAddress("rome", "https://rome.it/store/user/a.root", rules)
    assert replicas_of(name, sites, left_out=left_out.__setitem__) == [first, xroot]
    assert set(left_out) == {"tape", "empty"}
    assert "scheme" in left_out["tape"]
    own = Patience(retries=1)
    assert [replica.patience for replica in replicas_of(name, sites, patience=own)] == [own, own]
    assert replicas_of("/store/größe", [PISA], left_out=left_out.__setitem__) == []
    assert "root URLs" in left_out["pisa"]
    monkeypatch.setitem(sys.modules, "XRootD", None)
    assert replicas_of(name, [PISA]) == [http]


def test_a_site_without_rules_of_its_own_is_read_as_a_file_without_a_site():
    assert Patience(**PISA.reading.model_dump()) == Patience()
