"""`nightshift cache`: a cache is made, warmed, verified, trimmed and repaired through the configuration."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from include.aliencache.records import CacheRunKind, cache_runs_of
from include.cli.cache import app
from include.cli.repository.open import open_site
from tests.fakes.site import FQRN
from tests.integration.cli.conftest import Commands

Cache = Callable[..., Result]


@pytest.fixture
def cache(repo: Commands) -> Cache:
    """The command at a site with a cache `here` and a data set at /flux."""
    folder = repo.site.folder
    with (folder / "site.yaml").open("a") as file:
        file.write(f"""
caches:
  here: {{path: "{folder}/cache", repositories: [{FQRN}], marks: {{used_above: 400kB, used_until: 250kB}},
          use: age, pins: {{hours: 0}}}}
""")
    for name in ("one", "two"):
        (folder / "flux").mkdir(exist_ok=True)
        (folder / f"flux/{name}").write_bytes(os.urandom(60_000))
    repo("publish", FQRN, "/flux", str(folder / "flux"), "--chunks", "data", "--compression", "none")

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return run


def parsed(result: Result) -> dict[str, Any]:
    return dict(json.loads(result.stdout))


def test_a_cache_is_made_filled_verified_and_trimmed(cache: Cache, repo: Commands) -> None:
    assert "init" in cache("status", "here", code=2).stderr
    assert "made" in cache("init", "here").stdout
    assert "complete already" in cache("init", "here").stdout
    dry = parsed(cache("warm", "here", "/flux", "--dry-run", "--json"))
    assert (dry["objects"], dry["fetched"], parsed(cache("status", "here", "--json"))["objects"]) == (3, 3, 0)
    assert "fetched 3" in cache("warm", "here", "/flux").stdout
    assert "fetched 0" in cache("warm", "here", "/flux").stdout
    checked = parsed(cache("verify", "here", "--level", "fetch", "--json"))
    assert (checked["damaged_count"], checked["not_judged"]) == (0, 0)
    state = parsed(cache("status", "here", "--json"))
    assert (state["above"], list(state["breadcrumbs"])) == (False, [FQRN])
    assert "0 of" in cache("trim", "here").stdout
    for number in range(4):
        place = repo.site.folder / f"cache/0{number}/{number:038x}"
        place.write_bytes(b"x" * 60_000)
        os.utime(place, (time.time() - 99 * 86400,) * 2)
    assert "used" in cache("status", "here", code=1).stdout
    trimmed = parsed(cache("trim", "here", "--json"))
    assert trimmed["removed"] >= 4
    assert parsed(cache("status", "here", "--json"))["bytes"] <= 250_000
    kinds = {kind: len(cache_runs_of(open_site().ledger, "here", kind)) for kind in CacheRunKind}
    assert all(kinds.values()), kinds


def test_damage_is_found_and_a_cache_is_repaired(cache: Cache, repo: Commands) -> None:
    cache("init", "here")
    cache("warm", "here", "/flux")
    victim = next(path for path in (repo.site.folder / "cache").glob("??/*") if path.stat().st_size == 60_000)
    victim.write_bytes(b"\0" * 60_000)
    assert "0 damaged" in cache("verify", "here", "--level", "size").stdout
    assert "1 damaged" in cache("verify", "here", "--level", "name", code=1).stdout
    assert not victim.exists()
    (repo.site.folder / "cache/txn").rmdir()
    assert "txn" in cache("status", "here", code=1).stdout
    assert "made 1 folders" in cache("repair", "here").stdout
    assert (repo.site.folder / "cache/txn").is_dir()
    assert "fetched 1" in cache("warm", "here", "/flux").stdout


def test_bad_words_are_refused_before_anything_is_done(cache: Cache, repo: Commands) -> None:
    cache("init", "here")
    assert "has nothing of what is asked for" in cache("warm", "here", "/absent", code=2).stderr
    assert "no paths were given" in cache("warm", "here", code=2).stderr
    assert "size, name, sum and fetch" in cache("verify", "here", "--level", "deep", code=2).stderr
    assert "unknown cache 'there'" in cache("status", "there", code=2).stderr
    assert "is not one of its repositories" in cache("warm", "here", "/", "--repository", "a.b.org", code=2).stderr
    assert not list(Path(repo.site.folder / "cache").glob("??/*"))


def test_clients_of_a_folder_that_is_not_in_the_configuration(repo: Commands) -> None:
    def told(*options: str, code: int = 0) -> Result:
        return repo("client-config", FQRN, *options, code=code)

    lines = told(
        "--alien-cache", "/mnt/shared/cvmfs", "--domain", FQRN.partition(".")[2], "--follow-redirects"
    ).stdout.splitlines()
    assert {"CVMFS_ALIEN_CACHE=/mnt/shared/cvmfs", "CVMFS_FOLLOW_REDIRECTS=yes", "CVMFS_QUOTA_LIMIT=-1"} <= set(lines)
    assert f"# /etc/cvmfs/domain.d/{FQRN.partition('.')[2]}.local" in lines
    assert "is not in the domain" in told("--alien-cache", "/mnt/shared", "--domain", "b.org", code=2).stderr
    assert "is no folder" in told("--alien-cache", "/mnt/$(id)", code=2).stderr
    assert "no proxy" in told("--alien-cache", "/mnt/shared", "--proxy", "http://squid:3128", code=2).stderr
    assert "are for --alien-cache" in told("--follow-redirects", code=2).stderr


def test_the_configuration_of_its_clients(cache: Cache) -> None:
    servers = ("--stratum1", "http://a.example.org/cvmfs/@fqrn@", "--stratum1", "http://b.example.org/cvmfs/@fqrn@")
    lines = cache("config", "here", *servers, "--follow-redirects").stdout.splitlines()
    assert 'CVMFS_SERVER_URL="http://a.example.org/cvmfs/@fqrn@;http://b.example.org/cvmfs/@fqrn@"' in lines
    assert {"CVMFS_QUOTA_LIMIT=-1", "CVMFS_SHARED_CACHE=no", "CVMFS_FOLLOW_REDIRECTS=yes"} <= set(lines)
    assert "is no URL" in cache("config", "here", "--stratum1", "http://u:p@a/@fqrn@", code=2).stderr
