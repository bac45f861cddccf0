"""Publications by hand through their steps: what is refused, replaced, and what a dry run says of both."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from include.cvmfs.errors import DestinationError, TagError
from include.nightlies.rules.states import State
from include.nightlies.steps.errors import SourceNotAllowed
from include.nightlies.steps.plan import plan_publication
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.values import Batch
from include.publishers.connect import Connections
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from tests.fakes.builds import tree
from tests.fakes.refused import refused
from tests.integration.nightlies.conftest import FQRN, Nights, now

ONE, TWO = tree({"readme": b"one"}), tree({"readme": b"two"})


def revision(nights: Nights) -> int:
    return nights.connections.head(FQRN).manifest.revision


def test_a_destination_that_holds_something_is_refused_and_replaced_only_if_asked_for(nights: Nights) -> None:
    assert nights.by_hand("/fit/1", ONE).state is State.PUBLISHED
    refused = nights.by_hand("/fit/1", TWO)
    assert refused.state is State.FAILED
    assert "holds something already" in refused.reason
    assert nights.connections.head(FQRN).read("/fit/1/readme") == b"one"
    assert nights.by_hand("/fit/1", TWO, overwrite=True).state is State.PUBLISHED
    assert nights.connections.head(FQRN).read("/fit/1/readme") == b"two"
    assert nights.client().leases() == []


def test_a_dry_run_fails_as_the_real_one_would(nights: Nights) -> None:
    nights.by_hand("/taken/1", ONE)
    before = revision(nights)
    for path in ("/taken/1", "/taken/1/readme/below"):
        dry, real = (nights.by_hand(path, TWO, dry_run=dry_run) for dry_run in (True, False))
        assert (dry.state, real.state) == (State.FAILED, State.FAILED)
        assert dry.reason == real.reason
    assert "is a file" in real.reason
    replacing = nights.by_hand("/taken/1", TWO, overwrite=True, dry_run=True)
    assert replacing.state is State.SKIPPED
    assert replacing.reason.endswith("and replace what is at its destination")
    same = nights.by_hand("/taken/1", ONE, dry_run=True)
    assert f"revision {before} holds this very tree" in same.reason
    assert revision(nights) == before


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_tag_that_cannot_be_given_is_refused_before_anything_is_prepared(nights: Nights, dry_run: bool) -> None:
    same = {"tag": "taken-1", "sha256": hashlib.sha256(ONE).hexdigest()}
    nights.by_hand("/tagged/1", ONE, **same)
    for tag in ("taken-1", "trunk", "trunk-previous"):
        with refused(TagError, name=tag):
            nights.by_hand("/tagged/2", TWO, tag=tag, dry_run=dry_run)
    again = nights.by_hand("/tagged/1", ONE, **same, dry_run=dry_run)
    assert again.state is (State.SKIPPED if dry_run else State.UNCHANGED)


@pytest.mark.parametrize("path", ["/.cvmfs/secret", "/a/../b", "/a/./b"])
def test_a_path_that_cannot_be_a_destination_is_refused_before_anything_is_done(nights: Nights, path: str) -> None:
    with pytest.raises(DestinationError):
        nights.by_hand(path, ONE)


def test_a_source_is_taken_only_from_a_configured_store(nights: Nights, tmp_path: Path) -> None:
    trees, config = tmp_path / "trees", tmp_path / "site.yaml"
    (trees / "data").mkdir(parents=True)
    (trees / "way-out").symlink_to("/etc")
    config.write_text(config.read_text().replace("stores:\n", f"stores:\n  trees: {{url: 'file://{trees}'}}\n"))
    connections = Connections(load(), EnvSecrets())

    def planned(source: str) -> Batch:
        plan = plan_publication(
            connections, run="publication/1", fqrn=FQRN, path="/data/1", source=source, try_number=1, clock=now
        )
        return plan.batches[0]

    for source in ("file:///etc", "s3://other/x.tar"):
        with pytest.raises(SourceNotAllowed):
            planned(source)
    around = prepare_batch(connections, planned(f"file://{trees}/way-out/ssl"), try_number=1, clock=now)
    assert [type(error) for error in around.failures.values()] == [SourceNotAllowed]
    connections.ledger.dispose()
