"""Every sign of a publisher beside our gateway stops our collector, and is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.cvmfs.collect.sweep import SwitchingSide
from include.cvmfs.commit.commit import REFLOG_KEY, read_head, switch
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import CollectionRefused
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Reflog, RefType
from include.cvmfs.format.hashes import CERTIFICATE, hash_bytes
from include.cvmfs.format.keys import generate_repository_key
from include.cvmfs.format.objects import compress
from include.cvmfs.revision.repository import ManifestVerifier
from include.gateway.errors import GatewayUnreachable
from include.gateway.service.commits import ownership
from include.site.collecting import require_sole_writer
from tests.fakes.collecting import FQRN, START, Place, signer
from tests.fakes.refused import refused


@dataclass
class OneSite:
    """A site of one repository, whose gateway is a stock one, ours, or away (None)."""

    place: Place
    config: Path
    ours: bool | None = True
    settings: Any = field(init=False)

    def __post_init__(self) -> None:
        self.repository = SimpleNamespace(fqrn=FQRN, reflog_checksum=None)
        self.settings = SimpleNamespace(repository=lambda _: self.repository)

    url = "http://gateway.example.org"

    def gateway(self, _: str) -> OneSite:
        return self

    def __enter__(self) -> OneSite:
        return self

    def __exit__(self, *_: object) -> None: ...

    def judges_bases(self) -> bool:
        if self.ours is None:
            raise GatewayUnreachable("no answer")
        return self.ours

    def required(self, **more: Any) -> list[str]:
        side = SwitchingSide(self.place.store, FQRN, signer(), ManifestVerifier(signer()))
        return require_sole_writer(self, FQRN, side, signer(), config=self.config, **more)  # type: ignore[arg-type]

    def reason(self) -> str:
        with refused(CollectionRefused, fqrn=FQRN) as found:
            self.required()
        return str(found.value)


@pytest.fixture
def site(tmp_path: Path) -> OneSite:
    place = Place(tmp_path / "work")
    place.publish("/a", {"f": b"1"})
    return OneSite(place, tmp_path / "repositories.d")


def configured(site: OneSite, upstream: str, kind: str = "stratum0") -> None:
    (site.config / FQRN).mkdir(parents=True)
    text = f"CVMFS_REPOSITORY_NAME={FQRN}\nCVMFS_REPOSITORY_TYPE={kind}\nCVMFS_UPSTREAM_STORAGE={upstream}\n"
    (site.config / FQRN / "server.conf").write_text(text)


def certified(site: OneSite, when: int, *, own: bool = False) -> None:
    """Put a certificate into the reflog, of another key unless `own`."""
    key = signer() if own else generate_repository_key(FQRN, START)
    data = compress(key.certificate_pem)
    name = hash_bytes(data, suffix=CERTIFICATE)
    site.place.store.put(name.key, data)
    reflog = Reflog.load(site.place.store.get(REFLOG_KEY))
    reflog.add(name, RefType.CERTIFICATE, when)
    site.place.store.put(REFLOG_KEY, reflog.to_bytes())


def test_a_repository_of_our_gateway_alone_may_be_collected(site: OneSite) -> None:
    assert site.required() == []
    configured(site, "gw,/srv/cvmfs,http://localhost:4929/api/v1")
    assert site.required() == [], "a stock publisher through a gateway"


def test_the_checksum_that_cvmfs_server_needs_is_a_sign_of_it(site: OneSite) -> None:
    site.repository.reflog_checksum = Path("/var/spool/cvmfs/x/reflog.chksum")
    assert "`reflog_checksum`" in site.reason()


@pytest.mark.parametrize("upstream", ["local,/srv/cvmfs/x/data/txn,/srv/cvmfs/x", "S3,/var/spool/cvmfs/x/tmp,x@/s3"])
def test_a_repository_that_cvmfs_server_of_this_machine_writes_to_is_named(site: OneSite, upstream: str) -> None:
    configured(site, upstream)
    assert str(site.config / FQRN / "server.conf") in site.reason()


def test_a_stratum_1_of_this_machine_writes_into_its_own_storage(site: OneSite) -> None:
    configured(site, "local,/srv/cvmfs/x/data/txn,/srv/cvmfs/x", kind="stratum1")
    assert site.required() == []


def test_a_stock_gateway_is_found_by_asking_and_one_that_is_away_publishes_nothing(site: OneSite) -> None:
    site.ours = None
    assert site.required() == []
    site.ours = False
    assert "is a stock gateway" in site.reason()


def test_a_gateway_that_owns_the_repository_is_named(site: OneSite, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = ownership.GatewayOwner("id", "gateway.example.org", 7, "", "2026-11-23")
    now = site.place.now
    monkeypatch.setattr("include.site.collecting.datetime", SimpleNamespace(now=lambda _: now))
    site.place.store.put(ownership.KEY, owner.format())
    assert "process 7 on gateway.example.org" in site.reason()
    now += timedelta(minutes=2)
    assert site.required() == [], "it is not renewed: its process is dead"


def test_a_manifest_signed_by_another_key_since_the_last_collection_is_named(site: OneSite) -> None:
    certified(site, site.place.seconds - 10)
    assert site.required() == [], "before the first collection only the manifest counts"
    site.place.collect()
    ended = site.place.seconds
    certified(site, ended - 1)
    assert site.required() == [], "before the last collection"
    certified(site, ended + 1, own=True)
    assert site.required() == [], "our own"
    certified(site, ended + 2)
    assert "not that of this machine's key" in site.reason()


def test_the_manifest_of_another_key_is_named_also_before_the_first_collection(site: OneSite) -> None:
    store, now = site.place.store, site.place.seconds
    head = read_head(store, FQRN)
    root = Edit(CatalogCache(store), head.manifest.root).finish(now)
    switch(store, head, root, signer=generate_repository_key(FQRN, START), now=now)
    trusted = SimpleNamespace(require=lambda *_, **__: None)  # a whitelist lists both
    side = SwitchingSide(store, FQRN, signer(), trusted)  # type: ignore[arg-type]
    with refused(CollectionRefused) as found:
        require_sole_writer(site, FQRN, side, signer(), config=site.config)  # type: ignore[arg-type]
    assert str(site.place.manifest().certificate) in str(found.value)


def test_a_certificate_that_cannot_be_read_is_named(site: OneSite) -> None:
    site.place.collect()
    reflog = Reflog.load(site.place.store.get(REFLOG_KEY))
    reflog.add(hash_bytes(b"lost", suffix=CERTIFICATE), RefType.CERTIFICATE, site.place.seconds + 1)
    site.place.store.put(REFLOG_KEY, reflog.to_bytes())
    assert "cannot be read" in site.reason()


def test_it_may_be_accepted_with_a_reason_which_the_report_repeats(site: OneSite) -> None:
    site.ours = False
    site.repository.reflog_checksum = Path("/var/spool/cvmfs/x/reflog.chksum")
    (note,) = site.required(accept="cvmfs_server is only used to check")
    assert "only used to check" in note
    assert "is a stock gateway" in note
