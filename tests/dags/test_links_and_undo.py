"""A partial build, links and undoing through whole runs, as Airflow does them."""

from __future__ import annotations

import pytest

from include.cvmfs.format.paths import link_target
from tests.dags.conftest import FQRN, MiniSite, Run
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")
FOLDER = "/nightlies/linked"


def _build(day: int, *projects: str, **index: object) -> Build:
    build = Build(f"2026-11-{day:02}", slot="linked", index=index)
    for project in projects:
        build.add(project, "x86_64", tree({"file": f"{project} of {day}".encode()}))
    return build


def _night(site: MiniSite, build: Build) -> Run:
    site.drop(build)
    return site.run("nightly_install", slot="linked", build_date=build.date)


def _latest(site: MiniSite) -> str:
    entry = site.opened.head(FQRN).revision.lookup(f"{FOLDER}/latest")
    return link_target(f"{FOLDER}/latest", entry.symlink) if entry else ""


def test_a_night_a_partial_one_and_one_build_undone(site: MiniSite) -> None:
    first = _night(site, _build(2, "A", "B"))
    assert first.state == "success", first
    assert (first.tasks["inherited"], first.tasks["links"], first.tasks["announce"]) == (
        "skipped",
        "success",
        "success",
    )
    assert _latest(site) == f"{FOLDER}/b20261102"

    second = _night(site, _build(3, "B", partial=True, base={"build_id": "b20261102", "date": "2026-11-02"}))
    assert second.state == "success", second
    assert second.tasks["inherited"] == "success"
    assert second.states() == {"A/x86_64": "published", "B/x86_64": "published"}
    reader = site.opened.repository(FQRN)
    assert reader.revision.read(f"{FOLDER}/b20261103/A/x86_64/file") == b"A of 2"
    assert reader.revision.read(f"{FOLDER}/b20261103/B/x86_64/file") == b"B of 3"
    assert _latest(site) == f"{FOLDER}/b20261103"
    assert {"linked-b20261102", "linked-b20261103"} <= {one.name for one in reader.tags()}

    before = site.revision()
    form = {"slot": "linked", "build_id": "b20261103", "reason": "it crashes", "move_links": True, "approval": False}
    looked = site.run("undo_build", **form)
    assert looked.state == "success"
    assert looked.tasks["undo"] == "skipped"
    assert site.revision() == before
    undone = site.run("undo_build", **form, dry_run=False)
    assert undone.state == "success"
    assert site.revision() == before + 1
    assert _latest(site) == f"{FOLDER}/b20261102"
    assert site.opened.head(FQRN).revision.lookup(f"{FOLDER}/b20261103") is None
    assert site.leases() == []
