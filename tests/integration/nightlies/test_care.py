"""What `repository_care` does for a repository: it warns in time, prunes by rule, and names and notes damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.create import resign
from include.cvmfs.errors import KeyFileError, WhitelistExpired
from include.cvmfs.format import whitelist as whitelists
from include.nightlies.errors import NotWell
from include.nightlies.records import damage
from include.nightlies.steps.care import check_quickly, look_at_whitelist, prune_tags, remove_unfinished
from include.site.site import Site
from tests.fakes.apart import change
from tests.fakes.attempts import attempt
from tests.fakes.commits import commit_change
from tests.fakes.refused import refused
from tests.site import FQRN, MASTER, SIGNER, Deployment


def clock() -> datetime:
    return datetime.now(UTC)


class Cared(Deployment):
    """Three revisions with a tag each; the signing key is where the configuration says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.with_repository().with_options(gateway_kind="embedded").configure(gateway={"keys": f"{folder}/keys"})
        for number in (1, 2, 3):
            old, new = change(self.store, FQRN, f"/{number}")
            commit_change(
                self.store, fqrn=FQRN, signer=SIGNER, lease_path=f"/{number}", old_root=old, new_root=new,
                now=int(clock().timestamp()), tag=NewTag(f"nightly-{number}"),
            )  # fmt: skip

    def __call__(self, **care: Any) -> Site:
        return self.with_options(care=care).site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Cared]:
    site = Cared(tmp_path)
    yield site
    site.close()


def tags(on_site: Site) -> set[str]:
    return {tag.name for tag in on_site.head(FQRN).tags()}


ALL = {"trunk", "trunk-previous", "nightly-1", "nightly-2", "nightly-3"}


def test_a_whitelist_that_lasts_is_said_and_one_that_ends_soon_is_a_problem_with_its_cure(site: Cared) -> None:
    assert 29 < look_at_whitelist(site(), attempt(), FQRN) <= 30
    with pytest.raises(NotWell, match=r"expires in (29|30)\.\d days, .* nightshift repo resign"):
        look_at_whitelist(site(whitelist_days=60), attempt(), FQRN)


def test_a_whitelist_that_has_ended_is_refused(site: Cared) -> None:
    resign(site.store, FQRN, MASTER, now=clock() - timedelta(days=9), validity=timedelta(days=1))
    before = site.store.get(whitelists.KEY)
    with refused(WhitelistExpired, fqrn=FQRN):
        look_at_whitelist(site(), attempt(), FQRN)
    assert site.store.get(whitelists.KEY) == before


def test_without_a_rule_no_tag_is_looked_at(site: Cared) -> None:
    assert prune_tags(site(), attempt(), FQRN, dry_run=False) is None


@pytest.mark.parametrize(
    ("apply", "dry_run", "goes"), [(False, None, False), (True, None, True), (True, True, False), (False, False, True)]
)
def test_tags_go_by_the_rule_if_it_or_the_run_says_so(
    site: Cared, apply: bool, dry_run: bool | None, goes: bool
) -> None:
    on_site = site(tags={"keep": 1, "match": "nightly-*", "apply": apply})
    pruned = prune_tags(on_site, attempt(), FQRN, dry_run=dry_run)
    assert pruned is not None
    assert pruned.names == ("nightly-2", "nightly-1")
    assert pruned.done is goes
    assert tags(on_site) == (ALL - {"nightly-1", "nightly-2"} if goes else ALL)
    assert check_quickly(on_site, attempt(), FQRN).ok


def test_protected_tags_stay_whatever_the_rule_says(site: Cared) -> None:
    on_site = site(tags={"keep": 1, "match": "nightly-*", "apply": True}, protect_tags=["*-1"])
    prune_tags(on_site, attempt(), FQRN, dry_run=None)
    assert tags(on_site) == ALL - {"nightly-2"}


def test_where_the_signing_key_is_not_no_tag_goes_and_this_is_said(site: Cared, tmp_path: Path) -> None:
    key = tmp_path / "keys" / f"{FQRN}.key"
    key.unlink()
    on_site = site(tags={"keep": 1, "match": "nightly-*", "apply": True})
    with refused(KeyFileError, path=str(key)):
        prune_tags(on_site, attempt(), FQRN, dry_run=None)
    assert tags(on_site) == ALL


def test_what_a_killed_writer_left_is_warned_of_and_removed_unless_it_is_a_dry_run(
    site: Cared, caplog: pytest.LogCaptureFixture
) -> None:
    on_site = site()
    left = Path(site.store.url.removeprefix("file://")) / "data/.~left"
    left.write_bytes(b"half")
    old = (clock() - timedelta(days=2)).timestamp()
    os.utime(left, (old, old))
    assert check_quickly(on_site, attempt(), FQRN).warning_count == 1
    assert "store: 1 unfinished file of 0.0 MB of killed writers" in caplog.text
    assert [one.name for one in remove_unfinished(on_site, attempt(), FQRN, dry_run=True)] == ["data/.~left"]
    assert left.exists()
    remove_unfinished(on_site, attempt(), FQRN, dry_run=False)
    assert not left.exists()
    assert check_quickly(on_site, attempt(), FQRN).warning_count == 0


def test_a_lost_catalog_is_named_and_comes_into_the_ledger(site: Cared) -> None:
    on_site = site()
    report = check_quickly(on_site, attempt(), FQRN)
    assert (report.ok, report.catalogs) == (True, 4)
    lost = on_site.head(FQRN).revision.nested_at("/2")
    assert lost is not None
    key = lost.hash.with_suffix("C").key
    site.store.delete([key])
    with refused(NotWell, repository=FQRN) as told:
        check_quickly(on_site, attempt(), FQRN)
    assert len(told.value.problems) == 1
    assert [(one.key, one.path) for one in damage.of_repository(on_site.ledger, FQRN)] == [(key, "/2")]
