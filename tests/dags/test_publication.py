"""Publications by hand through `dag.test()`."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest

from include.cvmfs.errors import TagError
from include.nightlies import created, outages
from include.nightlies.steps import prepare, sources
from include.nightlies.steps.plan import plan_publication
from include.storage.errors import Unavailable
from tests.dags.conftest import FQRN, MiniSite, Run
from tests.fakes.builds import tree

pytestmark = pytest.mark.server("weed")


def _publish(site: MiniSite, path: str, source: str, **more: object) -> Run:
    return site.run("publication", repository=FQRN, path=path, source=source, **more)


def _tarball(site: MiniSite, name: str, **files: bytes) -> str:
    store = site.connections.store("builds")
    store.put(name, tree(files))
    return f"{store.url}/{name}"


def test_a_tarball_is_published_with_a_tag_and_a_second_run_changes_nothing(site: MiniSite) -> None:
    source = _tarball(site, "root-1.tar.gz", readme=b"first")
    run = _publish(site, "/software/root/1", source, tag="root-1")
    assert run.state == "success", run
    repository = site.connections.repository(FQRN)
    assert repository.read("/software/root/1/readme") == b"first"
    assert repository.tag("root-1").revision == repository.manifest.revision
    again = _publish(site, "/software/root/1", source)
    assert again.state == "success", again
    assert {one.state.value for one in again.publications.values()} == {"unchanged"}
    assert site.revision() == repository.manifest.revision


def test_a_destination_that_holds_something_is_refused_and_replaced_only_if_asked_for(site: MiniSite) -> None:
    assert _publish(site, "/software/fit/1", _tarball(site, "fit-1.tar.gz", readme=b"one")).state == "success"
    other = _tarball(site, "fit-2.tar.gz", readme=b"two")
    refused = _publish(site, "/software/fit/1", other, mode="refuse")
    assert refused.state == "failed"
    assert "holds something already" in next(iter(refused.publications.values())).reason
    assert site.connections.repository(FQRN).read("/software/fit/1/readme") == b"one"
    assert _publish(site, "/software/fit/1", other, mode="replace").state == "success"
    assert site.connections.repository(FQRN).read("/software/fit/1/readme") == b"two"
    assert site.leases() == []


def test_a_run_waits_for_a_store_that_is_away_and_goes_on_in_the_same_try(
    site: MiniSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, away = _tarball(site, "away-1.tar.gz", readme=b"late"), [2]

    def opened(*given: object) -> object:
        if away[0]:
            away[0] -= 1
            raise Unavailable("no answer", key="away-1.tar.gz", cause="connection")
        return sources.opened(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare, "opened", opened)
    monkeypatch.setattr(outages, "FIRST_PAUSE_S", 0.01)
    run = _publish(site, "/software/away/1", source)
    assert run.state == "success", run
    assert away == [0]
    (publication,) = run.publications.values()
    assert (publication.state.value, publication.prepare_try) == ("published", 1)


def test_a_folder_of_the_worker_is_taken_only_from_a_configured_store(site: MiniSite) -> None:
    folder = site.folder / "trees" / "data" / "1"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"from a folder")
    run = _publish(site, "/data/1", f"file://{site.folder}/trees/data/1")
    assert run.state == "success", run
    assert site.connections.repository(FQRN).read("/data/1/deep/file") == b"from a folder"
    (site.folder / "trees" / "way-out").symlink_to("/etc")
    for elsewhere in ("file:///etc", f"file://{site.folder}/trees/way-out/ssl", "s3://other/x.tar"):
        refused = _publish(site, "/data/2", elsewhere)
        assert refused.state == "failed", elsewhere
    assert site.connections.repository(FQRN).lookup("/data/2") is None


def test_a_dry_run_publishes_nothing(site: MiniSite) -> None:
    before = site.revision()
    run = _publish(site, "/software/dry/1", _tarball(site, "dry.tar.gz", readme=b"dry"), dry_run=True)
    assert run.state == "success", run
    assert "would publish 2 files" in next(iter(run.publications.values())).reason
    assert site.revision() == before


def _reason(run: Run) -> str:
    (publication,) = run.publications.values()
    return publication.reason


def test_a_dry_run_fails_as_the_real_one_would(site: MiniSite) -> None:
    source, other = _tarball(site, "a.tar.gz", readme=b"a"), _tarball(site, "b.tar.gz", readme=b"b")
    assert _publish(site, "/software/taken/1", source).state == "success"
    before = site.revision()
    for path, mode in (("/software/taken/1", "refuse"), ("/software/taken/1/readme/below", "refuse")):
        dry = _publish(site, path, other, mode=mode, dry_run=True)
        real = _publish(site, path, other, mode=mode)
        assert (dry.state, real.state) == ("failed", "failed")
        assert _reason(dry) == _reason(real)
    assert site.revision() == before
    replacing = _publish(site, "/software/taken/1", other, mode="replace", dry_run=True)
    assert replacing.state == "success", replacing
    assert _reason(replacing).endswith("and replace what is at its destination")
    same = _publish(site, "/software/taken/1", source, dry_run=True)
    assert same.state == "success", same
    assert f"revision {before} holds this very tree" in _reason(same)
    assert site.revision() == before


def test_a_publication_that_fails_leaves_no_directory_that_it_made(site: MiniSite) -> None:
    source = _tarball(site, "kept.tar.gz", readme=b"kept")
    assert _publish(site, "/software/kept/1", source).state == "success"
    names = {entry.name for entry in site.connections.repository(FQRN).listing("/software")}
    bad = _publish(site, "/software/never/deep/1", f"{source}.missing")
    assert bad.state == "failed"
    assert "or correct the source." in _reason(bad)
    repository = site.connections.repository(FQRN)
    assert {entry.name for entry in repository.listing("/software")} == names
    assert created.of_run(site.connections.ledger, next(iter(bad.publications.values())).run_id, FQRN) == ()
    assert site.leases() == []


@pytest.mark.parametrize("tag", ["taken-1", "trunk", "trunk-previous"])
def test_a_tag_that_cannot_be_given_is_refused_before_anything_is_prepared(site: MiniSite, tag: str) -> None:
    source = _tarball(site, "tagged.tar.gz", readme=b"tagged")
    if not any(one.name == "taken-1" for one in site.connections.repository(FQRN).tags()):
        assert _publish(site, "/software/tagged/1", source, tag="taken-1").state == "success"
    revision = site.connections.repository(FQRN).tag("taken-1").revision
    said = f"names revision {revision} of {FQRN} already; choose another" if tag == "taken-1" else "choose another name"
    for dry_run in (False, True):
        with pytest.raises(TagError, match=f"tag '{tag}': .*{said}"):
            plan_publication(
                site.connections, run="by hand", repository=FQRN, path="/software/tagged/2", source=source,
                try_number=1, clock=lambda: datetime.now(UTC), tag=tag, dry_run=dry_run,
            )  # fmt: skip
    run = _publish(site, "/software/tagged/2", source, tag=tag)
    assert (run.state, run.tasks["plan"]) == ("failed", "failed")
    assert run.publications == {}


def test_the_same_artifact_may_be_published_with_its_tag_again(site: MiniSite) -> None:
    data = tree({"readme": b"again"})
    store = site.connections.store("builds")
    store.put("again.tar.gz", data)
    source, sha256 = f"{store.url}/again.tar.gz", hashlib.sha256(data).hexdigest()
    first = _publish(site, "/software/again/1", source, sha256=sha256, tag="again-1")
    assert first.state == "success", first
    revision = site.revision()
    again = _publish(site, "/software/again/1", source, sha256=sha256, tag="again-1")
    assert again.state == "success", again
    assert site.revision() == revision


@pytest.mark.parametrize("path", ["/.cvmfs/secret", "/a/../b", "/a/./b"])
def test_a_path_that_cannot_be_a_destination_is_refused_before_anything_is_done(site: MiniSite, path: str) -> None:
    run = _publish(site, path, _tarball(site, "any.tar.gz", readme=b"x"))
    assert run.state == "failed"
    assert run.publications == {}
