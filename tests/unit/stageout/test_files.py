"""What is refused before anything is recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.settings.stageout import StageoutSettings
from include.stageout.errors import FILE_REFUSED, OUTSIDE_NAME_SPACE
from include.stageout.files import MAX_FILES, MAX_SIZE, check_catalogue, check_name_space, check_request, check_sources
from tests.fakes.refused import refused
from tests.fakes.transferloop import mock_site
from tests.fakes.transfers import file_to_transfer, request_of

SITES = {name: mock_site(name) for name in ("pisa", "bari")}


def test_what_can_be_transferred_is_taken():
    full = {"size": 0, "checksum": "adler32:0a1b2c3d", "dataset": "/a/b/USER", "user_job": "17", "activity": "analysis"}
    check_request(request_of(3, **full), SITES)
    check_request(request_of(1, size=MAX_SIZE, checksum="crc32c:00000000"), SITES)


@pytest.mark.parametrize(
    "fields",
    [
        {"source": "rome"}, {"destination": "rome"}, {"source_name": "/store/../etc"},
        {"destination_name": "/store/a\n"}, {"destination_name": "/store/a\ud800"}, {"source_name": "//host/a"},
        {"source_name": "host/a"}, {"destination_name": "file:/etc/passwd"}, {"destination_name": "https://"},
        {"dataset": "\ud800"}, {"destination_name": "https://169.254.169.254/a"},
        {"destination_name": "/a", "source_name": "/a", "source": "bari"}, {"size": -1}, {"size": MAX_SIZE + 1},
        {"checksum": "md5:00"}, {"activity": ""}, {"activity": "日本"}, {"activity": "€"},
        {"source_name": "/store/temp/user/ann/two words"}, {"dataset": " padded"}, {"dataset": "d" * 513},
        {"user_job": "two\nlines"}, {"user_job": "j" * 129},
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_transferred_is_refused_with_its_number(fields):
    request = request_of(2)
    with refused(FILE_REFUSED) as caught:
        check_request(replace(request, files=(*request.files, file_to_transfer(**fields))), SITES)
    assert caught.value.subject == "file 2"


@pytest.mark.parametrize(
    ("spelling", "checksum"),
    [
        ("adler32:0a1b2c3d", "adler32:0a1b2c3d"),
        ("adler32:0A1B2C3D", "adler32:0a1b2c3d"),
        ("ADLER32:A1B2C3D", "adler32:0a1b2c3d"),
        ("Adler32:a1b2c3d", "adler32:0a1b2c3d"),
        ("adler32:1", "adler32:00000001"),
        ("CRC32C:E3069283", "crc32c:e3069283"),
        ("crc32c:0", "crc32c:00000000"),
    ],
)
def test_every_spelling_of_a_checksum_is_the_same_request(spelling, checksum):
    request = request_of(1, checksum=spelling)
    check_request(request, SITES)
    assert request.files[0].checksum == checksum
    spelled = replace(request, files=(replace(request.files[0], checksum=checksum),))
    assert request.digest == spelled.digest


FAULTS = {
    "has no algorithm": ("", "0a1b2c3d"),
    "is not one of adler32 or crc32c": (
        "md5:d41d8cd98f00b204", "md5:d41d8cd98f00b204e9800998ecf8427e", "crc32:0a1b2c3d", " adler32:0a1b2c3d",
    ),
    "1 to 8 hexadecimal digits": (
        "adler32:", "adler32:00a1b2c3d", "adler32:123456789", "adler32:000000000", "adler32:0x1b2c3d",
        "adler32:0a1b2c3g", "adler32:0a1b2c3d\n", "adler32:٠a1b2c3d", "crc32c:123456789",
    ),
    "is zero": ("adler32:00000000", "ADLER32:0"),
}  # fmt: skip


@pytest.mark.parametrize(("checksum", "fault"), [(text, fault) for fault, texts in FAULTS.items() for text in texts])
def test_what_is_no_checksum_is_refused_with_its_fault(checksum, fault):
    with refused(FILE_REFUSED, subject="file 0") as caught:
        check_request(request_of(1, checksum=checksum), SITES)
    assert fault in caught.value.what


def test_a_url_that_is_too_long_for_fts_is_refused_and_a_missing_rule_is_not():
    rules = [{"prefix": "/", "url": f"mock://bari.example.org/{'p' * 200}"}]
    long = {"destination_name": f"/{'d' * 900}"}
    with refused(FILE_REFUSED, subject="file 0"):
        check_request(request_of(1, **long), {**SITES, "bari": mock_site("bari", third_party=rules)})
    check_request(request_of(1, activity="Größe", **long), {**SITES, "bari": mock_site("bari", third_party=[])})


def test_a_request_asks_for_a_destination_once_and_has_a_limit():
    request, file = request_of(2), file_to_transfer()
    other = file_to_transfer(destination_name=request.files[0].destination_name)
    for files, subject in (((*request.files, other), "file 2"), ((), "the request"),
                           ((file,) * (MAX_FILES + 1), "the request")):  # fmt: skip
        with refused(FILE_REFUSED, subject=subject):
            check_request(replace(request, files=files), SITES)


@pytest.mark.parametrize("field", ["owner", "key", "workflow"])
@pytest.mark.parametrize("text", ["", "x" * 129, "a\0b", " a"])
def test_a_request_names_its_owner_key_and_workflow(field, text):
    with refused(FILE_REFUSED, subject="the request"):
        check_request(replace(request_of(), **{field: text}), SITES)


def test_the_same_files_have_the_same_digest_and_others_another_one():
    request = request_of(2)
    assert replace(request, key="other").digest == request.digest
    assert replace(request, workflow="other").digest != request.digest
    changed = replace(request.files[0], size=1)
    assert replace(request, files=(changed, request.files[1])).digest != request.digest


def test_a_user_whose_name_another_has_at_the_sites_does_not_get_its_folders():
    identities = {"robert": {"name": "Robert", "user": "ann"}}
    request = request_of(1, destination_name="/store/user/ann/a")
    with refused(OUTSIDE_NAME_SPACE):
        check_name_space(request, StageoutSettings.model_validate({"identities": identities}))
    check_name_space(replace(request, owner="robert"), StageoutSettings.model_validate({"identities": identities}))
    both = {**identities, "ann": {"name": "Ann"}}
    check_name_space(request, StageoutSettings.model_validate({"identities": both}))


@pytest.mark.parametrize(
    ("source", "site", "taken"),
    [
        ("/store/temp/user/ann/f", {}, True),
        ("/store/temp/user/bob/f", {}, False),
        ("/store/temp/user/annabel/f", {}, False),
        ("/store/temp/group/f", {}, False),
        ("/store/data/f", {}, True),
        ("/store/temp/user/bob/f", {"shared_temporary": True}, True),
        ("/store/temp/user/bob/f", {"credential": "proxy"}, True),
        ("/store/temp/user/bob/f", {"temporary": None, "clean": False}, True),
    ],
)
def test_a_source_in_a_temporary_area_is_in_the_users_own_folder(source, site, taken):
    sites = {**SITES, "pisa": mock_site("pisa", **{"temporary": "/store/temp", **site})}
    request, settings = request_of(1, source_name=source), StageoutSettings()
    if taken:
        check_sources(request, settings, sites)
        return
    with refused(OUTSIDE_NAME_SPACE, subject="file 0") as caught:
        check_sources(request, settings, sites)
    assert "/store/temp/user/ann" in caught.value.what


RUCIO = {"kind": "rucio", "connection": "rucio"}


@pytest.mark.parametrize(
    ("fields", "request_fields", "fault"),
    [
        ({}, {"dataset": "/A/b/USER"}, None),
        ({"kind": "ledger", "connection": None}, {"dataset": "/A/b c#d/USER"}, None),
        ({}, {"dataset": None, "destination_name": "/store/user/ann/a=b"}, None),
        ({}, {"dataset": "/A/b", "destination_name": "/store/user/ann/a=b"}, "characters that the catalogue"),
        ({}, {"dataset": "/A/b", "destination_name": f"/store/user/ann/{'a' * 240}"}, "longer than the 250"),
        ({}, {"dataset": "/A/b#1"}, "characters that the catalogue"),
        ({}, {"dataset": "x" * 251}, "longer than the 250"),
        ({"dataset": "{dataset}.{block}"}, {"dataset": "x" * 230}, "longer than the 250"),
        ({"names": ".*", "longest_name": 500}, {"dataset": "/A/b#1" + "x" * 300}, None),
        ({}, {"dataset": "/A", "owner": "a" * 21}, "longer than the 25"),
        ({}, {"dataset": "/A", "owner": "a+b"}, "characters that the catalogue"),
    ],
)
def test_what_the_catalogue_cannot_have_is_refused_with_the_request(fields, request_fields, fault):
    settings = StageoutSettings.model_validate({"catalogue": {**RUCIO, **fields}})
    request = request_of(1, **request_fields)
    if fault is None:
        check_catalogue(request, settings)
        return
    with refused(FILE_REFUSED, subject="file 0") as caught:
        check_catalogue(request, settings)
    assert fault in caught.value.what
