"""`intervene` through whole runs: freeze, thaw and redo by the form, and what is missing in it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from include.provenance import interventions
from tests.dags.conftest import FQRN, MiniSite
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")


def test_a_repository_is_frozen_and_thawed_and_the_ledger_says_why(site: MiniSite) -> None:
    frozen = site.run("intervene", action="freeze", repository=FQRN, reason="a disk is replaced", hours=2)
    try:
        assert frozen.state == "success", frozen
        found = interventions.standing(site.opened, FQRN, datetime.now(UTC)).frozen
        assert found is not None
        assert (found.reason, found.who.endswith("@airflow")) == ("a disk is replaced", True)
        assert found.until is not None
        assert (found.until - found.since).total_seconds() == 7200
    finally:
        thawed = site.run("intervene", action="thaw", repository=FQRN)
    assert thawed.state == "success", thawed
    assert interventions.standing(site.opened, FQRN, datetime.now(UTC)).frozen is None
    kinds = [one.kind for one in interventions.interventions_of(site.opened.ledger, FQRN, limit=2)]
    assert kinds == ["thaw", "freeze"]


def test_what_was_undone_is_installed_again_after_a_redo(site: MiniSite) -> None:
    made = Build("2026-07-14").add("Again", "x86_64", tree({"file": b"again"}))
    site.drop(made)
    night = {"slot": "main", "build_date": made.date}
    assert site.run("nightly_install", **night).states() == {"Again/x86_64": "published"}
    undo = {"slot": "main", "build_id": made.build_id, "reason": "it crashes", "dry_run": False, "approval": False}
    assert site.run("undo_build", **undo).state == "success"
    assert site.run("nightly_install", **night).states() == {"Again/x86_64": "skipped"}
    redone = site.run("intervene", action="redo", slot="main", build_id=made.build_id)
    assert redone.state == "success", redone
    assert site.run("nightly_install", **night).states() == {"Again/x86_64": "published"}


@pytest.mark.parametrize(
    "form",
    [
        {"action": "freeze", "repository": FQRN},
        {"action": "freeze", "reason": "no repository"},
        {"action": "redo", "slot": "main"},
    ],
)
def test_a_form_without_what_its_action_needs_changes_nothing(site: MiniSite, form: dict[str, object]) -> None:
    assert site.run("intervene", **form).state == "failed"
    assert interventions.standing(site.opened, FQRN, datetime.now(UTC)).frozen is None
