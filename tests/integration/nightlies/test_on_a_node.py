"""A whole run through the steps of the night on a repository with a publisher node."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import pytest

from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.publication import State
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.publish import publish_batch, reserve_run
from include.nightlies.steps.values import Batch, Night
from include.nightlies.steps.verify import tidy_run, verify_run
from include.publishers.capabilities import Loss
from include.publishers.errors import Lossy, NodeBusy
from include.site.site import Site
from tests.fakes.archives import archive, file, hardlink
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.fakes.node import PublisherNode
from tests.site import FQRN

pytestmark = pytest.mark.server("sshd")
GAUDI = {"lib/libGaudi.so": b"\x7fELF" * 500, "bin/gaudirun.py": b"#!/usr/bin/env python3\n"}
REC = {"lib/libRec.so": b"\x7fELF again" * 300}


def planned(site: Site, artifacts: Mapping[str, bytes], *, dry_run: bool = False) -> list[Batch]:
    """Drop a build of these tarballs by project, and plan its night: one batch an artifact."""
    build = Build("2026-11-20")
    for project, data in artifacts.items():
        build.add(project, "x86_64", data)
    build.store_in(site.store("cvmfs"))
    night = Night("night/20", "main", date(2026, 11, 20), "test", dry_run=dry_run)
    return list(plan_night(site, attempt(), night, max_mapped=10).batches)


def states(site: Site) -> dict[str, State]:
    return {str(one.project): one.state for one in publications_of_run(site.ledger, "night/20")}


def test_a_night_is_prepared_published_and_verified_and_what_came_to_nothing_is_tidied(node: PublisherNode) -> None:
    site = node.site()
    batches = planned(site, {"Gaudi": tree(GAUDI), "Rec": tree(REC), "Broken": b"no tarball"})
    reservation = reserve_run(site, attempt(holder="reserve"), batches)
    assert len(reservation.created) > 3
    assert node.revisions == 1
    for batch in batches:
        prepare_batch(site, attempt(), batch)
        assert node.revisions == 1, "preparing needs no node"
    for batch in batches:
        publish_batch(site, attempt(holder="publish"), batch)
    removed = tidy_run(site, attempt(holder="verify"), batches)
    assert [path.rpartition("/")[2] for path in removed] == ["Broken"]
    read = verify_run(site, attempt("night/20"))
    assert len(read) == 2
    assert states(site) == {"Gaudi": State.PUBLISHED, "Rec": State.PUBLISHED, "Broken": State.FAILED}
    top = "/nightlies/main/b20261120"
    assert node.contents(f"{top}/Gaudi/x86_64") == GAUDI
    assert node.contents(f"{top}/Rec/x86_64") == REC
    before = node.revisions
    for batch in batches:  # a run that is cleared and comes again finds all done
        publish_batch(site, attempt(holder="publish", number=2), batch)
    assert node.revisions == before == 4
    node.assert_sound()


def test_a_dry_run_asks_nothing_of_the_node(node: PublisherNode) -> None:
    site = node.site()
    batches = planned(site, {"Gaudi": tree(GAUDI)}, dry_run=True)
    reserve_run(site, attempt(holder="reserve"), batches)
    outcome = prepare_batch(site, attempt(), batches[0])
    assert not outcome.failures
    assert outcome.done[0].reason.startswith("dry run: would publish 3 files")
    assert node.calls() == []
    assert not list((node.folder / "var" / "packed").rglob("*.tar"))


def test_a_worker_that_did_not_pack_the_tree_packs_it_again(node: PublisherNode) -> None:
    site = node.site()
    batches = planned(site, {"Gaudi": tree(GAUDI)})
    reserve_run(site, attempt(holder="reserve"), batches)
    prepare_batch(site, attempt(), batches[0])
    for one in (node.folder / "var" / "packed").rglob("*.tar"):
        one.unlink()
    outcome = publish_batch(site, attempt(holder="publish"), batches[0])
    assert not outcome.failures
    assert "prepared again, since" in outcome.done[0].reason
    verify_run(site, attempt("night/20"))
    assert not list((node.folder / "var" / "packed").rglob("*.tar")), "what is published is not kept"


def test_a_node_that_another_task_has_makes_the_artifact_busy_and_no_failure(node: PublisherNode) -> None:
    site = node.site()
    batches = planned(site, {"Gaudi": tree(GAUDI)})
    reserve_run(site, attempt(holder="reserve"), batches)
    prepare_batch(site, attempt(), batches[0])
    with site.server(FQRN).node.work("", holder="another task"):
        outcome = publish_batch(site, attempt(holder="publish"), batches[0])
    assert not outcome.failures
    (busy,) = outcome.busy.values()
    assert isinstance(busy, NodeBusy)
    assert not publish_batch(site, attempt(holder="publish"), batches[0]).busy
    assert states(site) == {"Gaudi": State.PUBLISHED}


def test_what_would_be_lost_on_the_way_is_refused_when_it_is_prepared(node: PublisherNode) -> None:
    linked = archive([file("lib/a", b"content"), hardlink("lib/b", "lib/a")])
    site = node.site()
    batches = planned(site, {"Gaudi": linked})
    outcome = prepare_batch(site, attempt(), batches[0])
    (failure,) = outcome.failures.values()
    assert isinstance(failure, Lossy)
    assert failure.loss is Loss.HARD_LINKS
    assert failure.path.endswith("Gaudi/x86_64/lib/b")
    assert node.calls() == []
