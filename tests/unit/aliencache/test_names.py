"""Names of a shared cache are told apart as clients make them."""

from __future__ import annotations

import pytest

from include.aliencache.errors import CACHE_FULL, CACHE_READ_ONLY, CACHE_UNUSABLE, refused as error_of
from include.aliencache.names import Breadcrumb, NameKind, is_ours_in_root, kind_in_shard, place_of
from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from tests.fakes.refused import refused

REST = "0123456789abcdef0123456789abcdef012345"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (REST, NameKind.OBJECT),
        (f"{REST}-rmd160", NameKind.OBJECT),
        (f"{REST}-shake128", NameKind.OBJECT),
        (f"{REST}aB3xYz", NameKind.TEMPORARY),
        (f"{REST}-rmd160Q12345", NameKind.TEMPORARY),
        (REST[:-1], NameKind.FOREIGN),
        (REST.upper(), NameKind.FOREIGN),
        (f"{REST}aB3xYzz", NameKind.FOREIGN),
        (f"{REST}\n", NameKind.FOREIGN),
        ("", NameKind.FOREIGN),
    ],
)
def test_what_is_in_a_folder_of_objects(name: str, kind: NameKind) -> None:
    assert kind_in_shard(name) is kind


@pytest.mark.parametrize("name", ["00", "ff", "txn", "quarantaine", ".nightshift", ".cvmfscache", "uuid",
                                  "cvmfschecksum.a.b", "no_nfs_maps.a.b", "dirtab.a.b", "cvmfs_io.a.b"])  # fmt: skip
def test_files_of_clients_in_the_root(name: str) -> None:
    assert is_ours_in_root(name)


@pytest.mark.parametrize("name", ["FF", "100", "pack", "info", "README", "cvmfschecksum.", "data.example.org"])
def test_files_of_others_in_the_root(name: str) -> None:
    assert not is_ours_in_root(name)


def test_a_place_has_no_letter_of_the_kind() -> None:
    name = ObjectHash(bytes(range(20)), Algorithm.RMD160, "C")
    assert place_of(name) == "00/0102030405060708090a0b0c0d0e0f10111213-rmd160"


def test_breadcrumbs_of_old_and_new_clients_are_read() -> None:
    old = Breadcrumb.parse(f"ab{REST}T1700000000")
    assert (str(old.root), old.timestamp, str(old)) == (f"ab{REST}", 1700000000, f"ab{REST}T1700000000")
    assert Breadcrumb.parse(f"ab{REST}T1700000000R17\n") == old
    for text in ("", f"ab{REST}", f"ab{REST}T", f"{REST}T1", f"ab{REST}T1Rx", f"ab{REST}T-1"):
        with refused(FormatError):
            Breadcrumb.parse(text)


@pytest.mark.parametrize(
    ("number", "row"),
    [(28, CACHE_FULL), (122, CACHE_FULL), (30, CACHE_READ_ONLY), (13, CACHE_READ_ONLY), (5, CACHE_UNUSABLE)],
)
def test_an_answer_of_the_file_system_has_its_code(number: int, row: object) -> None:
    assert error_of("/c", OSError(number, "text", "/c/x")).code == row.code  # type: ignore[attr-defined]
