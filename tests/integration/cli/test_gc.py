"""`nightshift repo gc` at a site: what it deletes, says, refuses and skips."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.cli.repository import write as write_commands
from include.cvmfs.commit.commit import fence
from include.cvmfs.coordination.condemned import store_list
from include.cvmfs.coordination.generation import CollectionPhase, CollectionStep, Generation, look, write
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.objects import compress
from include.cvmfs.ingest.changeset import Changeset
from include.nightlies.records import damage
from include.site import changes
from tests.fakes.collector import Collector
from tests.fakes.site import FQRN, SIGNER
from tests.integration.cli.conftest import Commands, nightshift

GONE = "/sw/app/v1"


def garbage(repo: Commands) -> None:
    """Two revisions that only the grace protects."""
    repo("publish", FQRN, GONE, repo.tree())
    repo("publish", FQRN, "/sw/app/v2", repo.tree("other", one="1", other="of the second only"))
    repo("remove", FQRN, GONE)
    repo("symlink", FQRN, "/sw/app/latest", "v2")


def configure(repo: Commands, *lines: str) -> None:
    file = repo.site.folder / "site.yaml"
    file.write_text(file.read_text() + "".join(f"    {line}\n" for line in lines))


def test_garbage_goes_and_the_check_passes(repo: Commands, tmp_path: Path) -> None:
    garbage(repo)
    configure(repo, "collection: {grace_days: 0, careful: false}")
    repo.site.age(seconds=10)  # the reflog has whole seconds: without this, the last ones are not in the past
    before = {one.key for one in repo.site.store.list("data")}
    dry = repo.json("gc", FQRN, "--dry-run")
    assert dry["condemned"] > 0
    assert {one.key for one in repo.site.store.list("data")} == before
    done = repo.json("gc", FQRN, "--log", str(tmp_path / "gc.log"))
    after = {one.key for one in repo.site.store.list("data")}
    assert len(before - after) == done["deleted"] == dry["condemned"]
    assert (tmp_path / "gc.log").read_text().count("\n") == done["deleted"] + 3
    repo.sound()
    assert repo("cat", FQRN, "/sw/app/v2/other").stdout == "of the second only"
    again = repo("gc", FQRN)
    assert "next due at" in again.stdout
    repo("publish", FQRN, GONE, repo.tree())
    repo.sound()


def test_within_the_grace_nothing_goes_and_a_repository_that_is_not_to_be_collected_is_refused(repo: Commands) -> None:
    garbage(repo)
    assert repo.json("gc", FQRN)["deleted"] == 0
    assert "careful" not in repo("gc", FQRN, "--force").stdout
    configure(repo, "garbage_collectable: false")
    refused = repo("gc", FQRN, code=2)
    assert "garbage_collectable: true" in refused.stderr


def test_a_second_collection_says_until_when_the_first_counts(repo: Commands) -> None:
    now = datetime.now(UTC)
    document = Generation(0, CollectionPhase.IDLE, now).after(CollectionStep.BEGIN, now)
    write(repo.site.store, document, expected=None)
    refused = repo("gc", FQRN, code=2)
    assert "counts as dead at" in refused.stderr
    assert look(repo.site.store).generation == document


def test_the_report_tells_what_a_sweep_deleted_that_died_and_was_finished(repo: Commands) -> None:
    then, store, content = datetime.now(UTC) - timedelta(hours=2), repo.site.store, b"condemned by another process"
    name = hash_bytes(content)
    store.put(name.key, content)
    listed = store_list(store, [name])
    document = Generation(0, CollectionPhase.IDLE, then).after(CollectionStep.BEGIN, then)
    document = document.after(CollectionStep.CONDEMN, then, condemned=listed)
    write(store, document.after(CollectionStep.SWEEP, then, condemned=listed), expected=None)
    report = repo.json("gc", FQRN)
    assert (report["number"], store.exists(name.key)) == (2, False)
    assert "1 objects deleted by that sweep" in report["notes"]


def test_lost_objects_are_noted_for_the_next_preparation(repo: Commands) -> None:
    from include.cli.repository.open import open_site

    repo("publish", FQRN, GONE, repo.tree())
    lost = next(one for one in repo.site.store.list("data") if one.key[-1] in "0123456789abcdef")
    (repo.site.folder / "store" / FQRN / lost.key).unlink()
    report = json.loads(repo("gc", FQRN, "--all-orphans", "--json", code=1).stdout)
    assert [one["key"] for one in report["lost"]] == [lost.key]
    assert [one.key for one in damage.of_repository(open_site().ledger, FQRN)] == [lost.key]


def test_a_publication_that_collections_cross_goes_on_by_itself(
    repo: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One takes what it reuses after it was prepared, and one is about to when it is prepared again."""
    garbage(repo)
    store = repo.site.store
    collector = Collector(
        store, FQRN, now=datetime.now(UTC),
        barrier=lambda: fence(store, FQRN, signer=SIGNER, now=int(datetime.now(UTC).timestamp())),
    )  # fmt: skip
    prepared = changes.prepare
    met: list[str] = []

    def crossed(*arguments: Any, **more: Any) -> Changeset:
        changeset = prepared(*arguments, **more)
        collector.begin()
        collector.mark()
        collector.condemned |= {hash_bytes(compress(b"2"))} if not met else {changeset.root}
        collector.condemn()
        if not met:
            collector.sweep()
            collector.end()
        met.append("prepared")
        return changeset

    def swept(seconds: float) -> None:
        met.append("waited")
        collector.sweep()
        collector.end()
        monkeypatch.setattr(changes, "prepare", prepared)

    monkeypatch.setattr(changes, "prepare", crossed)
    monkeypatch.setattr(write_commands.time, "sleep", swept)
    done = repo("publish", FQRN, "/sw/app/v3", repo.tree("third", one="2"))
    assert met == ["prepared", "prepared", "waited"]
    assert "prepare it again" in done.stderr
    assert "waiting for that" in done.stderr
    assert repo("cat", FQRN, "/sw/app/v3/one").stdout == "2"
    repo.sound()


def test_a_frozen_repository_is_not_collected_not_even_in_a_dry_run(repo: Commands) -> None:
    garbage(repo)
    configure(repo, "collection: {grace_days: 0, careful: false}")
    repo.site.age(seconds=10)
    before = {one.key for one in repo.site.store.list("data")}
    nightshift("freeze", FQRN, "-m", "disks are moved")
    for more in ((), ("--dry-run",)):
        assert "disks are moved" in repo("gc", FQRN, *more, code=2).stderr
    assert {one.key for one in repo.site.store.list("data")} == before
    nightshift("thaw", FQRN)
    assert repo.json("gc", FQRN)["deleted"] > 0
