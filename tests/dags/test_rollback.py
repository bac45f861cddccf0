"""`rollback` through whole runs: the form, the preview, the question, the revision, the ledger, the report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from include.cvmfs.errors import REVISION_UNKNOWN, TagError
from include.cvmfs.format.paths import link_target
from include.nightlies.errors import ROLLBACK_REFUSED
from include.nightlies.records import questions, undos
from include.nightlies.records.builds import build
from operators.undo import PreviewRollbackOperator
from tests.dags.conftest import FQRN, MiniSite, Run, anna, reconfigured
from tests.fakes.builds import Build, tree
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

pytestmark = pytest.mark.server("weed")
FOLDER = "/nightlies/rolled"
SLOT = """slots:
  rolled: {repository: %s, store: builds, retries: 0, links: {}, tag: "{slot}-{build_id}"}
"""
FORM = {"repository": FQRN, "tag": "rolled-b20261102", "reason": "the night was bad"}


@pytest.fixture(scope="module")
def keyed(site: MiniSite) -> Iterator[MiniSite]:
    """The same site with the repository's signing key, a slot of its own, and two nights of it."""
    text = (site.folder / "site.yaml").read_text().replace("gateway: {", f"gateway: {{keys: {site.folder}/signing, ", 1)
    with reconfigured(site, text.replace("slots:\n", SLOT % FQRN, 1), "nightly_install", "rollback") as made:
        for day in (2, 3):
            assert _night(made, day, "A", "B").state == "success"
        yield made


def _night(site: MiniSite, day: int, *projects: str) -> Run:
    made = Build(f"2026-11-{day:02}", slot="rolled")
    for project in projects:
        made.add(project, "x86_64", tree({"file": f"{project} of {day}".encode()}))
    site.drop(made)
    return site.run("nightly_install", slot="rolled", build_date=made.date)


def _latest(site: MiniSite) -> str:
    entry = site.opened.head(FQRN).revision.lookup(f"{FOLDER}/latest")
    return link_target(f"{FOLDER}/latest", entry.symlink) if entry else ""


def test_a_form_is_shown_as_a_preview(keyed: MiniSite) -> None:
    before = keyed.revision()
    shown = keyed.run("rollback", **FORM)
    assert shown.state == "success", shown
    assert shown.tasks["preview"] == "success"
    assert {shown.tasks[name] for name in ("roll_back", "record", "report")} == {"skipped"}
    assert keyed.revision() == before


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"tag": None}, ROLLBACK_REFUSED),
        ({"revision": 1}, ROLLBACK_REFUSED),
        ({"tag": "nowhere"}, TagError),
        ({"tag": None, "revision": 10**6}, REVISION_UNKNOWN),
    ],
)
def test_a_form_that_asks_for_nothing_for_two_or_for_what_is_not_there_is_refused(
    keyed: MiniSite, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, object], error: Any
) -> None:
    for name, value in keyed.environment.items():
        monkeypatch.setenv(name, value)
    form: dict[str, object] = {**FORM, "dry_run": True, "approval": False, **wrong}
    with refused(error):
        PreviewRollbackOperator(task_id="preview").execute(task_context(**form))


def test_a_no_changes_nothing_and_after_a_yes_readers_and_the_ledger_are_back_and_a_night_leaves_it_so(
    keyed: MiniSite,
) -> None:
    before = keyed.revision()
    wanted = {**FORM, "dry_run": False, "approval": True}
    with anna(keyed, "Reject") as person:
        kept = keyed.run("rollback", **wanted)
    (shown,) = person.seen
    assert shown.subject == f"Roll {FQRN} back from revision {before} to tag rolled-b20261102?"
    assert "goes: build b20261103 of 2026-11-03 of slot rolled, 2 of 2 artifacts" in shown.body
    assert (kept.tasks["roll_back"], keyed.revision()) == ("skipped", before)

    with anna(keyed, "Approve") as person:
        done = keyed.run("rollback", **wanted)
    assert done.state == "success", done
    assert {done.tasks[name] for name in ("preview", "roll_back", "record", "report")} == {"success"}
    assert keyed.revision() == before + 1
    assert (keyed.leases(), person.seen[0].leases) == ([], [])
    assert _latest(keyed) == f"{FOLDER}/b20261102"
    assert keyed.opened.head(FQRN).revision.lookup(f"{FOLDER}/b20261103") is None
    gone = build(keyed.opened.ledger, "rolled", "b20261103")
    assert gone is not None
    assert len(undos.of_build(keyed.opened.ledger, gone.id)) == 2
    (question,) = questions.of_run(keyed.opened.ledger, done.name)
    assert question.answered_by == "anna"

    again = keyed.run("nightly_install", slot="rolled", build_date="2026-11-03")
    assert set(again.states().values()) == {"skipped"}
    assert keyed.opened.head(FQRN).revision.lookup(f"{FOLDER}/b20261103") is None

    # cleared, the run finds the revision that it made
    after = keyed.revision()
    assert keyed.clear(done, "roll_back", "record", "report").state == "success"
    assert keyed.revision() == after

    # the same form again finds nothing to do, and asks nobody
    with anna(keyed, "Approve") as person:
        nothing = keyed.run("rollback", **wanted)
    assert (nothing.tasks["preview"], nothing.tasks["roll_back"], person.seen) == ("skipped", "skipped", [])
