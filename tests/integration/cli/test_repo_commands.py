"""The commands that change a repository, through the configuration, a real gateway and its keys."""

from __future__ import annotations

import tarfile
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.repo import app
from include.cli.repository.open import open_site
from include.cvmfs.commit.commit import MANIFEST_KEY, REFLOG_KEY, read_head, switch
from include.cvmfs.commit.create import resign
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.rewrite import Sender, Unifier
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.keys import KeyFile
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.schema import Counts, Statistics
from include.monitoring.audit import AuditChoice, audit
from include.nightlies.records import publications as records
from include.nightlies.rules.publication import Figures, Move, Phase, Planned, PublicationKey, State
from include.storage.file import FileStore
from tests.fakes.local import read_folder
from tests.fakes.site import FQRN, MASTER, SIGNER
from tests.integration.cli.conftest import Commands


def test_a_tree_is_published_read_back_and_taken_away(repo: Commands) -> None:
    tree = repo.tree()
    before = repo.json("info", FQRN)
    dry = repo.json("publish", FQRN, "/sw/app/v1", tree, "--dry-run")
    assert (dry["files"], dry["created"]) == (4, ["/sw", "/sw/app", "/sw/app/v1"])
    assert dry["objects_new"] > 0
    assert repo.json("info", FQRN)["revision"] == before["revision"]
    done = repo.json("publish", FQRN, "/sw/app/v1", tree, "--tag", "v1", "-m", "first")
    assert (done["objects_new"], done["unchanged"]) == (dry["objects_new"], False)
    assert done["objects_new"] == 5  # three files, the marker, the catalog
    assert repo.json("publish", FQRN, "/sw/app/v1", tree, "--replace")["unchanged"]
    refused = repo("publish", FQRN, "/sw/app/v1", tree, code=2)
    assert "holds something already; add --replace" in refused.stderr
    out = repo.site.folder / "out"
    got = repo.json("get", FQRN, "/sw/app/v1", str(out))
    assert got["files"] == 4
    (out / ".cvmfscatalog").unlink()
    assert {path: facts[3] for path, facts in read_folder(out).items()} == {
        path: facts[3] for path, facts in read_folder(Path(tree)).items()
    }
    beside = repo.json("publish", FQRN, "/sw/app/v2", tree)
    assert (beside["objects_new"], beside["objects_reused"]) == (1, 4)
    repo("remove", FQRN, "/sw/app/v2")
    repo.sound()
    dry = repo.json("remove", FQRN, "/sw", "--dry-run")
    assert dry["removed"] == [{"path": "/sw", "files": 4, "directories": 4, "others": 0, "bytes": 3}]
    repo("remove", FQRN, "/sw")
    after = repo.json("info", FQRN)
    for counter in ("files", "directories", "nested_catalogs", "file_bytes"):
        assert after[counter] == before[counter]
    repo.sound()


def test_special_bits_are_stripped_unless_the_command_keeps_them(repo: Commands) -> None:
    tree = Path(repo.tree())
    tree.chmod(0o1777)
    note = "note: set-uid, set-gid and sticky bits stripped from 1 entries"
    assert note in repo("publish", FQRN, "/sw/app/v1", str(tree)).stderr
    assert repo.json("stat", FQRN, "/sw/app/v1")["mode"] == "drwxrwxrwx"
    kept = repo("publish", FQRN, "/sw/app/v1", str(tree), "--replace", "--special-bits", "keep")
    assert note not in kept.stderr
    assert repo.json("stat", FQRN, "/sw/app/v1")["mode"] == "drwxrwxrwt"


@pytest.mark.parametrize("repo", [Algorithm.RMD160], indirect=True)
def test_a_tree_is_hashed_as_its_repository_whatever_the_settings_say(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    needed = {name.algorithm for name, _ in repo.site.head().revision.objects_below()}
    assert needed == {Algorithm.RMD160}
    repo.sound()


def test_archives_are_taken_whatever_they_are_packed_as(repo: Commands) -> None:
    tree = Path(repo.tree())
    with tarfile.open(repo.site.folder / "x.tar.gz", "w:gz") as packed:
        packed.add(tree, ".")
    with zipfile.ZipFile(repo.site.folder / "x.zip", "w") as zipped:
        zipped.write(tree / "top", "top")
    repo("publish", FQRN, "/from-tar", str(repo.site.folder / "x.tar.gz"))
    repo("publish", FQRN, "/from-zip", str(repo.site.folder / "x.zip"))
    assert repo("cat", FQRN, "/from-tar/a/one").stdout == "1"
    assert repo("cat", FQRN, "/from-zip/top").stdout == "t"
    (repo.site.folder / "bad.tar").write_bytes(b"no archive at all" * 100)
    piped = (repo.site.folder / "x.tar.gz").read_bytes()
    result = CliRunner().invoke(app, ["publish", FQRN, "/piped", "-"], input=piped, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert repo("cat", FQRN, "/piped/top").stdout == "t"
    assert "bad.tar" in repo("publish", FQRN, "/bad", str(repo.site.folder / "bad.tar"), code=2).stderr
    assert repo("publish", FQRN, "/bad", str(repo.site.folder / "nowhere"), code=2).exit_code == 2
    repo.sound()


def test_a_tree_moves_and_links_follow(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/v1", repo.tree(), "--tag", "before")
    dry = repo.json("rename", FQRN, "/sw/v1", "/sw/v2", "--dry-run")
    assert (dry["lease"], dry["catalogs"]) == ("/sw", 2)
    done = repo.json("rename", FQRN, "/sw/v1", "/sw/v2", "--tag", "moved")
    assert not done["unchanged"]
    assert repo("cat", FQRN, "/sw/v2/a/one").stdout == "1"
    assert repo("ls", FQRN, "/sw/v1", code=2).exit_code == 2
    for target in ("v2", "v3"):
        repo("symlink", FQRN, "/sw/latest", target)
    assert "nothing to do" in repo("symlink", FQRN, "/sw/latest", "v3").stdout
    assert repo.json("stat", FQRN, "/sw/latest")["symlink"] == "v3"
    changes = repo.json("diff", FQRN, "before", "moved", code=1)
    assert (changes["added"], changes["removed"]) == (6, 6)
    assert "+ /sw/latest" in repo("diff", FQRN, "moved", code=1).stdout
    assert repo("diff", FQRN, "moved", "moved").stdout == ""
    for words in (["rename", FQRN, "/sw", "/sw/x"], ["rename", FQRN, "/nowhere", "/x"], ["remove", FQRN, "/nowhere"]):
        assert "destination" in repo(*words, code=2).stderr
    assert "marker of a nested catalog" in repo("remove", FQRN, "/sw/v2/.cvmfscatalog", code=2).stderr
    repo("rename", FQRN, "/sw/v2", "/elsewhere")
    repo("remove", FQRN, "/elsewhere/a/one", "/sw/latest")
    assert repo("cat", FQRN, "/elsewhere/a/two").stdout == "2"
    repo.sound()


def test_a_tag_that_is_taken_is_refused_before_anything_is_sent(repo: Commands) -> None:
    tree, objects = repo.tree(), repo.site.folder / "store" / FQRN / "data"
    repo("publish", FQRN, "/sw/v1", tree, "--tag", "v1")
    before = repo.json("info", FQRN)["revision"], sorted(objects.rglob("*"))
    other = repo.tree("other", new="another file")
    for path, words in (("/sw/v2", []), ("/sw/v3", ["--dry-run"]), ("/sw/v1", ["--replace"])):
        assert "names revision" in repo("publish", FQRN, path, other, "--tag", "v1", *words, code=2).stderr
        assert repo.json("info", FQRN)["revision"] == before[0]
        # Only where the tag names what the destination has, the tree must be read to know that it is another one.
        assert path == "/sw/v1" or sorted(objects.rglob("*")) == before[1]
    assert repo.json("publish", FQRN, "/sw/v1", tree, "--tag", "v1", "--replace")["unchanged"]


def test_a_destination_that_cannot_be_is_refused_with_the_reason(repo: Commands) -> None:
    tree = repo.tree()
    for words in (
        ["publish", FQRN, f"/cvmfs/{FQRN}/x", tree],
        ["remove", FQRN, f"/cvmfs/{FQRN}/x"],
        ["rename", FQRN, "/a", f"/cvmfs/{FQRN}/x"],
        ["symlink", FQRN, f"/cvmfs/{FQRN}/x", "y"],
    ):
        assert "give the path inside the repository, as in /x" in repo(*words, code=2).stderr
    assert repo.json("info", FQRN)["revision"] == 0
    # a symbolic link in the way is called so, and who holds the place is named
    repo("symlink", FQRN, "/latest", "nowhere")
    for path in ("/latest", "/latest/x"):
        assert "a symbolic link" in repo("publish", FQRN, path, tree, code=2).stderr
    with repo.site.client().lease(FQRN, "/sw", hostname="another publisher"):
        assert "another publisher" in repo("publish", FQRN, "/sw/v1", tree, code=2).stderr
    repo("publish", FQRN, "/sw/v1", tree)


def test_tags_come_go_and_lead_back(repo: Commands) -> None:
    for number in range(1, 5):
        repo("publish", FQRN, f"/sw/v{number}", repo.tree(), "--tag", f"night-{number}")
    for words in (["tag", "add", FQRN, "release"], ["publish", FQRN, "/sw/v5", repo.tree(), "--tag", "release"]):
        assert "its description has a line break" in repo(*words, "-m", "two\nlines", code=2).stderr
    repo("tag", "add", FQRN, "release", "night-2", "-m", "good")
    assert {tag["name"] for tag in repo.json("tag", "list", FQRN)} >= {"release", "night-1", "trunk"}
    assert repo.json("tags", FQRN) == repo.json("tag", "list", FQRN)
    plan = repo.json("tag", "prune", FQRN, "--keep", "2", "--match", "night-*", "--dry-run")
    assert [one["name"] for one in plan["tags"] if one["removed"]] == ["night-2", "night-1"]
    repo("tag", "prune", FQRN, "--keep", "2", "--match", "night-*")
    assert {tag["name"] for tag in repo.json("tags", FQRN)} == {
        "release", "night-3", "night-4", "trunk", "trunk-previous",
    }  # fmt: skip
    assert "name what to keep" in repo("tag", "prune", FQRN, code=2).output
    assert "would be removed" in repo("tag", "remove", FQRN, "night-3", "--dry-run").stdout
    repo("tag", "remove", FQRN, "night-3")
    before = repo.json("info", FQRN)["revision"]
    dry = repo.json("rollback", FQRN, "--tag", "release", "--dry-run")
    assert (dry["revision"], dry["tags_removed"]) == (before, ["night-4"])
    same = repo.json("rollback", FQRN, "--revision", str(dry["to_revision"]), "--dry-run")
    assert (same["tag"], same["root_hash"], same["tags_removed"]) == ("", dry["root_hash"], ["night-4"])
    assert dry["preview"][2:] == same["preview"][2:]
    assert any(line.startswith("goes: /sw/v4: ") for line in dry["preview"])
    assert "goes: /sw/v4: " in repo("rollback", FQRN, "--tag", "release", "--dry-run").stdout
    for wrong in (["--tag", "release", "--revision", "1"], ["--tag", "nowhere"], ["--revision", "999"]):
        repo("rollback", FQRN, *wrong, code=2)
    assert repo.json("info", FQRN)["revision"] == before
    done = repo.json("rollback", FQRN, "--tag", "release", "--reason", "bad v4")
    assert done["revision"] == before + 1
    assert (
        repo("rollback", FQRN, "--tag", "release").stdout
        == f"{FQRN} has the content of tag release already; nothing to do\n"
    )
    assert [line.split()[0] for line in repo("ls", FQRN, "/sw").stdout.splitlines()] == ["v1", "v2"]
    assert {tag["name"] for tag in repo.json("tags", FQRN)} == {"release", "trunk"}
    repo("publish", FQRN, "/sw/v5", repo.tree())
    repo.sound()
    undone = repo.json("rollback", FQRN)
    assert undone["tag"] == "trunk-previous"
    assert repo("ls", FQRN, "/sw/v5").stdout.split() == [".cvmfscatalog"]  # the revision before: reserved, still empty
    repo.sound()


def test_what_needs_the_signing_key_is_refused_without_it(repo: Commands) -> None:
    KeyFile.REPOSITORY.path(repo.site.folder / "keys", FQRN).unlink()
    for words in (["tag", "add", FQRN, "x"], ["tag", "remove", FQRN, "x"], ["rollback", FQRN, "--tag", "trunk"]):
        assert "run this where the gateway is" in repo(*words, code=2).stderr
    repo("tag", "remove", FQRN, "x", "--dry-run")


def test_where_a_store_keeps_no_conditions_tags_wait_for_whoever_publishes(
    repo: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileStore, "is_local", False)
    with repo.site.client().lease(FQRN, "/sw", hostname="another publisher"):
        assert "another publisher" in repo("tag", "add", FQRN, "x", code=2).stderr
    repo("tag", "add", FQRN, "x")
    assert repo.site.client().leases() == []


def test_the_whitelist_is_resigned_by_whoever_has_the_master_key(repo: Commands) -> None:
    before = repo.json("info", FQRN)["whitelist_expires"]
    dry = repo.json("resign", FQRN, "--days", "90", "--dry-run")
    assert dry["expires"] > before
    assert repo.json("info", FQRN)["whitelist_expires"] == before
    repo("resign", FQRN, "--days", "90")
    assert repo.json("info", FQRN)["whitelist_expires"][:13] == dry["expires"][:13]
    KeyFile.MASTER.path(repo.site.folder / "keys", FQRN).unlink()
    assert ".masterkey: does not exist" in repo("resign", FQRN, code=2).stderr
    # one that ends is warned of
    resign(repo.site.store, FQRN, MASTER, now=datetime.now(UTC), validity=timedelta(hours=6))
    assert "the whitelist expires in" in repo("info", FQRN).stderr
    assert len(repo.json("info", FQRN)["warnings"]) == 1
    assert "warning: /: whitelist: the whitelist expires in" in repo("check", FQRN).stdout


def test_a_lost_reflog_is_mended_by_the_check(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/v1", repo.tree())
    repo.site.store.delete([REFLOG_KEY])
    repo("check", FQRN, "--quick", code=1)
    result = repo("check", FQRN, "--quick", "--repair")
    assert "mended the reflog" in result.stderr
    assert result.stdout.splitlines()[-1] == "no problems found"
    repo("publish", FQRN, "/sw/v2", repo.tree())
    assert "exclude each other" in repo("check", FQRN, "--quick", "--full", code=2).output


def test_what_a_stock_gateway_does_not_bear_is_refused(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/v1", repo.tree(), "--tag", "v1")
    file = repo.site.folder / "site.yaml"
    file.write_text(file.read_text().replace("gateway: gateway_test", "gateway: gateway_test\n    gateway_kind: stock"))
    before = [repo.site.store.get(key) for key in (MANIFEST_KEY, REFLOG_KEY)]
    for words in (
        ("tag", "add", FQRN, "later", "v1"), ("tag", "remove", FQRN, "v1"),
        ("tag", "prune", FQRN, "--older-than", "0h"), ("rollback", FQRN),
        ("repair", FQRN, "--reflog"), ("repair", FQRN, "--metadata"),
    ):  # fmt: skip
        refused = repo(*words, code=2).stderr
        assert "native × stock gateway does not do this" in refused
    assert "run `cvmfs_server fix-stats` there" in repo("repair", FQRN, "--counters", code=2).stderr
    repo.site.store.delete([REFLOG_KEY])
    assert "cvmfs_server check -r" in repo("check", FQRN, "--quick", "--repair", code=2).stderr
    assert not repo.site.store.exists(REFLOG_KEY)
    repo.site.store.put(REFLOG_KEY, before[1])
    assert [repo.site.store.get(key) for key in (MANIFEST_KEY, REFLOG_KEY)] == before


def test_stock_tools_beside_find_the_reflog_of_tags_and_repairs(
    repo: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo("publish", FQRN, "/sw/v1", repo.tree())
    known = repo.site.folder / "spool" / FQRN / "reflog.chksum"
    known.parent.mkdir(parents=True)
    known.write_text("of an older revision")
    monkeypatch.setattr("include.cvmfs.commit.metadata_objects.STOCK_SPOOL", known.parent.parent)
    assert f"`reflog_checksum: {known}`" in repo("repair", FQRN, "--reflog").stderr
    file = repo.site.folder / "site.yaml"
    file.write_text(
        file.read_text().replace("gateway: gateway_test", f"gateway: gateway_test\n    reflog_checksum: {known}")
    )
    for words in (("repair", FQRN, "--reflog"), ("tag", "add", FQRN, "v1")):
        assert not repo(*words).stderr
        assert known.read_text() == repo.json("info", FQRN)["reflog"]


def test_keys_of_stock_tools_are_taken_over(repo: Commands) -> None:
    keys, stock = repo.site.folder / "keys", repo.site.folder / "etc"
    stock.mkdir()
    for kind in (KeyFile.PUBLIC, KeyFile.CERTIFICATE, KeyFile.REPOSITORY):
        kind.path(keys, FQRN).replace(kind.path(stock, FQRN))
    dry = repo.json("import-keys", FQRN, "--from", str(stock), "--dry-run")
    assert len(dry["copied"]) == 3
    assert not KeyFile.PUBLIC.path(keys, FQRN).exists()
    repo("import-keys", FQRN, "--from", str(stock))
    repo("tag", "add", FQRN, "imported")
    assert "does not exist" in repo("import-keys", FQRN, "--from", str(repo.site.folder), code=2).stderr


def test_catalogs_of_several_layouts_are_named_and_brought_to_one(
    repo: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    store, catalogs, now = repo.site.store, CatalogCache(repo.site.store), datetime.now(UTC)
    there = repo.site.head().revision.nested_at("/sw/app/v1")
    assert there is not None
    sender = Sender(store)
    other = Unifier(catalogs, Layout.MTIME_NS, sender.keep).tree(there).reference  # as an earlier version published it
    sender.flush()
    head = read_head(store, FQRN)
    edit = Edit(catalogs, head.manifest.root)
    edit.hang(other, catalogs.open(other.hash).root_entry, catalogs.totals(other))
    switch(store, head, edit.finish(1), signer=SIGNER, now=1)
    ledger, sha256 = open_site().ledger, "ab" * 32
    records.note_installed(ledger, FQRN, "/sw/app/v1", sha256, str(other.hash), now=now)
    for number, layout in enumerate((Layout.MTIME_NS, Layout.PLAIN)):
        made = repo.site.prepared(f"/sw/app/w{number}", {"f": b"f"}, layout=layout)
        key = PublicationKey(FQRN, made.destination, "night__1")
        records.plan(ledger, key, Planned(), try_number=1, now=now)
        figures = Figures(changeset=made.digest, nested_hash=str(made.root))
        for state in (State.PREPARING, State.PREPARED):
            records.move(ledger, key, Move(state, Phase.PREPARE, "", figures=figures), try_number=1, now=now)
    assert "nightshift repo repair --catalog-layout" in repo("check", FQRN, code=1).stdout
    before = repo.json("info", FQRN)["revision"]
    stored = set(store.list("data/"))
    dry = repo.json("repair", FQRN, "--catalog-layout", "--dry-run")
    assert (dry["catalogs"], dry["mtime_ns_lost"], dry["sent"], dry["revision"]) == (2, 0, 0, before)
    assert dry["bytes"] > 0
    assert dry["invalidated"] == [{"path": "/sw/app/w0", "run": "night__1"}]
    assert set(store.list("data/")) == stored
    with repo.site.client().lease(FQRN, "/sw", hostname="another"):
        assert "another" in repo("repair", FQRN, "--catalog-layout", code=2).stderr
    done = repo("repair", FQRN, "--catalog-layout").stdout
    assert f"2 catalogs of {FQRN}" in done
    assert f"rewritten in revision {before + 1} with 15 columns" in done
    assert "/sw/app/w0 of run night__1" in done
    assert repo.site.client().leases() == []
    held = repo.site.head().revision.nested_at("/sw/app/v1")
    assert held is not None
    assert records.recorded_nested_hash(ledger, FQRN, "/sw/app/v1", sha256) == str(held.hash) != str(other.hash)
    assert "nothing to do" in repo("repair", FQRN, "--catalog-layout").stdout
    acts = audit(ledger, AuditChoice(kind="repair"))
    assert [(act.what, act.dry_run) for act in acts] == [
        (f"{FQRN}: 2 catalogs to 15 columns, revision {before + 1}", False),
        (f"{FQRN}: 2 catalogs to 15 columns, revision {before}", True),
    ]
    repo.sound()
    assert "--dry-run is for" in repo("repair", FQRN, "--reflog", "--dry-run", code=2).output


def test_wrong_counters_are_named_and_counted_again(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    store, head = repo.site.store, read_head(repo.site.store, FQRN)
    there = repo.site.head().revision.nested_at("/sw/app/v1")
    assert there is not None
    catalogs = CatalogCache(store)
    catalog, before = catalogs.open(there.hash), catalogs.totals(there)
    catalog.make_writable()
    catalog.set_statistics(Statistics(catalog.statistics.own, Counts(xattr=-2)))  # as stock tools left it
    packed = catalog.pack()
    store.put(packed.hash.key, packed.data)
    edit = Edit(catalogs, head.manifest.root)
    edit.hang(NestedRef(there.path, packed.hash, packed.size), catalog.root_entry, before + Counts(xattr=-2))
    switch(store, head, edit.finish(1), signer=SIGNER, now=1)
    ledger, sha256 = open_site().ledger, "ab" * 32
    records.note_installed(ledger, FQRN, "/sw/app/v1", sha256, str(packed.hash), now=datetime.now(UTC))
    checked = repo("check", FQRN, code=1).stdout
    assert "/sw/app/v1: counters: subtree_xattr is -2, counted 0" in checked
    assert f"nightshift repo repair {FQRN} --counters" in checked
    revision, stored = repo.json("info", FQRN)["revision"], set(store.list(""))
    dry = repo.json("repair", FQRN, "--counters", "--dry-run")
    assert (dry["catalogs"], dry["sent"], dry["revision"], dry["dry_run"]) == (2, 0, revision, True)
    assert dry["counters"] == [
        {"path": "/", "counter": "subtree_xattr", "stored": -2, "counted": 0},
        {"path": "/sw/app/v1", "counter": "subtree_xattr", "stored": -2, "counted": 0},
    ]
    lines = repo("repair", FQRN, "--counters", "--dry-run").stdout.splitlines()
    assert lines[:2] == [f"{path}: subtree_xattr is -2, counted 0" for path in ("/", "/sw/app/v1")]
    assert (repo.json("info", FQRN)["revision"], set(store.list(""))) == (revision, stored)
    with repo.site.client().lease(FQRN, "/sw", hostname="another"):
        assert "another" in repo("repair", FQRN, "--counters", code=2).stderr
    done = repo("repair", FQRN, "--counters").stdout.splitlines()
    assert done[2].startswith(f"2 counters of 2 catalogs are wrong; 2 catalogs of {FQRN} (")
    assert done[2].endswith(f"rewritten in revision {revision + 1}")
    held = repo.site.head().revision.nested_at("/sw/app/v1")
    assert held is not None
    assert records.recorded_nested_hash(ledger, FQRN, "/sw/app/v1", sha256) == str(held.hash) != str(packed.hash)
    repo.sound()
    assert "nothing to do" in repo("repair", FQRN, "--counters").stdout
    act = audit(ledger, AuditChoice(kind="repair"))[0]
    assert (act.what, act.dry_run) == (f"{FQRN}: 2 counters, revision {revision + 1}", False)
    assert repo.json("info", FQRN)["revision"] == revision + 1
    repo("publish", FQRN, "/sw/app/v1", repo.tree("other", new="1"), "--replace")
    repo("publish", FQRN, "/sw/app/v2", repo.tree())
    repo.sound()
    assert "are not combined" in repo("repair", FQRN, "--counters", "--manifest", code=2).output


def test_a_repository_that_cvmfs_server_writes_to_as_well_is_not_collected(repo: Commands) -> None:
    file = repo.site.folder / "site.yaml"
    file.write_text(f"{file.read_text()}    reflog_checksum: {repo.site.folder}/reflog.chksum\n")
    for words in (("--dry-run",), ()):
        assert "`reflog_checksum`" in repo("gc", FQRN, *words, code=2).stderr
    done = repo("gc", FQRN, "--accept", "cvmfs_server only checks")
    assert "accepted: cvmfs_server only checks" in done.stdout
