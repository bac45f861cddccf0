"""`nightshift who`: who published a path, what stands there now, and what the signed document is worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from include.cli.repository.open import holder
from include.provenance.records import BY_GATEWAY_KEY, BY_REPOSITORY_KEY, FOLDER, Sealed
from tests.fakes.orders import KEY_ID
from tests.fakes.site import FQRN
from tests.integration.cli.conftest import Commands, as_json, nightshift


def documents(repo: Commands) -> list[str]:
    return [meta.key for meta in repo.site.store.list() if meta.key.startswith(FOLDER)]


def test_the_nearest_published_path_above_is_found_and_vouched_for(repo: Commands) -> None:
    done = repo.json("publish", FQRN, "/sw/app/v1", repo.tree())
    for where in (f"{FQRN}:/sw/app/v1/a/one", f"/cvmfs/{FQRN}/sw/app/v1/", "/sw/app/v1"):
        (one,) = as_json("who", where)
        assert (one["path"], one["revision"], one["holder"]) == ("/sw/app/v1", done["revision"], holder())
        assert (one["key_id"], one["publisher"], one["now"]) == (KEY_ID, "native", "this very tree")
        assert one["checked"] == "signed by the repository's own key"
        assert one["document"] in documents(repo)
    # nobody of ours published what is above it, and there is nothing elsewhere
    above = nightshift("who", f"{FQRN}:/sw/app", code=1).stdout
    assert "no publisher is known" in above
    assert f"it is in {FQRN} all the same" in above
    assert "the path does not exist" in nightshift("who", "/elsewhere", code=1).stdout
    refused = nightshift("who", "/elsewhere", "--json", code=1)
    assert json.loads(refused.stdout) == []
    assert "no publisher is known" in refused.stderr
    for wrong in ("sw/app", f"{FQRN}:sw", "nothing.example.org:/sw"):
        assert nightshift("who", wrong, code=2).stderr


def test_what_was_replaced_is_said_to_be_and_its_history_stays(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    repo("publish", FQRN, "/sw/app/v1", repo.tree("other", new="content"), "--replace")
    found = as_json("who", "/sw/app/v1", "-n", "5")
    assert [one["now"] for one in found] == ["this very tree", "another tree"]
    assert found[0]["revision"] > found[1]["revision"]
    assert len(documents(repo)) == 2
    repo("remove", FQRN, "/sw/app/v1")
    gone, *before = as_json("who", "/sw/app/v1", "-n", "5")
    assert (gone["kind"], gone["now"]) == ("removed", "nothing, as it was left")
    assert [one["now"] for one in before] == ["no such tree any more"] * 2


def test_a_dry_run_and_a_change_that_changes_nothing_are_no_deeds(repo: Commands) -> None:
    tree = repo.tree()
    repo("publish", FQRN, "/sw/app/v1", tree, "--dry-run")
    repo("publish", FQRN, "/sw/app/v1", tree)
    repo("publish", FQRN, "/sw/app/v1", tree, "--replace")
    assert len(documents(repo)) == 1
    repo("remove", FQRN, "/sw/app/v1", "--dry-run")
    repo("rename", FQRN, "/sw/app/v1", "/v1", "--dry-run")
    repo("symlink", FQRN, "/l", "sw")
    repo("symlink", FQRN, "/l", "sw")
    assert len(documents(repo)) == 2


def test_a_worker_without_the_repositorys_key_signs_with_the_gateways(
    repo: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys" / f"{FQRN}.key").rename(tmp_path / "elsewhere.key")
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    assert as_json("who", "/sw/app/v1")[0]["checked"] == f"signed by gateway key {KEY_ID}"
    monkeypatch.setenv("AIRFLOW_CONN_GATEWAY_TEST", json.dumps({"conn_type": "x", "host": "h", "login": "another"}))
    assert "which is not at hand" in as_json("who", "/sw/app/v1")[0]["checked"]


def test_what_was_moved_by_hand_is_told_at_both_places_and_traced_to_who_published_it(repo: Commands) -> None:
    done = repo.json("publish", FQRN, "/sw/app/v1", repo.tree())
    moved = repo.json("rename", FQRN, "/sw/app", "/sw/other")
    (there,) = as_json("who", "/sw/other/v1/a/one")
    assert (there["kind"], there["path"], there["came_from"]) == ("moved", "/sw/other", "/sw/app")
    assert (there["revision"], there["holder"], there["good"]) == (moved["revision"], holder(), True)
    assert (there["origin"]["path"], there["origin"]["revision"]) == ("/sw/app/v1", done["revision"])
    assert there["now"] == "the path exists"
    (gone,) = as_json("who", "/sw/app/v1")
    assert (gone["kind"], gone["leads_to"], gone["now"]) == ("removed", "/sw/other", "nothing, as it was left")
    repo("rename", FQRN, "/sw/other/v1", "/v1")
    twice = as_json("who", "/v1/top")[0]
    assert (twice["now"], twice["origin"]["path"]) == ("this very tree", "/sw/app/v1")
    said = nightshift("who", "/v1").stdout
    assert "origin path            /sw/app/v1" in said


def test_what_was_removed_with_what_is_above_it_says_by_whom_and_what_came_after_counts(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    removed = repo.json("remove", FQRN, "/sw")
    (one,) = as_json("who", "/sw/app/v1/top")
    assert (one["kind"], one["path"], one["revision"]) == ("removed", "/sw", removed["revision"])
    assert one["now"] == "nothing, as it was left"
    repo("publish", FQRN, "/sw/app/v1", repo.tree("again", new="content"))
    history = as_json("who", "/sw/app/v1", "-n", "9")
    assert [one["kind"] for one in history] == ["tree", "removed", "tree"]
    assert [one["now"] for one in history] == ["this very tree", "the path exists again", "another tree"]
    assert all(one["good"] for one in history)


def test_a_link_says_who_set_it_and_a_path_through_it_who_published_what_it_leads_to(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    repo("symlink", FQRN, "/sw/latest", "app/v1")
    link, tree = as_json("who", "/sw/latest/a/one")
    assert (link["kind"], link["path"], link["leads_to"], link["now"]) == (
        "link", "/sw/latest", "app/v1", "this very link",
    )  # fmt: skip
    assert (tree["asked"], tree["path"], tree["now"]) == ("/sw/app/v1/a/one", "/sw/app/v1", "this very tree")
    repo("remove", FQRN, "/sw/app/v1")
    assert as_json("who", "/sw/latest")[0]["now"] == "this very link, which leads nowhere"
    repo("symlink", FQRN, "/sw/latest", "../nowhere")
    assert [one["leads_to"] for one in as_json("who", "/sw/latest", "-n", "2")] == ["../nowhere", "app/v1"]
    # links in a circle
    repo("symlink", FQRN, "/a", "b")
    repo("symlink", FQRN, "/b", "a")
    assert {one["path"] for one in as_json("who", "/a/x")} == {"/a", "/b"}


def test_a_document_that_was_changed_or_is_not_signed_or_is_gone_is_found_out(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    (key,) = documents(repo)
    whole = repo.site.store.get(key)
    sealed = Sealed.parse(whole)
    forged = Sealed(sealed.document.replace(b"native", b"nobody"), sealed.signatures, sealed.key_id)
    repo.site.store.put(key, forged.format())
    assert "differs from the ledger" in nightshift("who", "/sw/app/v1").stdout
    for data, said in (
        (Sealed(sealed.document, {}, sealed.key_id).format(), "NOT signed at all"),
        (Sealed(sealed.document, {BY_GATEWAY_KEY: "0" * 64}, sealed.key_id).format(), "NOT signed by gateway key"),
        (Sealed(sealed.document, {BY_REPOSITORY_KEY: "AAAA"}, sealed.key_id).format(), "NOT signed by the repository"),
        (b"{", "the document in the store cannot be read"),
    ):
        repo.site.store.put(key, data)
        (one,) = as_json("who", "/sw/app/v1")
        assert said in one["checked"]
        assert one["good"] is False
    repo.site.store.put(key, whole)
    assert as_json("who", "/sw/app/v1")[0]["good"] is True
    repo.site.store.delete([key])
    assert "is gone from the store" in nightshift("who", "/sw/app/v1").stdout


def test_a_ledger_that_was_lost_is_answered_for_by_the_signed_documents(repo: Commands, tmp_path: Path) -> None:
    done = repo.json("publish", FQRN, "/sw/app/v1", repo.tree())
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    (one,) = as_json("who", "/sw/app/v1/top")
    assert (one["revision"], one["now"], one["good"]) == (done["revision"], "this very tree", None)
    assert one["checked"] == "signed by the repository's own key, and the ledger does not have it"
    (key,) = documents(repo)
    sealed = Sealed.parse(repo.site.store.get(key))
    repo.site.store.put(key, Sealed(sealed.document.replace(b"native", b"nobody"), sealed.signatures, "k").format())
    (forged,) = as_json("who", "/sw/app/v1/top")
    assert forged["checked"].startswith("NOT signed by the repository's own key")
    assert forged["good"] is False


def test_a_repository_or_a_ledger_that_cannot_be_read_is_named(repo: Commands, tmp_path: Path) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    (tmp_path / "store").rename(tmp_path / "away")
    (one,) = as_json("who", "/sw/app/v1")
    assert one["now"].startswith("not known: ")
    assert (one["holder"], one["good"]) == (holder(), False)
    assert f"{FQRN} cannot be read" in nightshift("who", "/elsewhere", code=1).stdout

    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    (tmp_path / "ledger.db").mkdir()
    assert "ledger sqlite:///" in nightshift("who", "/sw/app/v1", code=2).stderr
