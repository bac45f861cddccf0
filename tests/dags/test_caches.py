"""DAGs of shared caches, through whole runs: a data set is published and in the cache; the cache is trimmed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.aliencache.cache import AlienCache
from include.aliencache.records import CacheRunKind, cache_runs_of
from operators.caches import CacheTrimOperator, CacheVerifyOperator, CacheWarmOperator
from tests.dags.conftest import FQRN, MiniSite, reconfigured
from tests.fakes.taskcontext import task_context

pytestmark = pytest.mark.server("weed")
BYTES = 300_000


@pytest.fixture(scope="module")
def caches(site: MiniSite) -> Iterator[MiniSite]:
    """The site with a cache of 1 MB that is there and one that is not, and a data set to publish."""
    folder = site.folder
    for name in ("one", "two", "three"):
        (folder / "trees/flux").mkdir(exist_ok=True)
        (folder / f"trees/flux/{name}").write_bytes(os.urandom(BYTES))
    block = f"""
caches:
  away: {{path: "{folder}/absent", repositories: [{FQRN}], marks: {{used_above: 2MB, used_until: 1MB}}}}
  here: {{path: "{folder}/cache", repositories: [{FQRN}], marks: {{used_above: 1300kB, used_until: 500kB}},
          pins: {{hours: 0}}, use: age, share: 1}}
"""
    AlienCache(folder / "cache").initialise()
    with reconfigured(site, (folder / "site.yaml").read_text() + block, "auxiliary_data", "cache_care") as made:
        yield made


@pytest.fixture(autouse=True)
def _environment(caches: MiniSite, _environment_of_the_site: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in caches.environment.items():
        monkeypatch.setenv(name, value)


def cached(site: MiniSite) -> list[Path]:
    return [path for path in (site.folder / "cache").glob("??/*") if path.stat().st_size == BYTES]


def test_a_data_set_is_published_and_in_the_caches_that_are_there(caches: MiniSite) -> None:
    given = {"repository": FQRN, "path": "/flux/v1", "source": f"file://{caches.folder}/trees/flux", "mode": "refuse"}
    dry = caches.run("auxiliary_data", **given, dry_run=True)
    assert dry.tasks["here.warm"] in {"skipped", "upstream_failed"}
    assert cached(caches) == []
    run = caches.run("auxiliary_data", **given, dry_run=False, caches=["here"])
    assert run.state == "success", run
    assert (run.tasks["here.warm"], run.tasks["here.verify"], run.tasks["away.warm"]) == (
        "success",
        "success",
        "skipped",
    )
    assert len(cached(caches)) == 3
    (warm,) = cache_runs_of(caches.opened.ledger, "here", CacheRunKind.WARM)
    assert (warm.report["fetched"], warm.report["breadcrumb"]) == (warm.report["objects"], True)
    again = caches.run("auxiliary_data", **{**given, "mode": "replace"}, dry_run=False)
    assert (again.state, again.tasks["here.verify"], again.tasks["away.warm"]) == ("failed", "success", "failed")


def test_a_cache_is_trimmed_when_a_mark_is_passed_and_only_then(caches: MiniSite) -> None:
    quiet = caches.run("cache_care", caches=["here"], verify=False)  # at 2:00 UTC it would verify
    assert (quiet.tasks["here.trim"], quiet.tasks["here.verify"], quiet.tasks["away.trim"]) == ("skipped",) * 3
    then = time.time() - 30 * 86400
    for number in range(4):
        place = caches.folder / f"cache/0{number}/{number:038x}"
        place.write_bytes(b"x" * BYTES)
        os.utime(place, (then, then))
    dry = caches.run("cache_care", caches=["here"], dry_run=True)
    assert dry.tasks["here.trim"] == "success"
    assert len(cached(caches)) == 7
    run = caches.run("cache_care", caches=["here"])
    assert run.tasks["here.trim"] == "success", run
    assert sum(path.stat().st_blocks * 512 for path in cached(caches)) <= 1_000_000
    trims = cache_runs_of(caches.opened.ledger, "here", CacheRunKind.TRIM)
    assert [trim.dry_run for trim in trims] == [False, True]


def test_damage_fails_the_check_and_is_out_of_sight(caches: MiniSite) -> None:
    damaged = caches.folder / f"cache/0f/{'f' * 38}"
    caches.run("auxiliary_data", repository=FQRN, path="/flux/v2", source=f"file://{caches.folder}/trees/flux",
               mode="refuse", dry_run=False, caches=["here"])  # fmt: skip
    victim = cached(caches)[0]
    victim.write_bytes(victim.read_bytes()[:1000])
    run = caches.run("cache_care", caches=["here"], verify=True)
    assert (run.tasks["here.verify"], victim.exists(), damaged.exists()) == ("failed", False, False)
    assert (caches.folder / "cache/quarantaine" / (victim.parent.name + victim.name)).stat().st_size == 1000


def test_the_operators_stand_alone_in_others_dags(caches: MiniSite) -> None:
    caches.run("auxiliary_data", repository=FQRN, path="/flux/v3", source=f"file://{caches.folder}/trees/flux",
               mode="refuse", dry_run=False, caches=["here"])  # fmt: skip
    warm = CacheWarmOperator(task_id="warm", cache="here", paths="/flux/v3")
    report = warm.execute(task_context())
    assert report["objects"] == 4  # three files, and the marker of their catalog
    check = CacheVerifyOperator(task_id="check", cache="here", level="size", share=1)
    assert check.execute(task_context())["damaged_count"] == 0
    assert CacheTrimOperator(task_id="trim", cache="away").queue == "default"
