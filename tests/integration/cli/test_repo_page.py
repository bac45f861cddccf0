"""docs/repo.md is true: its commands run in their order, at a site of their own, and say what the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.repo import app
from include.gateway.service.config import AcceptedKey
from include.storage.file import FileStore
from tests.fakes.apart import one_repository, port_of, running_gateway
from tests.fakes.orders import KEY_ID, SECRET

PAGE = Path(__file__).parents[3] / "docs" / "repo.md"
FQRN = "nightlies.example.org"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
# What differs from run to run.
MASKS = (
    (re.compile(r"[0-9a-f]{40}"), "<hash>"),
    (re.compile(r"data/[0-9a-f]{2}/[0-9a-f]{38}"), "<object>"),
    (re.compile(r"([0-9A-F]{2}:){19}[0-9A-F]{2}"), "<fingerprint>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|\+00:00| UTC)?"), "<time>"),
    (re.compile(r"\d+\.\d+ (s|hours|days)\b"), "<span>"),
    (re.compile(r"file:///\S+"), "<url>"),
    (re.compile(r"(objects) \(\d+ bytes\)"), r"\1 (<bytes>)"),
    # revisions within one second may share an object
    (re.compile(r"\d+ (stay|superseded|names that were listed)"), r"<number> \1"),
    (re.compile(r"/\S+/keys\b"), "<keys>"),
    (re.compile(r"^(root catalog bytes|uid|gid) +\d+$"), r"\1 <number>"),
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configured repository that is not there yet, a gateway, and a build on disk."""
    store, keys = FileStore(tmp_path / "store" / FQRN), tmp_path / "keys"
    (tmp_path / "site.yaml").write_text(
        f"""
ledger: "sqlite:///{tmp_path}/ledger.db"
paths: {{var: "{tmp_path}/var"}}
gateway: {{state: "{tmp_path}/g.db", keys: "{keys}"}}
stores:
  files: {{url: "{(tmp_path / "store").as_uri()}"}}
repositories:
  {FQRN}:
    store: files
    public_url: "{(tmp_path / "store" / FQRN).as_uri()}"
    public_key: "{keys}/{FQRN}.pub"
    gateway: gateway_test
"""
    )
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    for version, said in (("v40r0", "first"), ("v40r1", "second")):
        (tmp_path / f"Gaudi-{version}" / "bin").mkdir(parents=True)
        (tmp_path / f"Gaudi-{version}" / "bin" / "gaudirun").write_text(f"#!/bin/sh\necho {said}\n")
        (tmp_path / f"Gaudi-{version}" / "README").write_text("the same in both\n")
        for path in sorted((tmp_path / f"Gaudi-{version}").rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
            os.utime(path, (1_790_000_000, 1_790_000_000))
    (tmp_path / "rules").write_text("/sw/*/*/bin\n")
    monkeypatch.chdir(tmp_path)
    with running_gateway(partial(one_repository, tmp_path, FQRN, store, AcceptedKey(KEY_ID, SECRET))) as url:
        connection = {"conn_type": "http", "host": "127.0.0.1", "port": port_of(url)}
        key = {"login": KEY_ID, "password": SECRET}
        monkeypatch.setenv("AIRFLOW_CONN_GATEWAY_TEST", json.dumps({**connection, **key}))
        yield tmp_path


def masked(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.strip().splitlines()]
    for pattern, mask in MASKS:
        lines = [pattern.sub(mask, line) for line in lines]
    return lines


def examples() -> list[tuple[str, str]]:
    """Each command of the page, and what follows it up to the next."""
    parts = [part for block in BLOCK.findall(PAGE.read_text()) for part in re.split(r"(?m)^\$ ", block) if part]
    return [(command, said) for command, _, said in (part.partition("\n") for part in parts)]


def run(command: str) -> str:
    words = shlex.split(command)
    assert words[:2] == ["nightshift", "repo"], command
    return CliRunner().invoke(app, words[2:], catch_exceptions=False).output


def test_the_examples_say_what_the_page_says(site: Path) -> None:
    for command, said in examples():
        assert masked(run(command)) == masked(said), command


def test_every_command_has_its_example() -> None:
    shown = {" ".join(shlex.split(command)[2:4]) for command, _ in examples()}
    names = {one.name or one.callback.__name__.replace("_", "-") for one in app.registered_commands if one.callback}
    assert {name for name in names if not any(f"{name} " in f"{words} " for words in shown)} == set()
    tag = app.registered_groups[0].typer_instance
    assert tag is not None
    for one in tag.registered_commands:
        assert one.callback is not None
        name = one.name or one.callback.__name__
        assert any(words == f"tag {name}" for words in shown), f"tag {name}"
