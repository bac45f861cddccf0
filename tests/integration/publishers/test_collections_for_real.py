"""The collector itself on a real store, beside the native publisher, the gateway, tags and rollbacks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from include.cvmfs.collect.collect import GarbageCollection
from include.cvmfs.collect.report import CollectionRules
from include.cvmfs.collect.sweep import SwitchingSide
from include.cvmfs.commit.commit import MANIFEST_KEY
from include.cvmfs.commit.tags import add_tag, plan_rollback, rollback
from include.cvmfs.errors import CollectionRunning, CvmfsError
from include.cvmfs.format.hashes import ObjectHash, hash_bytes
from include.cvmfs.format.objects import compress
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.revision.repository import ManifestVerifier
from include.cvmfs.revision.revision import Revision
from include.gateway.service.commits.committer import StoreCommitter
from include.storage.errors import Conflict
from include.storage.store import Version
from tests.fakes.apart import KEY, one_repository
from tests.integration.conftest import AGAIN_ON_S3
from tests.site import DESTINATIONS, FQRN, PUBLIC_KEY, SIGNER, Deployment

pytestmark = AGAIN_ON_S3
OLD, NEW, OTHER = DESTINATIONS
SHARED = {"lib/shared.so": b"in both " * 400}
OBJECT = hash_bytes(compress(SHARED["lib/shared.so"]))


def collection(site: Deployment, pause: Callable[[], None] = lambda: None) -> GarbageCollection:
    side = SwitchingSide(site.store, FQRN, SIGNER, ManifestVerifier(SIGNER, lambda: [PUBLIC_KEY]))
    rules = CollectionRules(timedelta(), careful=False, pause=pause)
    return GarbageCollection(site.store, side, folder=site.folder / "collections", rules=rules)


def to_the_list(running: GarbageCollection) -> None:
    assert running.begin()
    running.mark()
    assert running.condemn()


@pytest.fixture
def before(site: Deployment) -> ObjectHash:
    """The root of a revision that holds the file; the next ones are to come."""
    site.reserve()
    publish(site, site.prepared(OLD, SHARED))
    assert site.store.exists(OBJECT.key)
    return site.head().manifest.root


def publish(site: Deployment, changeset: Changeset) -> None:
    site.worker().publish(changeset, holder="test", now=datetime.now(UTC))


def forget_the_old(site: Deployment) -> None:
    """Twice: the automatic tag ``trunk-previous`` keeps one revision."""
    for number in range(2):
        publish(site, site.prepared(OLD, {"other": b"%d" % number}))


def test_a_commit_that_stood_still_before_its_switch_does_not_slip_past_the_barrier(
    site: Deployment, before: ObjectHash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway has read the generation: then a collection condemns and sweeps.

    The switch is lost to the barrier; what the commit needs was found in the reflog, and came off the list.
    """
    site.stop()
    committer = StoreCommitter(one_repository(site.folder, FQRN, site.store, KEY), lambda _: SIGNER)
    committer.start()
    site.start(committer)  # here, where it can stand before its switch
    changeset = site.prepared(NEW, SHARED, known_from=[OLD])
    forget_the_old(site)
    with collection(site) as running:
        assert running.begin()
        running.mark()
        replace, lost = site.store.replace, list[bool]()

        def stand(key: str, data: bytes, *, expected: Version | None) -> Version:
            if key != MANIFEST_KEY or lost:
                return replace(key, data, expected=expected)
            lost.append(False)
            assert running.condemn()
            running.spare()
            running.sweep()
            try:
                return replace(key, data, expected=expected)
            except Conflict:
                lost[0] = True
                raise

        monkeypatch.setattr(site.store, "replace", stand)
        publish(site, changeset)
        assert lost == [True]
        report = running.end()
    assert report.ok
    assert report.spared > 0
    assert site.readers().revision.read(f"{NEW}/lib/shared.so") == SHARED["lib/shared.so"]
    site.assert_sound()


def test_what_is_sent_while_its_shard_is_being_swept_is_not_published(
    site: Deployment, before: ObjectHash, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_the_old(site)
    refusals = []
    delete_each = site.store.delete_each

    def under_way(keys: list[str]) -> object:
        try:
            publish(site, site.prepared(NEW, SHARED, known_from=[OLD]))
        except CvmfsError as error:
            refusals.append(error)
        return delete_each(keys)

    with collection(site) as running:
        to_the_list(running)
        running.spare()
        monkeypatch.setattr(site.store, "delete_each", under_way)
        running.sweep()
        monkeypatch.undo()
        assert running.end().ok
    assert [type(error) for error in refusals] == [CollectionRunning]
    publish(site, site.prepared(NEW, SHARED, known_from=[OLD]))
    site.assert_sound()


@pytest.mark.parametrize("when", ["list out", "sweeping", "swept"])
def test_tags_and_rollbacks_to_what_is_being_swept_are_refused(site: Deployment, before: ObjectHash, when: str) -> None:
    forget_the_old(site)
    now = int(datetime.now(UTC).timestamp())
    number = Revision(site.head().catalogs, before).root.revision
    tried = []

    def refuse() -> None:
        with pytest.raises(CvmfsError):
            add_tag(site.store, FQRN, "late", str(before), signer=SIGNER, now=now)
        with pytest.raises(CvmfsError):
            rollback(site.store, plan_rollback(site.store, FQRN, number), signer=SIGNER, now=now)
        tried.append(when)

    with collection(site, pause=refuse if when == "sweeping" else lambda: None) as running:
        to_the_list(running)
        if when == "list out":
            refuse()
        running.spare()
        running.sweep()
        if when == "swept":
            refuse()
        assert running.end().ok
    assert tried
    assert not site.store.exists(before.key)
    site.assert_sound()


def test_a_tag_before_the_list_is_out_protects(site: Deployment, before: ObjectHash) -> None:
    forget_the_old(site)
    with collection(site) as running:
        assert running.begin()
        running.mark()
        add_tag(site.store, FQRN, "in-time", str(before), signer=SIGNER, now=int(datetime.now(UTC).timestamp()))
        if running.condemn():
            running.spare()
            running.sweep()
        assert running.end().ok
    assert site.store.exists(OBJECT.key)
    plan = plan_rollback(site.store, FQRN, "in-time")
    rollback(site.store, plan, signer=SIGNER, now=int(datetime.now(UTC).timestamp()))
    assert site.readers().revision.read(f"{OLD}/lib/shared.so") == SHARED["lib/shared.so"]
    site.assert_sound()
