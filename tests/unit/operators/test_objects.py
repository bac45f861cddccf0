"""Objects of a store from others' DAGs: put, copied, deleted; repeated, refused, and only reported."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.errors import CHECKSUM_MISMATCH, OBJECT_TOO_LARGE, REPOSITORY_OBJECT, BadKey, Conflict, NotFound
from operators.objects import ObjectCopyOperator, ObjectDeleteOperator, ObjectOperator, ObjectPutOperator
from tests.fakes.plainsite import FQRN, plain_site
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the connection `ours`."""
    connection = {"conn_type": "object_store", "extra": {"url": f"{tmp_path.as_uri()}/ours"}}
    site = Site(plain_site(tmp_path).settings, EnvSecrets({"AIRFLOW_CONN_OURS": json.dumps(connection)}))
    ours = tmp_path / "ours"
    ours.mkdir()
    monkeypatch.setattr(ObjectOperator, "site", lambda _: site)
    return ours


def run(operator: type[ObjectOperator], **arguments: Any) -> Any:
    return operator(task_id="it", store_conn_id="ours", **arguments).execute(task_context())


def test_an_object_is_stored_once_with_its_sum(folder: Path) -> None:
    sum_of_it = hashlib.sha256(b"text").hexdigest()
    done = run(ObjectPutOperator, key="a/b", data="text", sha256=sum_of_it)
    assert done == {
        "url": f"{folder.as_uri()}/a/b", "size": 4, "sha256": sum_of_it, "unchanged": False, "dry_run": False,
    }  # fmt: skip
    assert (folder / "a" / "b").read_bytes() == b"text"
    assert run(ObjectPutOperator, key="a/b", data=b"text")["unchanged"]


def test_other_content_is_refused_unless_it_is_to_be_replaced(folder: Path) -> None:
    run(ObjectPutOperator, key="a", data="first")
    with refused(Conflict, key="a"):
        run(ObjectPutOperator, key="a", data="second")
    assert not run(ObjectPutOperator, key="a", data="second", replace=True, dry_run=True)["unchanged"]
    assert (folder / "a").read_bytes() == b"first"
    run(ObjectPutOperator, key="a", data="second", replace=True)
    assert (folder / "a").read_bytes() == b"second"


def test_nothing_is_stored_with_a_wrong_sum_or_size_or_in_a_dry_run(folder: Path, tmp_path: Path) -> None:
    with refused(CHECKSUM_MISMATCH, key="a"):
        run(ObjectPutOperator, key="a", data="text", sha256="0" * 64)
    (tmp_path / "file").write_bytes(b"12345")
    with refused(OBJECT_TOO_LARGE, key="file"):
        run(ObjectPutOperator, key="a", file=str(tmp_path / "file"), max_bytes=4)
    assert run(ObjectPutOperator, key="a", file=str(tmp_path / "file"), dry_run=True)["size"] == 5
    assert list(folder.iterdir()) == []


def test_an_object_is_copied_within_a_store_and_from_another(folder: Path) -> None:
    run(ObjectPutOperator, key="from", data="text")
    assert run(ObjectCopyOperator, source_key="from", key="to")["size"] == 4
    assert run(ObjectCopyOperator, source_key="from", key="to")["unchanged"]
    assert (folder / "to").read_bytes() == b"text"
    with refused(NotFound, key="absent"):
        run(ObjectCopyOperator, source_key="absent", key="to")
    with refused(CHECKSUM_MISMATCH, key="other"):
        run(ObjectCopyOperator, source_key="from", key="other", sha256="0" * 64, source_store_conn_id="ours")
    assert not (folder / "other").exists()


def test_objects_are_deleted_by_key_and_by_folder_and_absent_ones_are_no_failure(folder: Path) -> None:
    for key in ("a", "day/1", "day/2", "days"):
        run(ObjectPutOperator, key=key, data=key)
    assert run(ObjectDeleteOperator, keys=["a", "absent"], prefix="day", dry_run=True) == ["a", "day/1", "day/2"]
    assert (folder / "a").exists()
    assert run(ObjectDeleteOperator, keys=["a", "absent"], prefix="day/") == ["a", "day/1", "day/2"]
    assert run(ObjectDeleteOperator, keys="a") == []
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["days"]


@pytest.mark.parametrize("prefix", ["", "/", "..", "a/../.."])
def test_a_whole_store_is_never_deleted(folder: Path, prefix: str) -> None:
    run(ObjectPutOperator, key="a", data="text")
    with refused(BadKey):
        run(ObjectDeleteOperator, prefix=prefix)
    assert (folder / "a").exists()


def test_objects_of_a_repository_are_left_to_its_publishers(folder: Path) -> None:
    site = plain_site(folder.parent)
    store = site.settings.repository(FQRN).store
    for operator, arguments in (
        (ObjectPutOperator, {"key": f"{FQRN}/.cvmfspublished", "data": "x", "replace": True}),
        (ObjectCopyOperator, {"source_key": "a", "key": f"{FQRN}/data/x"}),
        (ObjectDeleteOperator, {"prefix": f"{FQRN}/data"}),
        (ObjectDeleteOperator, {"prefix": FQRN}),
    ):
        with refused(REPOSITORY_OBJECT):
            operator(task_id="it", store=store, **arguments).execute(task_context())  # type: ignore[arg-type]
