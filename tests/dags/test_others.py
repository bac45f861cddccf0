"""Operators for others' DAGs on the real store and gateway: every kind of source, waits, deaths, and refusals."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSensorTimeout, TaskDeferred

from hooks.gateway import held_lease
from include.cvmfs.errors import DestinationError, SourceError, TagError
from include.gateway.client.client import GatewayClient
from include.gateway.errors import BAD_SIGNATURE, SEALED_LEASE_UNREADABLE, BadLeasePath, LeaseLost
from include.nightlies.errors import APPROVAL_REQUIRED, ArtifactMissing, SourceNotAllowed
from include.provenance import single_changes as provenance
from include.provenance.query import ask
from include.settings.errors import SettingsError
from include.site.site import Site
from include.site.stale_leases import LeaseOwnership, judge
from operators.cvmfs import (
    CvmfsLeaseOperator,
    CvmfsPublishTreeOperator,
    CvmfsReleaseOperator,
    CvmfsRemoveOperator,
    CvmfsTagOperator,
    cvmfs_lease,
)
from operators.lease_task import Killed
from sensors.cvmfs import CvmfsPathSensor, CvmfsRevisionSensor, LeaseFreeSensor
from tests.dags.conftest import FQRN, KEY, MiniSite
from tests.fakes.builds import tree
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

pytestmark = pytest.mark.server("weed")


def publish(path: str, source: object, try_number: int = 1, **more: Any) -> dict[str, Any]:
    operator = CvmfsPublishTreeOperator(task_id="publish", fqrn=FQRN, path=path, source=str(source), **more)
    done: dict[str, Any] = operator.execute(task_context(try_number=try_number))
    return done


def read(site: MiniSite, path: str) -> bytes:
    return site.opened.repository(FQRN).revision.read(path)


def connection(monkeypatch: pytest.MonkeyPatch, name: str, base: str, **change: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(json.loads(os.environ[f"AIRFLOW_CONN_{base}"]) | change))


def test_a_folder_a_tarball_and_a_zip_of_the_worker_are_published(site: MiniSite, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"folder")
    (tmp_path / "it.tar.gz").write_bytes(tree({"deep/file": b"tarball"}))
    with zipfile.ZipFile(tmp_path / "it.zip", "w") as archive:
        archive.writestr("deep/file", b"zip")
    for name, source in (("folder", folder), ("tarball", tmp_path / "it.tar.gz"), ("zip", tmp_path / "it.zip")):
        path = f"/others/kinds/{name}"
        dry = publish(path, source, dry_run=True)
        assert (dry["dry_run"], dry["created"][-1]) == (True, path)
        done = publish(path, source)
        assert (done["unchanged"], done["files"] > 0) == (False, True)
        assert read(site, f"{path}/deep/file") == name.encode()
        again = publish(path, source)
        assert (again["unchanged"], again["revision"]) == (True, done["revision"])
    assert site.leases() == []


def test_a_source_in_a_store_of_a_connection_is_published_with_its_sum(
    site: MiniSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tree({"file": b"theirs"})
    (tmp_path / "their.tar.gz").write_bytes(data)
    monkeypatch.setenv("AIRFLOW_CONN_THEIRS", json.dumps({"conn_type": "object_store"}))
    source, right = f"{tmp_path.as_uri()}/their.tar.gz", hashlib.sha256(data).hexdigest()
    with refused(SourceNotAllowed):
        publish("/others/theirs", source)
    with refused(SourceError):
        publish("/others/theirs", source, store_conn_id="theirs", sha256="0" * 64)
    with refused(ArtifactMissing):
        publish("/others/theirs", f"{source}.missing", store_conn_id="theirs")
    assert site.opened.repository(FQRN).revision.lookup("/others/theirs") is None
    assert not publish("/others/theirs", source, store_conn_id="theirs", sha256=right)["unchanged"]
    assert read(site, "/others/theirs/file") == b"theirs"


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (SourceError, {"source": "relative/folder"}),
        (SourceError, {"source": "/not/there"}),
        (DestinationError, {"path": "/"}),
        (DestinationError, {"path": "/a/../b"}),
        (TagError, {"tag": "a tag"}),
        (SettingsError, {"fqrn": "unknown.example.org"}),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_changed(
    site: MiniSite, tmp_path: Path, error: type[Exception], arguments: dict[str, str]
) -> None:
    before = site.revision()
    with pytest.raises(error):
        CvmfsPublishTreeOperator(
            task_id="it", **{"fqrn": FQRN, "path": "/others/wrong", "source": str(tmp_path), **arguments}
        ).execute(task_context())
    assert (site.revision(), site.leases()) == (before, [])


def test_other_content_is_replaced_only_if_asked_for_and_a_dry_run_says_so(site: MiniSite, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")
    publish("/others/replaced", tmp_path)
    (tmp_path / "a").write_bytes(b"second")
    for dry_run in (True, False):
        with refused(DestinationError, path="/others/replaced"):
            publish("/others/replaced", tmp_path, dry_run=dry_run)
    publish("/others/replaced", tmp_path, replace=True)
    assert read(site, "/others/replaced/a") == b"second"


def test_a_tree_is_tagged_with_its_publication_and_a_tag_that_is_taken_leaves_no_directory(
    site: MiniSite, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    done = publish("/others/tagged", tmp_path, tag="others-1", message="for all")
    assert site.opened.repository(FQRN).tag("others-1").revision == done["revision"]
    assert publish("/others/tagged", tmp_path, tag="others-1", message="for all")["unchanged"]
    with refused(TagError):
        publish("/others/taken/deep", tmp_path, tag="others-1")
    assert site.opened.repository(FQRN).revision.lookup("/others/taken") is None


def test_a_repository_that_asks_for_approval_is_left_to_the_dag_that_asks(
    site: MiniSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site.yaml"
    text = (site.folder / "site.yaml").read_text()
    file.write_text(text.replace("    gateway: gateway\n", "    gateway: gateway\n    approval: {}\n"))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(file))
    for operator in (
        CvmfsPublishTreeOperator(task_id="a", fqrn=FQRN, path="/others/asked", source=str(tmp_path)),
        CvmfsRemoveOperator(task_id="b", fqrn=FQRN, paths="/others"),
        CvmfsLeaseOperator(task_id="c", fqrn=FQRN, path="/others"),
    ):
        with refused(APPROVAL_REQUIRED):
            operator.execute(task_context())


def test_what_was_prepared_is_published_after_the_wait_without_the_source(site: MiniSite, tmp_path: Path) -> None:
    archive = tmp_path / "it.tar.gz"
    archive.write_bytes(tree({"a": b"prepared once"}))
    arguments = {"fqrn": FQRN, "path": "/others/busy/1", "source": str(archive), "patience_s": 0.0}
    with (
        site.client() as client,
        client.lease(FQRN, "/others/busy", hostname="somebody"),
        pytest.raises(TaskDeferred) as deferred,
    ):
        CvmfsPublishTreeOperator(task_id="it", **arguments).execute(task_context())
    archive.unlink()
    row = deferred.value.trigger.serialize()[1]
    event = {"found": True, "reason": "free", "since": row["since"]}
    back = CvmfsPublishTreeOperator(task_id="it", **arguments)  # a process of its own
    done = getattr(back, deferred.value.method_name)(task_context(), event=event, **(deferred.value.kwargs or {}))
    assert not done["unchanged"]
    assert read(site, "/others/busy/1/a") == b"prepared once"


def test_a_killed_publication_gives_its_lease_back(
    site: MiniSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"killed")
    operator = CvmfsPublishTreeOperator(task_id="it", fqrn=FQRN, path="/others/killed", source=str(tmp_path))
    site.opened.publisher(FQRN).reserve(["/others/killed"], nested=[], holder="it", now=datetime.now(UTC))
    before = site.revision()

    def killed(*_: object, **__: object) -> NoReturn:
        assert site.leases() == [f"{FQRN}/others/killed"]
        operator.on_kill()
        raise AssertionError("went on")

    with monkeypatch.context() as patch:
        patch.setattr(GatewayClient, "commit", killed)
        with pytest.raises(Killed):
            operator.execute(task_context())
    assert (site.revision(), site.leases()) == (before, [])


def test_a_try_that_died_before_it_said_what_it_did_is_told_of_by_the_next(
    site: MiniSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"died")
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "note", lambda *_: False)
        publish("/others/died", tmp_path)
    assert ask(site.opened, FQRN, "/others/died").answers == ()
    assert publish("/others/died", tmp_path, try_number=2)["unchanged"]
    (found,) = ask(site.opened, FQRN, "/others/died").answers
    assert (found.record.run_id, found.record.path, found.checked.good) == ("night/run-1", "/others/died", True)
    publish("/others/died", tmp_path, try_number=2)
    assert len(ask(site.opened, FQRN, "/others/died", limit=9).answers) == 1


def test_a_key_of_ones_own_is_used_and_a_wrong_one_refused(
    site: MiniSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"own key")
    connection(monkeypatch, "OWN", "GATEWAY")
    connection(monkeypatch, "WRONG", "GATEWAY", password="another")
    with refused(BAD_SIGNATURE):
        publish("/others/key", tmp_path, gateway_conn_id="wrong")
    assert not publish("/others/key", tmp_path, gateway_conn_id="own")["unchanged"]
    (found,) = ask(site.opened, FQRN, "/others/key").answers
    assert (found.record.key_id, found.checked.good) == (KEY[0], True)
    free = LeaseFreeSensor(task_id="it", fqrn="not.configured.example.org", path="/a", gateway_conn_id="own")
    assert free.execute(task_context()) is None


def lease_tasks(path: str) -> tuple[CvmfsLeaseOperator, CvmfsReleaseOperator]:
    with DAG("leases_of_others", schedule=None) as dag, cvmfs_lease(fqrn=FQRN, path=path):
        pass
    take, release = dag.get_task("lease"), dag.get_task("lease_release")
    assert isinstance(take, CvmfsLeaseOperator)
    assert isinstance(release, CvmfsReleaseOperator)
    assert (take.is_setup, release.is_teardown, release.on_failure_fail_dagrun) == (True, True, False)
    return take, release


def test_a_lease_is_held_by_the_task_that_gives_it_back_and_is_used_in_between(site: MiniSite) -> None:
    take, release = lease_tasks("/others-lease")
    taken = json.loads(json.dumps(take.execute(task_context())))
    with site.client() as client:
        (info,) = client.leases()
    assert info.hostname == "night/run-1/lease_release try 1"
    states: dict[str, str | None] = {"lease": "success", "lease_release": "not scheduled yet"}
    assert judge(info, KEY[0], lambda task: states[task.task_id]).whose is LeaseOwnership.ALIVE
    with held_lease(taken) as (client, held):
        assert held.token not in json.dumps(taken)
        assert client.left_s(held) is not None
    assert site.leases() == [f"{FQRN}/others-lease"], "a task that used it does not give it back"
    release.lease = taken
    assert release.execute(task_context()) is True
    assert site.leases() == []
    assert release.execute(task_context()) is False, "a second try finds it gone"
    with refused(LeaseLost), held_lease(taken):
        pass


def test_a_lease_waits_for_its_path_and_is_read_with_its_own_key_only(
    site: MiniSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, release = lease_tasks("/others-lease/deep")
    take.patience_s = 0.0
    with site.client() as client, client.lease(FQRN, "/others-lease", hostname="somebody"), pytest.raises(TaskDeferred):
        take.execute(task_context())
    taken = take.execute(task_context())
    release.lease = taken
    with monkeypatch.context() as patch:
        connection(patch, "GATEWAY", "GATEWAY", password="changed")
        with refused(SEALED_LEASE_UNREADABLE):
            release.execute(task_context())
    release.execute(task_context())
    with refused(BadLeasePath):
        CvmfsLeaseOperator(task_id="it", fqrn=FQRN, path="/a/../b").execute(task_context())
    assert site.leases() == []


def test_several_paths_are_removed_in_one_revision_and_one_inside_another_is_refused(
    site: MiniSite, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    for name in ("1", "2"):
        publish(f"/others/gone/{name}", tmp_path)

    def remove(*paths: str, **more: Any) -> dict[str, Any]:
        operator = CvmfsRemoveOperator(task_id="it", fqrn=FQRN, paths=list(paths), **more)
        done: dict[str, Any] = operator.execute(task_context())
        return done

    paths, before = ("/others/gone/1", "/others/gone/2", "/others/gone/3"), site.revision()
    assert remove(*paths, dry_run=True)["removed"] == [*paths[:2]]
    with refused(DestinationError):
        remove("/others/gone", "/others/gone/1")
    assert site.revision() == before
    done = remove(*paths)
    assert (done["removed"], done["absent"], done["revision"]) == ([*paths[:2]], [paths[2]], before + 1)
    assert remove(*paths)["unchanged"]


def test_a_tag_is_given_once_by_a_run_and_refused_to_another(site: MiniSite) -> None:
    def tag(**more: Any) -> dict[str, Any]:
        operator = CvmfsTagOperator(task_id="it", fqrn=FQRN, tag="others-2", path="/others", **more)
        done: dict[str, Any] = operator.execute(task_context())
        return done

    root = site.opened.repository(FQRN).revision.listing("/")
    done = tag(message="good")
    assert not done["unchanged"]
    found = site.opened.repository(FQRN).tag("others-2")
    assert (found.revision, found.description) == (done["revision"], "good; night/run-1")
    assert site.opened.repository(FQRN).revision.listing("/") == root
    assert tag(message="good")["unchanged"]
    with refused(TagError, name="others-2"):
        tag(message="another")


@pytest.fixture
def waits(site: MiniSite) -> Callable[..., Any]:
    def wait(sensor: type[Any], **arguments: Any) -> Any:
        return sensor(task_id="wait", fqrn=FQRN, poke_interval=0.1, **arguments).execute(task_context())

    return wait


def test_paths_revisions_and_tags_are_waited_for_by_the_task_itself_where_it_is_not_deferrable(
    site: MiniSite, tmp_path: Path, waits: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"seen")
    done = publish("/others/seen", tmp_path, tag="others-seen")
    found = waits(CvmfsPathSensor, path="/others/seen/a", deferrable=False, timeout=5)
    assert found == {"fqrn": FQRN, "path": "/others/seen/a", "revision": done["revision"]}
    assert waits(CvmfsRevisionSensor, revision=str(done["revision"]), deferrable=False, timeout=5)["fqrn"] == FQRN
    named = waits(CvmfsRevisionSensor, tag="others-seen", revision=2, deferrable=False, timeout=5)
    assert named["revision"] == done["revision"]
    looks: list[str] = []
    repository = Site.repository

    def look(self: Site, fqrn: str) -> Any:
        looks.append(fqrn)
        if len(looks) == 2:
            publish("/others/late", tmp_path)
        return repository(self, fqrn)

    monkeypatch.setattr(Site, "repository", look)
    waits(CvmfsPathSensor, path="/others/late", deferrable=False, timeout=30)
    assert len(looks) == 2
    for sensor, arguments in (
        (CvmfsPathSensor, {"path": "/others/seen", "absent": True}),
        (CvmfsRevisionSensor, {"revision": done["revision"] + 1000}),
        (CvmfsRevisionSensor, {"tag": "never-given"}),
    ):
        with pytest.raises(AirflowSensorTimeout):
            waits(sensor, deferrable=False, timeout=0.2, **arguments)
        with pytest.raises(TaskDeferred):
            waits(sensor, deferrable=True, timeout=60, **arguments)


def test_a_path_that_is_none_ends_the_wait_at_once(waits: Callable[..., Any]) -> None:
    for deferrable in (True, False):
        with refused(DestinationError):
            waits(CvmfsPathSensor, path="/a/../b", deferrable=deferrable, timeout=60)
