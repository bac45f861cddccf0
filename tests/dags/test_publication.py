"""Publications by hand through `dag.test()`: each way through the DAG once.

What is refused, replaced or tagged, and why, is tested on the steps: tests/integration/nightlies/test_by_hand.py.
"""

from __future__ import annotations

import hashlib

import pytest

from include.nightlies.records import undos as created
from tests.dags.conftest import FQRN, MiniSite, Run
from tests.fakes.builds import tree

pytestmark = pytest.mark.server("weed")


def _publish(site: MiniSite, path: str, source: str, **more: object) -> Run:
    return site.run("publication", repository=FQRN, path=path, source=source, **more)


def test_a_tarball_is_published_with_a_tag_and_a_second_run_changes_nothing(site: MiniSite) -> None:
    data, store = tree({"readme": b"first"}), site.opened.store("builds")
    store.put("root-1.tar.gz", data)
    source = f"{store.url}/root-1.tar.gz"
    same = {"tag": "root-1", "sha256": hashlib.sha256(data).hexdigest()}
    run = _publish(site, "/software/root/1", source, **same)
    assert run.state == "success", run
    repository = site.opened.repository(FQRN)
    assert repository.revision.read("/software/root/1/readme") == b"first"
    assert repository.tag("root-1").revision == repository.manifest.revision
    again = _publish(site, "/software/root/1", source, **same)
    assert again.state == "success", again
    assert {one.state.value for one in again.publications.values()} == {"unchanged"}
    assert site.revision() == repository.manifest.revision


def test_a_folder_is_looked_at_by_a_dry_run_and_published_by_a_run(site: MiniSite) -> None:
    folder, before = site.folder / "trees" / "data" / "1", site.revision()
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"from a folder")
    dry = _publish(site, "/data/1", folder.as_uri(), dry_run=True)
    assert dry.state == "success", dry
    assert "would publish 2 files" in next(iter(dry.publications.values())).reason
    assert site.revision() == before
    run = _publish(site, "/data/1", folder.as_uri())
    assert run.state == "success", run
    assert site.opened.repository(FQRN).revision.read("/data/1/deep/file") == b"from a folder"


def test_a_publication_that_fails_leaves_no_directory_that_it_made(site: MiniSite) -> None:
    bad = _publish(site, "/never/deep/1", f"{site.opened.store('builds').url}/missing.tar.gz")
    assert bad.state == "failed"
    (publication,) = bad.publications.values()
    assert "or correct the source." in publication.reason
    assert site.opened.repository(FQRN).revision.lookup("/never") is None
    assert created.of_run(site.opened.ledger, publication.run_id, FQRN) == ()
    assert site.leases() == []


def test_what_cannot_be_planned_fails_before_anything_is_done(site: MiniSite) -> None:
    run = _publish(site, "/a/../b", f"{site.opened.store('builds').url}/any.tar.gz")
    assert (run.state, run.tasks["plan"]) == ("failed", "failed")
    assert run.publications == {}
