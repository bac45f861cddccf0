"""A repository is opened, read and checked through plain HTTP, with the public key only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.repo import app
from include.cvmfs.check.check import check
from include.cvmfs.revision.repository import OpenFailure, Repository, failure_of
from include.storage.file import FileStore
from tests.fakes import minirepo
from tests.fakes.minirepo import FQRN, MiniRepository, public_key, sample


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MiniRepository:
    monkeypatch.setattr(minirepo, "NOW", datetime.now(UTC))
    built = sample(FileStore(tmp_path / FQRN))
    built.publish()
    return built


@pytest.fixture
def url(tmp_path: Path, mini: MiniRepository) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{FQRN}"
        server.shutdown()
        thread.join()


def test_it_is_opened_read_and_checked_with_the_public_key_only(url: str) -> None:
    repository = Repository.open(url, fqrn=FQRN, public_keys=[public_key()])
    assert repository.verified
    assert repository.revision.read("/sw/app/big") == b"a" * 1000 + b"b" * 500 + b"c" * 700
    report = check(repository, contents=True)
    assert report.problems == ()
    assert report.objects == 10


def test_the_command_works_with_nothing_configured(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key.pub"
    key.write_bytes(public_key())
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "none.yaml"))
    result = CliRunner().invoke(app, ["check", url, "--key", str(key)], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "no problems found"


def test_a_server_without_a_repository_is_a_failed_download(url: str) -> None:
    for wrong in (f"{url}/none", "http://127.0.0.1:9/none"):
        with pytest.raises(Exception) as refused:  # noqa: PT011 - either tree of errors will do
            Repository.open(wrong, public_keys=[public_key()])
        assert failure_of(refused.value) is OpenFailure.DOWNLOAD
