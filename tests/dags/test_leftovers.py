"""A night of which something failed: nothing moves forward, and it goes on once the fault is corrected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.dags.conftest import MiniSite
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")
GOOD = tree({"lib/good.so": b"good" * 100})


def test_what_failed_is_mended_cleared_with_what_follows_it_and_goes_in(site: MiniSite) -> None:
    build = Build("2026-10-24").add("Bad", "x86_64", GOOD).add("Good", "x86_64", GOOD)
    site.drop(replace(build, data={url: data[:-20] if "Bad" in url else data for url, data in build.data.items()}))
    run = site.run("nightly_install_main", build_date="2026-10-24")
    assert run.states() == {"Bad/x86_64": "failed", "Good/x86_64": "published"}
    assert (run.state, run.tasks["gate"]) == ("failed", "failed")
    assert run.tasks["links"] == run.tasks["announce"] == "upstream_failed"
    site.drop(build)
    failed = next(task for task, state in run.tasks.items() if ".prepare[" in task and state == "failed")
    task, _, index = failed.removesuffix("]").partition("[")
    after = run.tasks.keys() - {"find_build", "plan", "reserve"}
    follows = {name for name in after if "[" not in name}
    again = site.clear(run, (task, int(index)), (task.replace("prepare", "publish"), int(index)), *follows)
    assert again.states() == {"Bad/x86_64": "published", "Good/x86_64": "published"}
    assert again.state == "success", again.tasks
    assert site.leases() == []
