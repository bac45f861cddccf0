"""Sources that may be removed, and all that may not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from include.settings.sites import ChecksumMode
from include.settings.stageout import StageoutSettings
from include.stageout.findings import GIVEN_UP, kept_because, removal_wait
from tests.fakes.places import site
from tests.fakes.transfers import transfer

SETTINGS = StageoutSettings.model_validate({"identities": {"robert": {"name": "b", "user": "bob"}}})
PISA, BARI = site("pisa"), site("bari", clean=False)


def file_of(**fields):
    plain = {"owner": "ann", "source": "pisa", "source_name": "/store/temp/user/ann/a.root", "destination": "bari",
             "destination_name": "/store/user/ann/a.root"}  # fmt: skip
    return transfer(**plain | fields)


def kept(file=None, pisa=PISA, bari=BARI, settings=SETTINGS):
    return kept_because(settings, {"pisa": pisa, "bari": bari}, file or file_of())


def test_a_verified_copy_of_a_users_own_temporary_file_is_enough():
    assert kept() is None
    assert kept(file_of(owner="robert", source_name="/store/temp/user/bob/x/a.root")) is None
    assert kept(file_of(fts="fts_default")) == "a task of a DAG asked for the copy: its source stays"
    elsewhere = StageoutSettings(temporary_name_space="/{user}.tmp")
    assert kept(file_of(source_name="/store/temp/ann.tmp/a"), settings=elsewhere) is None


@pytest.mark.parametrize(
    "name",
    [
        "/store/user/ann/a.root", "/store/temp/a.root", "/store/temporary/user/ann/a.root", "/store/temp/user/ann",
        "/store/temp/user/bob/a.root", "/store/temp/user/anna/a.root", "/store/temp/user/a", "/store/temp",
    ],
)  # fmt: skip
def test_a_file_outside_of_the_users_own_folder_stays(name):
    assert kept(file_of(source_name=name)) is not None


def test_the_owner_and_the_sites_decide_whether_it_is_cleaned():
    for owner in ("bob", "ann/sub", "..", ".", "ann/..", "*"):
        assert kept(file_of(owner=owner, source_name="/store/temp/user/ann/sub/a.root")) is not None
    assert kept(pisa=site("pisa", clean=False)) is not None
    assert kept(pisa=site("pisa", clean=False, temporary=None)) is not None
    assert kept(file_of(source="nowhere")) is not None
    assert kept(file_of(destination="nowhere")) is not None
    by_size = {"checksum": ChecksumMode.NONE, "clean": False}
    assert kept(bari=site("bari", **by_size)) is not None
    assert kept(bari=site("bari", **by_size, clean_on_size=True)) is None
    alias = site("bari", read=PISA.read, write=PISA.write, third_party=PISA.third_party)
    assert kept(file_of(destination_name="/store/temp/user/ann/a.root"), bari=alias) is not None, "one copy, two names"
    assert kept(bari=alias) is None


def test_removals_are_tried_at_growing_times_and_then_given_up():
    waits, tried = [], timedelta()
    while (wait := removal_wait(tried)) is not None:
        waits.append(wait)
        tried += wait
    assert waits == sorted(waits)
    assert 8 <= len(waits) <= 20
    assert GIVEN_UP <= tried <= GIVEN_UP + timedelta(hours=12)
