"""What comes to nothing leaves no directory behind, and a dry run of it says so beforehand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.dags.conftest import FQRN, MiniSite
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")
GOOD = tree({"lib/good.so": b"good" * 100})


def test_a_night_in_which_everything_is_bad_leaves_no_directory_of_it(site: MiniSite) -> None:
    build = Build("2026-10-21").add("One", "x86_64", GOOD[:-20], size=len(GOOD)).add("Two", "x86_64", b"no archive")
    site.drop(build)
    run = site.run("nightly_install_main", build_date="2026-10-21")
    assert set(run.states().values()) == {"failed"}
    assert site.connections.repository(FQRN).lookup("/nightlies/main/b20261021") is None
    assert site.leases() == []


def test_a_night_that_is_mended_finds_its_place_again(site: MiniSite) -> None:
    build = Build("2026-10-22").add("One", "x86_64", GOOD[:-20], size=len(GOOD))
    site.drop(build)
    assert site.run("nightly_install_main", build_date="2026-10-22").state == "failed"
    site.drop(build.add("One", "x86_64", GOOD))
    assert site.run("nightly_install_main", build_date="2026-10-22").state == "success"
    repository = site.connections.repository(FQRN)
    assert repository.read("/nightlies/main/b20261022/One/x86_64/lib/good.so") == b"good" * 100


def test_what_failed_is_mended_cleared_with_what_follows_it_and_goes_in(site: MiniSite) -> None:
    build = Build("2026-10-24").add("Bad", "x86_64", GOOD).add("Good", "x86_64", GOOD)
    site.drop(replace(build, data={url: data[:-20] if "Bad" in url else data for url, data in build.data.items()}))
    run = site.run("nightly_install_main", build_date="2026-10-24")
    assert run.states() == {"Bad/x86_64": "failed", "Good/x86_64": "published"}
    site.drop(build)
    failed = next(task for task, state in run.tasks.items() if ".prepare[" in task and state == "failed")
    task, _, index = failed.removesuffix("]").partition("[")
    after = run.tasks.keys() - {"find_build", "plan", "reserve"}
    follows = {name for name in after if "[" not in name}
    again = site.clear(run, (task, int(index)), (task.replace("prepare", "publish"), int(index)), *follows)
    assert again.states() == {"Bad/x86_64": "published", "Good/x86_64": "published"}
    assert again.state == "success", again.tasks
    assert site.leases() == []


def test_a_dry_run_of_a_night_names_what_is_in_the_way_of_which_artifact(site: MiniSite) -> None:
    store = site.connections.store("builds")
    store.put("in-the-way.tar.gz", tree({"x86_64": b""}))
    taken = "/nightlies/main/b20261023/Good"
    run = site.run("publication", repository=FQRN, path=taken, source=f"{store.url}/in-the-way.tar.gz")
    assert run.state == "success", run
    site.drop(Build("2026-10-23").add("Good", "x86_64", GOOD).add("Fine", "x86_64", GOOD))
    before = site.revision()
    run = site.run("nightly_install_main", build_date="2026-10-23", dry_run=True)
    assert run.state == "failed"
    assert run.states() == {"Good/x86_64": "failed", "Fine/x86_64": "skipped"}
    assert "x86_64 is a file" in run.publications[f"{taken}/x86_64"].reason
    assert site.revision() == before
