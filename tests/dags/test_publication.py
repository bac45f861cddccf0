"""Publications by hand through `dag.test()`."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("path", ["/.cvmfs/secret", "/a/../b", "/a/./b"])
def test_a_path_that_cannot_be_a_destination_is_refused_before_anything_is_done(site: MiniSite, path: str) -> None:
    run = _publish(site, path, _tarball(site, "any.tar.gz", readme=b"x"))
    assert run.state == "failed"
    assert run.publications == {}
