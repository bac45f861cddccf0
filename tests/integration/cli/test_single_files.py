"""Each single file of a repository, lost, empty, cut or garbage: readers name the cure, and the cure mends it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from include.cli.repository.open import open_site
from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY
from include.cvmfs.format import whitelist as whitelists
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, META
from include.cvmfs.format.manifest import Manifest
from include.monitoring.audit import AuditChoice, audit
from include.publishers.errors import PublisherError
from tests.fakes.site import FQRN
from tests.integration.cli.conftest import Commands

REPAIRS = AuditChoice(kind="repair")
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "lost": lambda _: None,
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(byte ^ 0xA5 for byte in data),
}
CURES = {
    "whitelist": f"resign {FQRN}",
    "manifest": f"repair {FQRN} --manifest",
    "reflog": f"repair {FQRN} --reflog",
    "certificate": f"repair {FQRN} --metadata",
    "meta info": f"repair {FQRN} --metadata",
    "tags": f"repair {FQRN} --empty-history",
    "root catalog": f"rollback {FQRN}",
}


def file_of(repo: Commands, name: str) -> Path:
    folder = repo.site.folder / "store" / FQRN
    fixed = {"whitelist": whitelists.KEY, "manifest": MANIFEST_KEY, "reflog": REFLOG_KEY}
    if name in fixed:
        return folder / fixed[name]
    manifest = Manifest.parse((folder / MANIFEST_KEY).read_bytes()).manifest
    hashes = {
        "certificate": (manifest.certificate, CERTIFICATE), "meta info": (manifest.meta, META),
        "tags": (manifest.history, HISTORY), "root catalog": (manifest.root, CATALOG),
    }  # fmt: skip
    named, suffix = hashes[name]
    assert named is not None
    return folder / named.with_suffix(suffix).key


def damage(file: Path, how: str) -> None:
    data = DAMAGES[how](file.read_bytes())
    file.unlink()
    if data is not None:
        file.write_bytes(data)


@pytest.fixture
def published(repo: Commands) -> Commands:
    repo("publish", FQRN, "/sw/v1", repo.tree(), "--tag", "v1")
    repo("publish", FQRN, "/sw/v2", repo.tree("second", new="2"))
    return repo


def others_name_the_cure(published: Commands, name: str) -> None:
    """Creating the repository again and publishing beside a lost file name no other cure, and change nothing."""
    before = sorted(path for path in (published.site.folder / "store").rglob("*") if path.is_file())
    if name == "manifest":
        with pytest.raises(PublisherError) as caught:
            published("create", FQRN)
        assert CURES[name] in str(caught.value)
    else:
        assert CURES[name] in published("create", FQRN, code=1).stderr
    assert sorted(path for path in (published.site.folder / "store").rglob("*") if path.is_file()) == before
    if name not in ("certificate", "tags", "reflog"):  # the gateway knows these, and may store them again
        refused = published("publish", FQRN, "/sw/v3", published.tree("third", more="3"), code=2).stderr
        assert "upload the catalogs again" not in refused
        assert "nightshift repo re" in refused


@pytest.mark.parametrize("damages", [("lost", "garbage"), pytest.param(("empty", "cut"), marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", CURES)
def test_a_single_file_comes_back_by_the_command_that_is_named(
    published: Commands, name: str, damages: tuple[str, str]
) -> None:
    for how in damages:
        before = published.json("info", FQRN)
        damage(file_of(published, name), how)
        if how == "lost":
            others_name_the_cure(published, name)
        seen = published("repair", FQRN, "--dry-run", code=1).stderr
        named = re.fullmatch(r".*; cure: \S*nightshift repo (.*)\n", seen)
        assert named, seen
        assert seen.startswith(name)
        assert named[1] == CURES[name]
        published(*shlex.split(named[1]))
        after = published.json("info", FQRN)
        assert after["revision"] == before["revision"] + (name == "root catalog")
        assert published("cat", FQRN, "/sw/v1/a/one").stdout == "1"
        published("repair", FQRN)
        published.sound()
        if name in ("certificate", "meta info", "reflog"):  # what costs nothing is mended without an option
            damage(file_of(published, name), how)
            acts = len(audit(open_site().ledger, REPAIRS))
            published("repair", FQRN)
            assert len(audit(open_site().ledger, REPAIRS)) == acts + 1
            published.sound()
        published("publish", FQRN, f"/sw/{how}", published.tree(how, more=how))
    published.sound()


def test_what_is_lost_together_is_mended_in_the_order_that_the_repair_names(published: Commands) -> None:
    for name in ("whitelist", "certificate", "meta info", "tags", "reflog"):
        damage(file_of(published, name), "lost")
    for _ in range(len(CURES)):
        faults = published("repair", FQRN, "--dry-run", code=1).stderr.splitlines()
        cures = [line.rpartition("nightshift repo ")[2] for line in faults]
        if cures == [CURES["whitelist"]]:
            break
        published(*shlex.split(next(cure for cure in cures if cure != CURES["whitelist"])))
    published(*shlex.split(CURES["whitelist"]))
    published("repair", FQRN)
    published.sound()


def test_a_manifest_is_not_made_again_without_a_reflog_or_over_one_that_is_there(published: Commands) -> None:
    assert "can be read" in published("repair", FQRN, "--manifest", code=2).stderr
    damage(file_of(published, "manifest"), "lost")
    dry = published("repair", FQRN, "--manifest", "--dry-run").stdout
    assert "would name revision" in dry
    assert not file_of(published, "manifest").exists()
    damage(file_of(published, "reflog"), "garbage")
    assert "copy .cvmfspublished from a replica" in published("repair", FQRN, "--manifest", code=2).stderr


def test_a_lost_nested_catalog_is_left_by_a_rollback(published: Commands) -> None:
    tree = published.site.head().revision.nested_at("/sw/v2")
    assert tree is not None
    damage(published.site.folder / "store" / FQRN / tree.hash.key, "lost")
    done = published.json("rollback", FQRN)
    assert done["revision"] == done["from_revision"] + 1
    published.sound()


def test_a_lost_root_with_lost_tags_names_no_command_that_leads_back(published: Commands) -> None:
    for name in ("tags", "root catalog"):
        damage(file_of(published, name), "lost")
    faults = published("repair", FQRN, code=1).stderr.splitlines()
    assert len(faults) == 2
    assert all("cure: copy the objects from a replica" in line for line in faults)
