"""Signatures of build indices: whose they are, in which form, and what is refused."""

from __future__ import annotations

import base64
from datetime import date
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from include.nightlies.errors import BadIndex, BadIndexKey
from include.nightlies.rules.index import public_key, require_signature
from include.nightlies.steps.sources import index_version, read_again, read_index
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.refused import refused

DATA = b'{"format": 1, "slot": "main", "build_id": "b1", "date": "2026-11-21", "complete": true, "artifacts": []}'
BUILDER = ed25519.Ed25519PrivateKey.generate()
DAY = date(2026, 11, 21)


def pem(path: Path, key: object) -> Path:
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))  # type: ignore[attr-defined]
    return path


@pytest.mark.parametrize("form", [bytes, base64.b64encode, base64.encodebytes], ids=["raw", "base64", "in lines"])
def test_a_signature_of_the_builder_is_taken_in_either_form(tmp_path: Path, form: object) -> None:
    key = public_key(pem(tmp_path / "key.pem", BUILDER))
    require_signature(DATA, form(BUILDER.sign(DATA)), key, file="index.json")  # type: ignore[operator]


def test_an_rsa_signature_is_taken(tmp_path: Path) -> None:
    builder = rsa.generate_private_key(65537, 2048)
    key = public_key(pem(tmp_path / "key.pem", builder))
    require_signature(DATA, builder.sign(DATA, PKCS1v15(), SHA256()), key, file="index.json")
    with refused(BadIndex, file="index.json"):
        require_signature(DATA + b" ", builder.sign(DATA, PKCS1v15(), SHA256()), key, file="index.json")


@pytest.mark.parametrize(
    "signature",
    [
        b"", b"no signature", BUILDER.sign(DATA + b" "), BUILDER.sign(DATA)[:-1], b"x" * 20_000,
        ed25519.Ed25519PrivateKey.generate().sign(DATA),
    ],
    ids=["empty", "text", "of other bytes", "cut", "too long", "of another key"],
)  # fmt: skip
def test_anything_else_is_refused(tmp_path: Path, signature: bytes) -> None:
    key = public_key(pem(tmp_path / "key.pem", BUILDER))
    with refused(BadIndex, file="index.json"):
        require_signature(DATA, signature, key, file="index.json")


def test_a_key_that_is_none_is_refused_by_its_path(tmp_path: Path) -> None:
    weak, curve = rsa.generate_private_key(65537, 1024), ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "text").write_text("no key")
    for path in (
        tmp_path / "absent",
        tmp_path / "text",
        pem(tmp_path / "weak", weak),
        pem(tmp_path / "curve", curve),
    ):
        with refused(BadIndexKey, path=str(path)):
            public_key(path)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A slot that believes the builder's key, on a folder."""
    pem(tmp_path / "builder.pem", BUILDER)
    file = tmp_path / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{tmp_path}/ledger.db"\n'
        f'stores: {{builds: {{url: "file://{tmp_path}/builds"}}}}\n'
        "repositories:\n  nights.example.org:\n    store: builds\n    public_url: http://127.0.0.1:1\n"
        "    public_key: nights.pub\n    gateway: gateway\n"
        "slots: {main: {repository: nights.example.org, store: builds, "
        f'index_signature: {{public_key: "{tmp_path}/builder.pem"}}}}}}\n'
    )
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(file))
    (tmp_path / "builds").mkdir()
    return Site(load(), EnvSecrets({}))


def test_a_slot_with_a_key_reads_only_what_is_signed(site: Site) -> None:
    slot, store = site.settings.slot("main"), site.store("builds")
    store.put("main/2026-11-21/index.json", DATA)
    with refused(BadIndex):
        read_index(site, slot, DAY)
    unsigned = index_version(site, slot, DAY)
    store.put("main/2026-11-21/index.json.sig", BUILDER.sign(DATA))
    assert read_index(site, slot, DAY)[0].build_id == "b1"
    assert index_version(site, slot, DAY) != unsigned, "a watch looks again when only the signature came"
    store.put("main/2026-11-21/index.json", DATA.replace(b"b1", b"b2"))
    with refused(BadIndex):
        read_index(site, slot, DAY)


def test_an_index_that_is_written_at_this_moment_is_looked_at_again(site: Site) -> None:
    slot, store = site.settings.slot("main"), site.store("builds")
    store.put("main/2026-11-21/index.json", DATA)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        store.put("main/2026-11-21/index.json.sig", BUILDER.sign(DATA))

    assert read_again(site, slot, DAY, pause=pause)[0].build_id == "b1"
    assert len(waited) == 1
