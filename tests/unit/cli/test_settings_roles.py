"""`nightshift settings roles` prints what a store's owner has to set, and says what is wrong when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.settings import app

SITE = """
ledger: "sqlite:///ledger.db"
stores:
  s3: {url: "s3://nights/site", endpoint: "http://127.0.0.1:9", connection: s3}
  folder: {url: "file:///srv/nights"}
repositories:
  n.example.org: {store: s3, public_url: "http://127.0.0.1:9/n", public_key: n.pub, gateway: gw}
  f.example.org: {store: folder, public_url: "file:///srv/nights/f", public_key: f.pub, gateway: gw}
"""


@pytest.fixture(autouse=True)
def in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.yaml").write_text(SITE)
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))


def run(*arguments: str):
    return CliRunner().invoke(app, ["roles", *arguments])


def test_json_holds_the_buckets_policy_and_each_users() -> None:
    done = run("--store", "s3", "--server", "seaweedfs", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["repositories"] == ["n.example.org"]
    assert set(document["users"]) == set(document["user_policies"]) == {"publisher", "gateway", "collector"}
    assert "arn:aws:iam::000000000000:user/nightshift-gateway" in json.dumps(document["bucket_policy"])
    assert "f.example.org" not in done.stdout


def test_the_text_is_the_policy_with_what_to_do_before_it() -> None:
    done = run("--store", "s3", "--user-prefix", "ns-")
    comments = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert any("publisher: user ns-publisher" in line for line in comments)
    assert any("radosgw-admin user create --uid=ns-" in line for line in comments)
    policy = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("#"))
    assert json.loads(policy)["Version"] == "2012-10-17"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--store", "folder"], "policies are for s3"), (["--store", "s3", "--server", "aws"], "--account")],
)
def test_what_cannot_be_done_is_said_with_its_cure(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.output
