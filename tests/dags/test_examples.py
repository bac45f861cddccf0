"""The DAGs of examples/, each run by Airflow against the real store and gateway; nothing of them is in the ledger."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import BundleDagBag

from include.provenance.query import ask
from include.provenance.records import ChangeKind
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.stageout.opening import open_stageout
from include.stageout.passes import COMPONENTS, run_pass
from sensors.base import NightshiftSensor
from tests.dags.conftest import BUNDLE, FQRN, MiniSite, meanwhile, record
from tests.fakes import airflowhome
from tests.fakes.builds import tree
from tests.fakes.ftsserver import FtsServer

pytestmark = pytest.mark.server("weed")
FOLDER = airflowhome.ROOT / "examples"


@pytest.fixture(scope="module")
def examples(site: MiniSite) -> MiniSite:
    """The site, with the DAGs of examples/ instead of its own."""
    bag = BundleDagBag(str(FOLDER), bundle_path=FOLDER, bundle_name=BUNDLE)
    assert bag.import_errors == {}
    record(bag)
    return dataclasses.replace(site, bag=bag)


def test_each_example_has_one_dag_which_the_folder_of_dags_does_not_load(examples: MiniSite, site: MiniSite) -> None:
    assert set(examples.dags) == {file.stem for file in FOLDER.glob("*.py")}
    assert set(examples.dags) & set(site.dags) == set()
    for dag in examples.dags.values():
        assert dag.description
        assert [name for name in dag.params if not dag.params.get_param(name).description] == []
    page = (airflowhome.ROOT / "docs" / "your-own-dag.md").read_text()
    assert Path(FOLDER / "publish_tarball.py").read_text() in page


def test_a_tarball_is_published_linked_under_a_lease_and_removed_with_provenance(examples: MiniSite) -> None:
    store, path = examples.opened.store("builds"), "/daily/2026-10-01"
    store.put("examples/day.tar.gz", tree({"readme": b"of a day"}))
    source = f"{store.url}/examples/day.tar.gz"
    run = examples.run("publish_tarball", fqrn=FQRN, path=path, source=source)
    assert run.state == "success", run
    assert examples.opened.repository(FQRN).revision.read(f"{path}/readme") == b"of a day"
    (answer,) = ask(examples.opened, FQRN, path).answers
    assert (answer.record.run_id, answer.record.source, answer.checked.good) == (run.name, source, True)
    assert answer.record.holder == f"{run.name}/publish try 1"
    assert run.publications == {}, "the ledger of nights has nothing of it"

    before = examples.revision()
    # a link into the nested catalog's parent: the lease is on the link alone
    linked = examples.run("own_publisher", fqrn=FQRN, path="/current", target="daily/2026-10-01")
    assert linked.tasks == {"lease": "success", "set_link": "success", "lease_release": "success"}
    assert examples.revision() == before + 1
    assert examples.opened.repository(FQRN).revision.entry("/current").symlink == "daily/2026-10-01"
    a_directory = examples.run("own_publisher", fqrn=FQRN, path="/daily", target="x")
    assert a_directory.state == "failed"
    assert a_directory.tasks == {"lease": "success", "set_link": "failed", "lease_release": "success"}
    assert examples.leases() == [], "whatever became of the publisher, its lease is given back"

    removed = examples.run("remove_old_folder", fqrn=FQRN, day="2026-10-31", keep_days=30)
    assert removed.state == "success", removed
    assert examples.opened.repository(FQRN).revision.lookup(path) is None
    (answer,) = ask(examples.opened, FQRN, path).answers
    assert (answer.record.kind, answer.record.run_id) == (ChangeKind.REMOVED, removed.name)
    assert examples.leases() == []


def test_an_object_is_waited_for_and_then_the_repository_is_tagged(examples: MiniSite) -> None:
    store = examples.opened.store("builds")
    with meanwhile(NightshiftSensor, lambda: store.put("ready/now", b"")):
        run = examples.run("tag_when_ready", fqrn=FQRN, tag="ready-1")
    assert run.state == "success", run
    tag = examples.opened.repository(FQRN).tag("ready-1")
    assert tag.description == f"ready/now is there; {run.name}"
    assert not store.exists("ready/now")


@contextmanager
def passes(site: MiniSite, fts: FtsServer) -> Iterator[None]:
    """Passes of stage-out, one after the other, by a clock that is fast."""
    opened = Site(site.opened.settings, EnvSecrets({"AIRFLOW_CONN_FTS_DEFAULT": json.dumps({"host": fts.url})}))
    stop, began = threading.Event(), datetime.now(UTC)

    def work() -> None:
        stageout = open_stageout(opened, "passes")
        while not stop.wait(0.5):
            run_pass(stageout, COMPONENTS, now=lambda: began + 60 * (datetime.now(UTC) - began), left=lambda: True)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        try:
            yield
        finally:
            stop.set()
        done.result()
    opened.ledger.dispose()


def test_files_are_copied_by_an_fts_server(examples: MiniSite) -> None:
    with FtsServer(copies=True) as fts:
        connection = {"AIRFLOW_CONN_FTS_DEFAULT": json.dumps({"conn_type": "fts", "host": fts.url})}
        site = dataclasses.replace(examples, environment={**examples.environment, **connection})
        files = [{"source": "davs://there.example.org/a", "destination": "davs://here.example.org/a"}]
        with passes(site, fts):
            run = site.run("transfer_files", files=files)
    assert run.state == "success", run
    (job,) = fts.jobs.values()
    assert [file["dest_surl"] for file in job["files"]] == ["davs://here.example.org/a"]
