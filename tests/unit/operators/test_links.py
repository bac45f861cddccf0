"""Links of tasks lead where a browser can go, and are left out elsewhere."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest

from operators.links import NightLink, SourceLink
from sensors.build import IndexLink
from tests.fakes.farstore import register
from tests.fakes.plainsite import plain_file


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


SOUGHT = ("main", date(2026, 11, 21))


@pytest.mark.parametrize(
    ("store", "sought", "link"),
    [
        ({"url": "s3://builds", "endpoint": "http://127.0.0.1:9"}, SOUGHT,
         "http://127.0.0.1:9/builds/main/2026-11-21/index.json"),
        ({"url": "https://builds.example.org"}, SOUGHT, "https://builds.example.org/main/2026-11-21/index.json"),
        ({}, SOUGHT, ""),
        ({"url": "https://builds.example.org"}, None, ""),
    ],
)  # fmt: skip
def test_the_index_is_linked_also_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: dict[str, str], sought: object, link: str
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(plain_file(tmp_path, store=store)))
    assert IndexLink().get_link(SimpleNamespace(sought=sought), ti_key=None) == link


@pytest.mark.parametrize(
    ("night", "query"),
    [
        ({"slot": "main", "date": "2026-11-21", "run": "r"}, "slot=main&date=2026-11-21"),
        ({"slot": "a&b", "date": "2026-11-21"}, "slot=a%26b&date=2026-11-21"),
        ({"elsewhere": "night__2026-11-21__first"}, None),
        (None, None),
        ("{{ not rendered }}", None),
    ],
)
def test_a_night_is_linked_on_its_page(night: object, query: str | None) -> None:
    link = NightLink().get_link(SimpleNamespace(night=night), ti_key=None)
    assert link.partition("/nightshift/nights?")[2] == (query or "")
    assert bool(link) == (query is not None)
