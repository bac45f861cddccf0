"""Hashes are those of the stock tools, in digits, in object names and of paths."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import Algorithm, DigestSet, ObjectHash, hash_bytes, hash_of_key, identity, path_hash
from include.cvmfs.format.objects import compress
from tests.fakes.refused import refused

EMPTY, HELLO = compress(b""), compress(b"hello\n")
KNOWN = [
    (EMPTY, Algorithm.SHA1, "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78"),
    (EMPTY, Algorithm.RMD160, "fcdb20b894f31f1306d56294c049ca7293dde0fc"),
    (EMPTY, Algorithm.SHAKE128, "28d94b83b7229b331fc601362b8e272e02665122"),
    (HELLO, Algorithm.SHA1, "5798f7f4ca7585d850eea64610a1f73d8f8de7a3"),
    (HELLO, Algorithm.SHAKE128, "9771532cda37f736dff5b6609ddae2f44c6407f2"),
]
hashes = st.builds(
    ObjectHash, st.binary(min_size=20, max_size=20), st.sampled_from(Algorithm), st.sampled_from(("", *"CXHMLTP"))
)


@pytest.mark.parametrize(("stored", "algorithm", "digits"), KNOWN)
def test_stored_bytes_have_the_hashes_of_stock_tools(stored: bytes, algorithm: Algorithm, digits: str) -> None:
    found = hash_bytes(stored, algorithm, "C")
    assert found.digest == bytes.fromhex(digits)
    assert (found.algorithm, found.suffix) == (algorithm, "C")


def test_text_and_key_carry_the_algorithm_before_the_suffix() -> None:
    found = hash_bytes(EMPTY, Algorithm.SHAKE128, "P")
    assert str(found) == "28d94b83b7229b331fc601362b8e272e02665122-shake128"
    assert found.text == "28d94b83b7229b331fc601362b8e272e02665122-shake128P"
    assert found.key == "data/28/d94b83b7229b331fc601362b8e272e02665122-shake128P"
    assert hash_bytes(EMPTY).key == "data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78"
    assert (found.is_null, ObjectHash(bytes(20)).is_null) == (False, True)


@pytest.mark.parametrize(
    ("path", "pair"),
    [
        ("", (338333539836370388, 9098107892288553193)),
        ("/foo", (5745132282796244766, -5819618580357280866)),
        ("/foo/bar", (-2822516800166431715, 9048809318629099454)),
    ],
)
def test_path_hashes_are_signed_little_endian_halves_of_an_md5(path: str, pair: tuple[int, int]) -> None:
    assert path_hash(path) == pair


@given(hashes)
def test_what_is_written_is_read_back(one: ObjectHash) -> None:
    assert ObjectHash.parse(one.text) == one
    assert ObjectHash.parse(str(one), suffix=one.suffix) == one
    assert ObjectHash.parse(one.text, suffix="X") == one.with_suffix("X")
    assert hash_of_key(one.key) == one


@given(st.text(alphabet=string.hexdigits + "-rmdshake128CXHMPZ \n/", max_size=60))
def test_any_other_text_is_refused_or_is_the_text_of_what_was_read(text: str) -> None:
    try:
        found = ObjectHash.parse(text)
    except FormatError:
        return
    assert found.text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b7",
        "E8EC3D88B62EBF526E4E5A4FF6162A3AA48A6B78",
        "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78\n",
        "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78-md5",
        "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78Q",
        "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78C-shake128",
    ],
)
def test_what_is_no_hash_is_refused(text: str) -> None:
    with refused(FormatError, what="hash"):
        ObjectHash.parse(text)


def test_algorithms_have_the_names_of_the_configuration() -> None:
    assert [Algorithm.named(word) for word in ("sha1", "rmd160", "shake128")] == list(Algorithm)
    with refused(FormatError, what="hash algorithm"):
        Algorithm.named("md5")


@pytest.mark.parametrize("key", ["", "data/ab", "data/ab/c", ".cvmfspublished", f"data/ab/{'c' * 38}CC", "data/AB/x"])
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(FormatError):
        hash_of_key(key)


@given(st.sets(hashes, max_size=30), st.data())
def test_a_set_of_identities_adds_and_discards(names: set[ObjectHash], data: st.DataObject) -> None:
    all_of_them, digests = {identity(one) for one in names}, DigestSet()
    for one in all_of_them:
        assert one not in digests
        assert digests.add(one)
        assert not digests.add(one)
    assert len(digests) == len(all_of_them)
    gone = data.draw(st.sets(st.sampled_from(sorted(all_of_them)))) if all_of_them else set()
    for one in [*gone, *gone, b"\7" * 20]:
        digests.discard(one)
    assert len(digests) == len(all_of_them - gone - {b"\7" * 20})
    assert all((one in digests) is (one not in gone) for one in all_of_them - {b"\7" * 20})
    assert b"short" not in digests


def test_a_digest_set_is_not_misled_by_digests_that_overlap() -> None:
    digests = DigestSet([b"ab" + b"x" * 17 + b"y", b"ab" + b"z" * 18])
    assert b"ab" + b"x" * 16 + b"yz" not in digests
    assert b"ab" + b"z" * 18 in digests
