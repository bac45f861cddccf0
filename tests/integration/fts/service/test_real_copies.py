"""Copies of real files: between two XRootD servers, below a folder, and to S3."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from include.fts.client import FtsClient
from include.fts.jobs import FileStatus, FtsFile, FtsJob, JobParams, VerifyChecksum
from include.fts.states import FailureScope, FileState
from include.storage.open import Credentials
from lab.servers.weed import WeedServer
from tests.fakes.ftsservice import FtsService
from tests.servers.xrootd import XrootdServer

CONTENT = bytes(range(256)) * 4096
ADLER = f"adler32:{zlib.adler32(CONTENT):08x}"
KEYS = Credentials("access", "secret")


@pytest.fixture(scope="module")
def sites(need: Callable[[str], str]) -> Iterator[tuple[XrootdServer, XrootdServer]]:
    program = need("xrootd")
    with XrootdServer(program, "127.0.0.1") as first, XrootdServer(program, "127.0.0.2") as second:
        yield first, second


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FtsClient]:
    with FtsService(tmp_path_factory.mktemp("fts"), "--webdav") as service, FtsClient(service.url) as opened:
        yield opened


def _copied(client: FtsClient, *files: FtsFile, **params: Any) -> list[FileStatus]:
    job_id = client.submit(FtsJob(files, JobParams(**params)))
    while not (job := client.status([job_id]).jobs[job_id]).job_state.terminal:
        pass
    return list(job.files)


def _failure(file: FileStatus) -> tuple[FailureScope | None, int | None]:
    assert file.file_state is FileState.FAILED
    assert file.failure is not None
    return file.failure.scope, file.failure.errno


def test_files_are_copied_by_their_storages_with_checksums_at_both_ends(
    client: FtsClient, sites: tuple[XrootdServer, XrootdServer]
) -> None:
    source, destination = sites
    names = [f"deep/{number}/f" for number in range(5)]
    files = [FtsFile(source.put(name, CONTENT), destination.path(f"new/{name}"), len(CONTENT), ADLER) for name in names]
    copied = _copied(client, *files, verify_checksum=VerifyChecksum.BOTH)
    assert [(file.file_state, file.filesize, file.checksum) for file in copied] == [
        (FileState.FINISHED, len(CONTENT), ADLER)
    ] * 5
    assert all(destination.get(f"new/{name}") == CONTENT for name in names)
    assert destination.pulled() == {f"/store/new/{name}": 1 for name in names}


def test_what_is_wrong_is_found_and_leaves_nothing(client: FtsClient, sites: tuple[XrootdServer, XrootdServer]) -> None:
    source, destination = sites
    url = source.put("g", CONTENT)
    destination.put("there", b"other")
    wrong = "adler32:00000002"
    missing, differs, copied = _copied(
        client,
        FtsFile(source.path("missing"), destination.path("a")),
        FtsFile(url, destination.path("b"), checksum=wrong),
        FtsFile(url, destination.path("c"), len(CONTENT) + 1),
        verify_checksum=VerifyChecksum.SOURCE,
    )
    assert _failure(missing) == (FailureScope.SOURCE, 2)
    assert _failure(differs) == (FailureScope.SOURCE, 5)
    assert copied.file_state is FileState.FINISHED, "FTS does not compare the size that the user gives"
    (target,) = _copied(
        client, FtsFile(url, destination.path("d"), checksum=wrong), verify_checksum=VerifyChecksum.TARGET
    )
    assert _failure(target) == (FailureScope.DESTINATION, 5)
    assert [destination.get(name) for name in "abcd"] == [None, None, CONTENT, None]
    (exists,) = _copied(client, FtsFile(url, destination.path("there")), dst_file_report=True)
    assert _failure(exists) == (FailureScope.DESTINATION, 17)
    (replaced,) = _copied(client, FtsFile(url, destination.path("there")), overwrite=True)
    assert replaced.file_state is FileState.FINISHED
    assert destination.get("there") == CONTENT


def test_bytes_are_streamed_where_a_storage_does_not_copy_by_itself(
    tmp_path: Path, sites: tuple[XrootdServer, XrootdServer]
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "f").write_bytes(CONTENT)
    (tmp_path / "secret").write_bytes(b"not below the folder")
    with FtsService(tmp_path, "--webdav", "--folder", str(folder)) as service:
        up = _ends(service, "file://localhost/f", sites[1].path("streamed"), "both")
        assert (up["file_state"], sites[1].get("streamed")) == ("FINISHED", CONTENT)
        down = _ends(service, sites[1].path("streamed"), "file://localhost/deep/g", "both")
        assert (down["file_state"], (folder / "deep/g").read_bytes()) == ("FINISHED", CONTENT)
        (folder / "link").symlink_to(tmp_path)
        for path in ("../secret", "%2e%2e/secret", "link/secret"):
            reason = _ends(service, f"file://localhost/{path}", sites[1].path("s"), "none")["reason"]
            assert reason.startswith("SOURCE [13]"), path


def test_a_killed_service_leaves_no_parts_of_copies(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    large = [folder / name for name in ("a", "b")]
    for path in large:
        with path.open("wb") as file:
            file.truncate(8 << 30)
    body = {"files": [{"sources": [f"file://localhost/{name}"], "destinations": [f"file://localhost/to/{name}"]}
                      for name in ("a", "b")]}  # fmt: skip
    with FtsService(tmp_path, "--folder", str(folder)) as service:
        job_id = requests.post(f"{service.url}/jobs", json=body, timeout=20).json()["job_id"]
        job = f"{service.url}/jobs/{job_id}"
        while len(list(folder.glob("to/.*"))) < 2:
            pass
        canceled, *_ = requests.get(f"{job}/files", timeout=20).json()
        # the copy of a single file that is canceled goes on, as with FTS
        assert requests.delete(f"{job}/files/{canceled['file_id']}", timeout=20).json() == "CANCELED"
        service.kill()
        assert sorted(path.name[:3] for path in folder.glob("to/*")) == [".a.", ".b."]
        for path in large:
            path.write_bytes(CONTENT)
        service.start()
        while requests.get(job, timeout=20).json()["job_finished"] is None:
            pass
        assert {path.name: path.stat().st_size for path in folder.glob("to/*")} == {"b": len(CONTENT)}


def test_objects_are_copied_to_s3_and_back(tmp_path: Path, weed: WeedServer) -> None:
    content = CONTENT * 20
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "f").write_bytes(content)
    keys = {
        "NIGHTSHIFT_S3_ACCESS_KEY": weed.credentials.access_key,
        "NIGHTSHIFT_S3_SECRET_KEY": weed.credentials.secret_key,
    }
    options = ("--folder", str(folder), "--s3-endpoint", weed.endpoint)
    with FtsService(tmp_path, *options, environment=keys) as service:
        up = _ends(service, "file://localhost/f", "s3://nights/fts/f", "both")
        assert up["file_state"] == "FINISHED"
        down = _ends(service, "s3://nights/fts/f", "file://localhost/g", "both")
        assert (down["file_state"], (folder / "g").read_bytes()) == ("FINISHED", content)
        missing = _ends(service, "s3://nights/fts/missing", "file://localhost/h", "both")
        assert missing["reason"].startswith("SOURCE [2]")
        exists = _ends(service, "file://localhost/f", "s3://nights/fts/f", "both")
        assert exists["reason"].startswith("DESTINATION [17]")


def _ends(service: FtsService, source: str, destination: str, verify: str) -> dict[str, Any]:
    """The file of a job when it has ended. Our client refuses files of one machine, as FTS3 does."""
    body = {"files": [{"sources": [source], "destinations": [destination]}], "params": {"verify_checksum": verify}}
    job_id = requests.post(f"{service.url}/jobs", json=body, timeout=20).json()["job_id"]
    while True:
        job = requests.get(f"{service.url}/jobs/{job_id}?files=file_state,reason", timeout=20).json()
        if job["job_finished"]:
            found: dict[str, Any] = job["files"][0]
            return found
