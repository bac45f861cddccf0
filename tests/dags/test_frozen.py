"""A frozen repository: a night waits in the triggerer, says why, and goes on by itself once it is thawed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from include.cvmfs.coordination.freeze import KEY
from include.cvmfs.errors import RepositoryFrozen
from include.provenance import interventions
from include.provenance.records import check, nearest
from tests.dags.conftest import FQRN, MiniSite
from tests.fakes.builds import Build, tree
from tests.fakes.refused import refused
from triggers.checks import CHECKS, Connect, Observation, WaitCheck

pytestmark = pytest.mark.server("weed")


@pytest.fixture
def store(site: MiniSite) -> Iterator[MiniSite]:
    yield site
    site.opened.repository_store(FQRN).delete([KEY])


def test_a_night_waits_for_the_thaw_and_then_publishes(store: MiniSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = store
    site.drop(Build("2026-08-01").add("Cold", "x86_64", tree({"a": b"a"})))
    before, now = site.revision(), datetime.now(UTC)
    interventions.freeze(site.opened, FQRN, reason="disks are moved", who="op@host", until=None, now=now)
    seen: list[int] = []
    looked, thaw_check = threading.Event(), CHECKS["thaw"]

    def looks(connect: Connect, repository: str) -> Observation:
        found = thaw_check.look(connect, repository)
        looked.set()
        return found

    def thaw() -> None:
        looked.wait(60)
        seen.append(site.revision())
        interventions.thaw(site.opened, FQRN, who="op@host", now=datetime.now(UTC))

    monkeypatch.setitem(cast("dict[str, WaitCheck]", CHECKS), "thaw", thaw_check._replace(look=looks))
    operator = threading.Thread(target=thaw)
    operator.start()
    run = site.run("nightly_install_main", build_date="2026-08-01")
    operator.join()
    assert looked.is_set()
    assert run.state == "success", run
    assert run.states() == {"Cold/x86_64": "published"}
    assert seen == [before]
    (record,) = nearest(site.opened.ledger, FQRN, next(iter(run.publications)) + "/a")
    assert record[0].run_id == run.name
    assert record[0].artifact_sha256 == next(iter(run.publications.values())).artifact_sha256
    assert check(site.opened, *record).verdict == "signed by gateway key worker"
    rows = interventions.interventions_of(site.opened.ledger, FQRN, limit=2)
    assert [(one.kind, one.who, one.reason) for one in rows] == [
        ("thaw", "op@host", "disks are moved"), ("freeze", "op@host", "disks are moved"),
    ]  # fmt: skip


def test_who_publishes_by_hand_is_refused_before_anything_is_changed(store: MiniSite) -> None:
    now = datetime.now(UTC)
    until = now + timedelta(hours=1)
    interventions.freeze(store.opened, FQRN, reason="audit", who="op@host", until=until, now=now)
    with refused(RepositoryFrozen, fqrn=FQRN):
        store.opened.publisher(FQRN)
