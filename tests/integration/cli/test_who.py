"""`nightshift who`: who published a path, what stands there now, and what the signed document is worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from include.cli.repo_open import holder
from include.provenance.deed import FOLDER, Sealed
from tests.fakes.site import FQRN
from tests.fakes.worker import KEY_ID
from tests.integration.cli.test_interventions import as_json, nightshift
from tests.integration.cli.test_repo_commands import Commands, repo

__all__ = ["repo"]


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
    assert "nobody is known" in nightshift("who", f"{FQRN}:/sw/app", code=1).stdout


def test_what_was_replaced_is_said_to_be_and_its_history_stays(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    repo("publish", FQRN, "/sw/app/v1", repo.tree("other", new="content"), "--replace")
    found = as_json("who", "/sw/app/v1", "-n", "5")
    assert [one["now"] for one in found] == ["this very tree", "another tree"]
    assert found[0]["revision"] > found[1]["revision"]
    assert len(documents(repo)) == 2
    repo("remove", FQRN, "/sw/app/v1")
    assert as_json("who", "/sw/app/v1")[0]["now"] == "no such tree any more"


def test_publishing_the_same_again_or_dry_is_no_deed(repo: Commands) -> None:
    tree = repo.tree()
    repo("publish", FQRN, "/sw/app/v1", tree, "--dry-run")
    repo("publish", FQRN, "/sw/app/v1", tree)
    repo("publish", FQRN, "/sw/app/v1", tree, "--replace")
    assert len(documents(repo)) == 1


def test_a_document_that_was_changed_is_found_out(repo: Commands) -> None:
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    (key,) = documents(repo)
    sealed = Sealed.parse(repo.site.store.get(key))
    forged = Sealed(sealed.document.replace(b"native", b"nobody"), sealed.signatures, sealed.key_id)
    repo.site.store.put(key, forged.format())
    assert "says otherwise than the ledger" in nightshift("who", "/sw/app/v1").stdout
    repo.site.store.delete([key])
    assert "is gone from the store" in nightshift("who", "/sw/app/v1").stdout


def test_a_worker_without_the_repositorys_key_signs_with_the_gateways(
    repo: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys" / f"{FQRN}.key").rename(tmp_path / "elsewhere.key")
    repo("publish", FQRN, "/sw/app/v1", repo.tree())
    assert as_json("who", "/sw/app/v1")[0]["checked"] == f"signed by gateway key {KEY_ID}"
    monkeypatch.setenv("AIRFLOW_CONN_GATEWAY_TEST", json.dumps({"conn_type": "x", "host": "h", "login": "another"}))
    assert "which is not at hand" in as_json("who", "/sw/app/v1")[0]["checked"]


@pytest.mark.parametrize("where", ["sw/app", f"{FQRN}:sw", "nothing.example.org:/sw"])
def test_what_names_no_path_is_refused(repo: Commands, where: str) -> None:
    assert nightshift("who", where, code=2).stderr
    assert documents(repo) == []
