"""The link to an artifact leads where a browser can go, and is left out elsewhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from operators.links import SourceLink
from tests.fakes.farstore import register


@pytest.mark.parametrize(
    ("source", "link"),
    [
        ("https://builds.example.org/a.tar", "https://builds.example.org/a.tar"),
        ("s3://builds/a.tar", "http://127.0.0.1:9/builds/a.tar"),
        ("s3://elsewhere/a.tar", ""),
        ("far://pool/a.tar", ""),
        ("file:///srv/a.tar", ""),
        ("", ""),
    ],
)
def test_an_artifact_is_linked_where_a_browser_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, link: str
) -> None:
    register(monkeypatch)
    (tmp_path / "site.yaml").write_text(
        f'ledger: "sqlite:///{tmp_path}/l.db"\nstores:\n'
        "  builds: {url: 's3://builds', endpoint: 'http://127.0.0.1:9'}\n"
        "  pool: {url: 'far://pool', endpoint: 'http://127.0.0.1:9'}\n"
        "  folder: {url: 'file:///srv'}\n"
    )
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    operator = SimpleNamespace(batch={"items": [{"source": source}]})
    assert SourceLink().get_link(operator, ti_key=None) == link
