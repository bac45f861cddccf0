"""Publications by hand through their steps: what is refused, replaced, and what a dry run says of both."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.errors import DestinationError, SourceError, TagError
from include.cvmfs.ingest.upload import RECORD_BYTES
from include.cvmfs.sources.artifact import DirectorySource
from include.cvmfs.sources.source import Entry, Opener
from include.nightlies.errors import SourceNotAllowed
from include.nightlies.rules.publication import State
from include.nightlies.steps.plan import plan_publication
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.values import Batch, PublicationRequest
from include.site.changes import SENT, TreeToPrepare, publish_tree
from tests.fakes.attempts import attempt
from tests.fakes.builds import tree
from tests.fakes.refused import refused
from tests.nights import Nights
from tests.site import FQRN

ONE, TWO = tree({"readme": b"one"}), tree({"readme": b"two"})


def test_a_destination_that_holds_something_is_refused_and_replaced_only_if_asked_for(nights: Nights) -> None:
    assert nights.by_hand("/fit/1", ONE).state is State.PUBLISHED
    refused = nights.by_hand("/fit/1", TWO)
    assert refused.state is State.FAILED
    assert "holds something already" in refused.reason
    assert nights.head().revision.read("/fit/1/readme") == b"one"
    assert nights.by_hand("/fit/1", TWO, overwrite=True).state is State.PUBLISHED
    assert nights.head().revision.read("/fit/1/readme") == b"two"
    assert nights.client().leases() == []


def test_a_dry_run_fails_as_the_real_one_would(nights: Nights) -> None:
    nights.by_hand("/taken/1", ONE)
    before = nights.revision
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
    assert nights.revision == before


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
    trees = tmp_path / "trees"
    (trees / "data").mkdir(parents=True)
    (trees / "way-out").symlink_to("/etc")
    on_site = nights.configure(stores={**nights.settings["stores"], "trees": {"url": f"file://{trees}"}}).site

    def planned(source: str) -> Batch:
        plan = plan_publication(on_site, attempt("publication/1"), PublicationRequest(FQRN, "/data/1", source))
        return plan.batches[0]

    for source in ("file:///etc", "s3://other/x.tar"):
        with pytest.raises(SourceNotAllowed):
            planned(source)
    around = prepare_batch(on_site, attempt(), planned(f"file://{trees}/way-out/ssl"))
    assert [type(error) for error in around.failures.values()] == [SourceNotAllowed]


# -- a command that was interrupted


class Torn(DirectorySource):
    """A folder that cannot be read to its end."""

    def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
        for number, entry in enumerate(super().entries()):
            if number == 200:
                time.sleep(1)  # what was read is sent meanwhile
                raise SourceError("the folder", "went away")
            yield entry


@pytest.mark.server("weed")
@pytest.mark.parametrize("place", ["weed"], indirect=True)  # on a disk nothing needs to be written down
def test_an_interrupted_command_does_not_send_again_what_is_there(nights: Nights, tmp_path: Path) -> None:
    content = random.Random(12)
    folder = tmp_path / "by-hand"
    folder.mkdir()
    for number in range(250):
        (folder / f"{number:03}").write_bytes(content.randbytes(2000))
    tree, site = TreeToPrepare("/tools/x", Torn(folder), datetime.now(UTC)), nights.site
    with pytest.raises(SourceError):
        publish_tree(site, FQRN, tree, holder="me")
    (entries,) = (site.settings.paths.var / SENT).iterdir()
    sent = entries.stat().st_size // RECORD_BYTES - 10
    assert sent >= 100
    asked = nights.store.counters.heads
    done = publish_tree(site, FQRN, replace(tree, source=DirectorySource(folder)), holder="me")
    assert done.published is not None
    assert done.changeset.objects_reused >= sent
    assert nights.store.counters.heads - asked <= 260 - sent, "nor is it asked for"
    assert list((site.settings.paths.var / SENT).iterdir()) == []
    nights.assert_whole()
