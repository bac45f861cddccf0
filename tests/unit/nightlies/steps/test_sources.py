"""Sources of artifacts: a file where one is announced, and no store but the slot's."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from include.nightlies.errors import (
    SOURCE_AMBIGUOUS,
    ArtifactDirectory,
    BadIndex,
    BadIndexKey,
    BuildMissing,
    SourceNotAllowed,
)
from include.nightlies.rules.index import MAX_INDEX_BYTES, public_key, require_signature
from include.nightlies.steps.sources import LOOKS, index_version, locate, opened, read_again, read_index
from include.nightlies.steps.values import Item
from include.settings.load import load
from include.settings.prepare import ArtifactLimits
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.builds import Build, tree
from tests.fakes.plainsite import plain_site
from tests.fakes.refused import refused

DATA = tree({"file": b"whole"})
DAY = date(2026, 11, 21)
INDEX = b'{"format": 1, "slot": "main", "build_id": "b1", "date": "2026-11-21", "complete": true, "artifacts": []}'
INDEX_KEY = "main/2026-11-21/index.json"
BUILDER = ed25519.Ed25519PrivateKey.generate()


def written(folder: Path, **blocks: object) -> Site:
    """The site of a configuration file with these blocks."""
    (folder / "site.yaml").write_text(json.dumps({"ledger": f"sqlite:///{folder}/ledger.db", **blocks}))
    login = {"AIRFLOW_CONN_STORE": '{"conn_type": "object_store", "login": "k", "password": "s"}'}
    return Site(load(folder / "site.yaml"), EnvSecrets(login))


@pytest.fixture
def on_site(tmp_path: Path) -> Site:
    """A slot whose store has another store inside it, and a third beside it."""
    stores = {name: {"url": f"file://{tmp_path}/{name}"} for name in ("builds", "builds/inner", "other")}
    repository = {"store": "other", "public_url": "http://127.0.0.1:1", "public_key": "k.pub", "gateway": "gateway"}
    return written(
        tmp_path,
        stores={name.replace("/", "-"): settings for name, settings in stores.items()},
        repositories={"nights.example.org": repository},
        slots={"main": {"repository": "nights.example.org", "store": "builds"}},
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the path of the index of the day."""
    found = tmp_path / "builds" / INDEX_KEY
    found.parent.mkdir(parents=True)
    return found


@pytest.fixture
def signed(tmp_path: Path) -> Site:
    """A slot that believes the builder's key, on a folder."""
    return plain_site(tmp_path, index_signature={"public_key": str(pem(tmp_path / "builder.pem", BUILDER))})


def item(on_site: Site, key: str, store: str = "builds") -> Item:
    url = f"{on_site.settings.store(store).url}/{key}"
    return Item("A/x", "/d", url, sha256="ab" * 32, size=len(DATA), store="builds")


def directory(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "evil.sh").write_text("echo")


def test_a_directory_is_read_if_it_is_published_by_hand_and_not_in_the_place_of_a_file(
    on_site: Site, tmp_path: Path
) -> None:
    directory(tmp_path / "builds" / "a.tar.gz")
    for unknown in ((), ("size",), ("sha256",)):
        announced = replace(item(on_site, "a.tar.gz"), **dict.fromkeys(unknown))  # type: ignore[arg-type]
        with refused(ArtifactDirectory, artifact=announced.name):
            opened(on_site, announced, ArtifactLimits())
    by_hand = Item("/d", "/d", f"file://{tmp_path}/builds/a.tar.gz")
    assert {entry.path for entry, _ in opened(on_site, by_hand, ArtifactLimits()).entries()} == {"", "evil.sh"}


def test_an_artifact_is_read_from_the_store_of_its_slot_and_from_no_other(on_site: Site, tmp_path: Path) -> None:
    elsewhere = item(on_site, "a.tar.gz", store="other")
    with refused(SourceNotAllowed, source=elsewhere.source):
        opened(on_site, elsewhere, ArtifactLimits())
    on_site.store("builds").put("inner/a.tar.gz", DATA)
    opened(on_site, item(on_site, "inner/a.tar.gz"), ArtifactLimits())
    looks = [on_site.store(name).counters.heads for name in ("builds", "builds-inner")]
    assert looks == [1, 0], "read with the login of another store"


def test_an_index_that_names_a_file_of_another_store_has_that_artifact_rejected(on_site: Site, tmp_path: Path) -> None:
    build = Build("2026-11-21").add("A", "x", DATA).add("B", "x", DATA, url=f"file://{tmp_path}/other/b.tar.gz")
    build.store_in(on_site.store("builds"))
    index, _ = read_index(on_site, on_site.settings.slot("main"), date(2026, 11, 21))
    assert [artifact.name for artifact in index.artifacts] == ["A/x"]
    assert "outside the store of the index" in index.rejected[0].reason


def test_a_source_that_two_stores_may_have_is_refused_with_their_names(tmp_path: Path) -> None:
    east, west = (
        {"url": "s3://builds", "connection": "store", "endpoint": f"http://{name}.example.org"}
        for name in ("east", "west")
    )
    inner = {**west, "url": "s3://builds/inner"}
    on_two = written(tmp_path, stores={"east": east, "west": west, "inner": inner, "again": inner})
    with refused(SOURCE_AMBIGUOUS) as refusal:
        locate(on_two, "s3://builds/a.tar.gz")
    assert "stores east and west" in str(refusal.value)
    assert locate(on_two, "s3://builds/a.tar.gz", "east")[1] == "a.tar.gz"
    assert locate(on_two, "s3://builds/inner/a.tar.gz")[1] == "a.tar.gz"


def test_a_directory_in_the_place_of_an_index_is_no_build(on_site: Site, place: Path) -> None:
    place.mkdir()
    with refused(BuildMissing, slot="main", wanted=DAY):
        read_index(on_site, on_site.settings.slot("main"), DAY)


@pytest.mark.slow
def test_of_an_endless_index_no_more_is_read_than_an_index_may_have(on_site: Site, place: Path) -> None:
    place.touch()
    os.truncate(place, 1 << 40)  # sparse: takes no room
    store = on_site.store("builds")
    with refused(BadIndex):
        read_index(on_site, on_site.settings.slot("main"), DAY)
    assert store.counters.bytes_got <= MAX_INDEX_BYTES + (1 << 20)


@pytest.mark.parametrize(
    "half",
    [INDEX[:-20], b"", INDEX + INDEX, INDEX + b"\0" * 512, INDEX[: len(INDEX) // 2] + b"\0" * (len(INDEX) // 2)],
    ids=["truncated", "empty", "appended to", "preallocated", "half of it zeros"],
)
def test_an_index_that_is_just_written_is_looked_at_again_and_then_taken_or_refused_whole(
    on_site: Site, place: Path, half: bytes
) -> None:
    slot, waited = on_site.settings.slot("main"), list[float]()

    def then(data: bytes) -> Callable[[float], None]:
        def pause(seconds: float) -> None:
            waited.append(seconds)
            place.write_bytes(data)

        return pause

    place.write_bytes(half)
    assert read_again(on_site, slot, DAY, pause=then(INDEX))[0].build_id == "b1"
    assert len(waited) == 1
    place.write_bytes(half)
    with pytest.raises(BadIndex):
        read_again(on_site, slot, DAY, pause=then(half))
    assert len(waited) == LOOKS


def pem(path: Path, key: object) -> Path:
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))  # type: ignore[attr-defined]
    return path


@pytest.mark.parametrize("form", [bytes, base64.b64encode, base64.encodebytes], ids=["raw", "base64", "in lines"])
def test_a_signature_of_the_builder_is_taken_in_either_form(tmp_path: Path, form: object) -> None:
    key = public_key(pem(tmp_path / "key.pem", BUILDER))
    require_signature(INDEX, form(BUILDER.sign(INDEX)), key, file="index.json")  # type: ignore[operator]


def test_an_rsa_signature_is_taken(tmp_path: Path) -> None:
    builder = rsa.generate_private_key(65537, 2048)
    key = public_key(pem(tmp_path / "key.pem", builder))
    require_signature(INDEX, builder.sign(INDEX, PKCS1v15(), SHA256()), key, file="index.json")
    with refused(BadIndex, file="index.json"):
        require_signature(INDEX + b" ", builder.sign(INDEX, PKCS1v15(), SHA256()), key, file="index.json")


@pytest.mark.parametrize(
    "signature",
    [
        b"", b"no signature", BUILDER.sign(INDEX + b" "), BUILDER.sign(INDEX)[:-1], b"x" * 20_000,
        ed25519.Ed25519PrivateKey.generate().sign(INDEX),
    ],
    ids=["empty", "text", "of other bytes", "cut", "too long", "of another key"],
)  # fmt: skip
def test_anything_else_is_refused(tmp_path: Path, signature: bytes) -> None:
    key = public_key(pem(tmp_path / "key.pem", BUILDER))
    with refused(BadIndex, file="index.json"):
        require_signature(INDEX, signature, key, file="index.json")


def test_a_key_that_is_none_is_refused_by_its_path(tmp_path: Path) -> None:
    weak, curve = rsa.generate_private_key(65537, 1024), ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "text").write_text("no key")
    for path in (tmp_path / "absent", tmp_path / "text", pem(tmp_path / "weak", weak), pem(tmp_path / "curve", curve)):
        with refused(BadIndexKey, path=str(path)):
            public_key(path)


def test_a_slot_with_a_key_reads_only_what_is_signed(signed: Site) -> None:
    slot, store = signed.settings.slot("main"), signed.store("builds")
    store.put(INDEX_KEY, INDEX)
    with refused(BadIndex):
        read_index(signed, slot, DAY)
    unsigned = index_version(signed, slot, DAY)
    store.put(f"{INDEX_KEY}.sig", BUILDER.sign(INDEX))
    assert read_index(signed, slot, DAY)[0].build_id == "b1"
    assert index_version(signed, slot, DAY) != unsigned, "a watch looks again when only the signature came"
    store.put(INDEX_KEY, INDEX.replace(b"b1", b"b2"))
    with refused(BadIndex):
        read_index(signed, slot, DAY)


def test_an_index_that_is_written_at_this_moment_is_looked_at_again(signed: Site) -> None:
    slot, store = signed.settings.slot("main"), signed.store("builds")
    store.put(INDEX_KEY, INDEX)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        store.put(f"{INDEX_KEY}.sig", BUILDER.sign(INDEX))

    assert read_again(signed, slot, DAY, pause=pause)[0].build_id == "b1"
    assert len(waited) == 1
