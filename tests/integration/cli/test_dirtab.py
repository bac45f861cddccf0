"""`nightshift repo dirtab`: rules of a repository are read before anything changes, published, and obeyed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.repo import app
from include.cli.repository.open import open_site
from include.cvmfs.commit.commit import read_head, switch
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import Algorithm
from include.provenance.records import newest
from tests.fakes.site import FQRN, SIGNER
from tests.integration.cli.conftest import Commands

RULES = b"# software\n/sw/*/*/lib\n! */v2/lib\n"
FILES = {"lib/code": "1", "bin/run": "2"}
pytestmark = pytest.mark.parametrize(
    "repo", [Algorithm.SHA1, pytest.param(Algorithm.RMD160, marks=pytest.mark.thorough)], indirect=True
)


@pytest.fixture
def rules(repo: Commands) -> str:
    """A file of rules, which the preparations of the site obey."""
    site = repo.site.folder / "site.yaml"
    site.write_text(f"{site.read_text()}    prepare: {{dirtab: true}}\n")
    file = repo.site.folder / "rules"
    file.write_bytes(RULES)
    return str(file)


def revision(repo: Commands) -> int:
    return int(repo.json("info", FQRN)["revision"])


def test_rules_are_published_and_the_next_tree_is_cut_by_them(repo: Commands, rules: str) -> None:
    tree = repo.tree(**FILES)
    repo("publish", FQRN, "/sw/app/v1", tree)
    assert "has no /.cvmfsdirtab" in repo("dirtab", FQRN, code=1).stderr
    before, stored = revision(repo), set(repo.site.store.list(""))
    dry = repo("dirtab", FQRN, rules, "--dry-run").stdout.splitlines()
    assert dry[:3] == [
        "rule: /sw/*/*/lib",
        "rule: ! */v2/lib",
        "/sw/app/v1/lib: becomes one when it is published again",
    ]
    assert dry[3] == "/.cvmfsdirtab would have 2 rules"
    assert (revision(repo), set(repo.site.store.list(""))) == (before, stored)
    with repo.site.client().lease(FQRN, "/sw", hostname="another"):  # others may publish meanwhile
        assert repo.json("dirtab", FQRN, rules)["revision"] == before + 1
    assert repo("dirtab", FQRN).stdout.encode() == RULES
    assert repo.json("stat", FQRN, "/.cvmfsdirtab")["mode"] == "-rw-r--r--"
    record = newest(open_site().ledger, FQRN, "/.cvmfsdirtab")
    assert record is not None
    assert record.source == rules
    repo.sound()
    for place in ("v1", "v2", "v3"):
        repo("publish", FQRN, f"/sw/app/{place}", tree, "--replace")
    assert [nested.path for nested in repo.site.head().revision.catalogs_below("/sw")] == [
        "/sw/app/v1", "/sw/app/v1/lib", "/sw/app/v2", "/sw/app/v3", "/sw/app/v3/lib"
    ]  # fmt: skip
    assert repo.json("dirtab", FQRN, rules, "--dry-run")["directories"] == [
        {"path": "/sw/app/v1/lib", "nested": True}, {"path": "/sw/app/v3/lib", "nested": True}
    ]  # fmt: skip
    repo.sound()


def test_the_same_rules_again_make_no_revision_and_others_replace_them(repo: Commands, rules: str) -> None:
    repo("dirtab", FQRN, rules)
    first = revision(repo)
    again = repo("dirtab", FQRN, rules).stdout
    assert "nothing to do: the repository is so already" in again
    assert revision(repo) == first
    result = CliRunner().invoke(app, ["dirtab", FQRN, "-"], input=b"", catch_exceptions=False)
    assert "has 0 rules" in result.stdout
    assert repo("dirtab", FQRN).stdout == ""
    assert revision(repo) == first + 1
    repo.sound()
    # rules whose object is lost are stored again
    repo("dirtab", FQRN, rules)
    lost = repo.site.head().revision.entry("/.cvmfsdirtab").hash
    assert lost is not None
    repo.site.store.delete([lost.key])
    repo("dirtab", FQRN, rules)
    repo.sound()


def test_rules_that_are_wrong_are_refused_with_their_line(repo: Commands) -> None:
    file, before = repo.site.folder / "wrong", revision(repo)
    for text, line in ((b"/a\nb\n", 2), (b"/a\n\n! /a\n", 3), (b"/a\\b\n", 1)):
        file.write_bytes(text)
        for words in ((), ("--dry-run",)):
            assert f"{file}, line {line}: " in repo("dirtab", FQRN, str(file), *words, code=2).stderr
    assert revision(repo) == before
    assert "give a FILE" in repo("dirtab", FQRN, "--dry-run", code=2).output
    assert "No such file" in repo("dirtab", FQRN, str(Path("missing")), code=2).output
    # this site does not read them
    file.write_bytes(RULES)
    assert "prepare: {dirtab: true}" in repo("dirtab", FQRN, str(file)).stderr


def test_a_directory_of_this_name_is_not_replaced(repo: Commands, rules: str) -> None:
    head, catalogs = read_head(repo.site.store, FQRN), CatalogCache(repo.site.store)
    edit = Edit(catalogs, head.manifest.root)
    edit.add("/.cvmfsdirtab", Dirent("", 0o40755, size=4096, linkcount=2))
    switch(repo.site.store, head, edit.finish(1), signer=SIGNER, now=1)
    assert "is not replaced by a file" in repo("dirtab", FQRN, rules, code=2).stderr
