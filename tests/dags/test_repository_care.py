"""`repository_care` through `dag.test()`."""

from __future__ import annotations

import pytest

from include.nightlies.records import damage
from tests.dags.conftest import FQRN, MiniSite

pytestmark = pytest.mark.server("weed")


def test_a_sound_repository_passes_and_one_without_a_rule_keeps_its_tags(site: MiniSite) -> None:
    revision = site.revision()
    run = site.run("repository_care")
    assert run.state == "success", run
    assert run.tasks == {
        "care.whitelist[0]": "success",
        "care.prune_tags[0]": "skipped",
        "care.unfinished[0]": "success",
        "care.check[0]": "success",
        "care.replicas[0]": "skipped",
    }
    assert site.revision() == revision
    assert damage.of_repository(site.opened.ledger, FQRN) == ()


def test_a_whitelist_that_ends_too_soon_fails_its_task_and_no_other(site: MiniSite) -> None:
    file = site.folder / "site.yaml"
    before = file.read_text()
    file.write_text(before.replace("    gateway: gateway\n", "    gateway: gateway\n    care: {whitelist_days: 90}\n"))
    try:
        run = site.run("repository_care")
    finally:
        file.write_text(before)
    assert run.state == "failed", run
    assert run.tasks == {
        "care.whitelist[0]": "failed",
        "care.prune_tags[0]": "skipped",
        "care.unfinished[0]": "success",
        "care.check[0]": "success",
        "care.replicas[0]": "skipped",
    }
