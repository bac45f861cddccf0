"""Publish a folder, a tarball or a zip from others' DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hooks.site import run_name
from operators.base import clock, holder_name
from operators.cvmfs.base import CvmfsOperator
from operators.lease import Done, Waiting
from operators.links import RepositoryLink
from operators.prepare import ProgressReporter, yielding

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.cvmfs.ingest.changeset import Changeset
    from include.cvmfs.sources.source import TreeSource
    from include.nightlies.steps.values import Item
    from include.site.site import Site

__all__ = ["CvmfsPublishTreeOperator"]


class CvmfsPublishTreeOperator(CvmfsOperator):
    """Publishes a tree at a path of a repository, by the code that publishes the nights.

    The tree is read, compressed and stored without a lease, and published under one that lasts a moment. Directories
    above the path are made. Run again with the same content, it reports `unchanged` and makes no revision. Who
    published what is recorded (`nightshift who`). A repository that asks for approval is refused: use the DAG
    `publication`.

    Returns a mapping: `path`, `catalog`, `files`, `bytes`, `objects_new`, `objects_reused`, `bytes_uploaded`,
    `created`, `dry_run`, and unless in a dry run `revision`, `root_hash`, `unchanged`, `lease_held_s`.

    Args:
        fqrn: The repository's name in the site configuration.
        path: The destination, absolute within the repository, such as `/software/root/6.36`.
        source: A folder, tar archive (.gz, .xz, .zst too) or zip: an absolute path on the worker, or a URL in one of
            the stores of the site configuration or of `store_conn_id`. The kind of an archive is found by its content.
        sha256: What the SHA-256 of an archive must be; None: not checked.
        replace: Whether a tree with other content is replaced; otherwise it is refused with DestinationError.
        tag: A name for the new revision; None: none.
        message: What the tag is for.
        store_conn_id: A connection of type `object_store` with which the source's URL is read; None: the store of the
            site configuration that holds it.
        dry_run: Report what would be published; change nothing.
        **kwargs: `gateway_conn_id`, `deferrable`, `patience_s`, `wait_limit_s`, and those of every operator.

    Raises:
        SourceError, ArtifactMissing, SourceNotAllowed: The source cannot be read, or is not allowed.
        DestinationError, TagError: It cannot be published there, or not under that tag.
    """

    template_fields: Sequence[str] = (
        "fqrn", "path", "source", "sha256", "tag", "message", "gateway_conn_id", "store_conn_id",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"message": "md"}
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#dcfce7"

    def __init__(
        self,
        *,
        fqrn: str,
        path: str,
        source: str,
        sha256: str | None = None,
        replace: bool = False,
        tag: str | None = None,
        message: str = "",
        store_conn_id: str | None = None,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(fqrn=fqrn, **kwargs)
        self.path = path
        self.source = source
        self.sha256 = sha256
        self.replace = replace
        self.tag = tag
        self.message = message
        self.store_conn_id = store_conn_id
        self.only_report = dry_run

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.care.provenance.single_changes import note_by_hand
        from include.cvmfs.commit.commit import NewTag
        from include.cvmfs.errors import CollectionRunning
        from include.cvmfs.format.history import check_tag_name
        from include.gateway.errors import PathBusy
        from include.nightlies.steps.approve import require_no_approval
        from include.site.single_changes import publish_changeset, require_tag, would_publish

        require_no_approval(site, self.fqrn)
        site.require_thawed(self.fqrn)
        tag = NewTag(check_tag_name(self.tag), self.message or self.source) if self.tag else None
        if tag is not None:
            require_tag(site.head(self.fqrn), self.path, tag)
        changeset = self._prepared(site)
        if self.only_report:
            return Done(would_publish(site, changeset, replaces=self.replace).to_json())
        now, holder = clock(), holder_name(context)
        try:
            done = publish_changeset(
                site, changeset, holder=holder, now=now, replaces=self.replace, tag=tag, on_lease=self.on_lease
            )
        except (PathBusy, CollectionRunning) as busy:
            return Waiting({changeset.destination: busy})
        again = context["ti"].try_number > 1
        note_by_hand(site, done, source=self.source, holder=holder, now=now, run=run_name(context), again=again)
        self.log.info("%s%s: %s", self.fqrn, changeset.destination, done.to_json())
        return Done(done.to_json())

    def _prepared(self, site: Site) -> Changeset:
        """The tree's changeset; while this try waits for a path it is kept in the ledger."""
        from include.cvmfs.ingest.changeset import Changeset
        from include.nightlies.records import builds, damage
        from include.nightlies.steps.sources import source_limits
        from include.nightlies.steps.values import Item
        from include.site.preparing import TreeToPrepare
        from include.site.single_changes import prepared_tree

        if (digest := self.kept.get("changeset")) and (record := builds.changeset(site.ledger, digest)) is not None:
            return Changeset.parse(record.body)
        item = Item(name=self.path, destination=self.path, source=self.source, sha256=self.sha256 or None)
        tree = TreeToPrepare(
            self.path,
            self._opened(site, item),
            clock(),
            damaged=[found.key for found in damage.of_repository(site.ledger, self.fqrn)],
            limits=source_limits(site.settings.repository(self.fqrn).limits),
            progress=partial(ProgressReporter(self.log), item),
            dry_run=self.only_report,
        )
        with yielding(), prepared_tree(site, self.fqrn, tree) as changeset:
            if changeset.stored:
                builds.save_changeset(site.ledger, builds.ChangesetRecord.of(changeset))
                self.kept = {"changeset": changeset.digest}
        return changeset

    def _opened(self, site: Site, item: Item) -> TreeSource:
        from include.cvmfs.errors import SourceError
        from include.cvmfs.sources.artifact import open_path
        from include.nightlies.steps.sources import opened, opened_at, source_limits
        from include.site.stores import connected_store

        limits = site.settings.repository(self.fqrn).limits
        if "://" not in self.source:
            if not Path(self.source).is_absolute():
                raise SourceError(self.source, "is no absolute path and no URL; give one of them")
            return open_path(Path(self.source), sha256=item.sha256, limits=source_limits(limits))
        if self.store_conn_id is None:
            return opened(site, item, limits)
        folder, _, key = self.source.rstrip("/").rpartition("/")
        return opened_at(connected_store(site.secrets, self.store_conn_id, folder), key, item, limits)
