"""Operators for CernVM-FS in others' DAGs: leases, publications, removals, tags. None needs a row in the ledger
beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context, XComArg

from hooks.task import default_deferrable, run_name
from include.cvmfs.errors import SourceError
from include.nightlies.steps.values import Item
from operators.base import NightshiftOperator, clock, holder_name
from operators.lease_task import Done, LeaseTaskOperator, Waiting
from operators.links import RepositoryLink
from operators.prepare import ProgressReporter, yielding

__all__ = [
    "CvmfsLeaseOperator",
    "CvmfsPublishTreeOperator",
    "CvmfsReleaseOperator",
    "CvmfsRemoveOperator",
    "CvmfsTagOperator",
    "cvmfs_lease",
]

if TYPE_CHECKING:
    from include.cvmfs.ingest.changeset import Changeset
    from include.cvmfs.sources.source import TreeSource
    from include.site.site import Site


class CvmfsOperator(LeaseTaskOperator):
    """A task that changes one repository of the site configuration under leases of its own.

    It waits for busy paths, thaws and outages. A task that is killed gives its lease back.

    Args:
        fqrn: The repository's name, such as `nightlies.example.org`.
        gateway_conn_id: A connection of type `cvmfs_gateway`, for another key than the site's; None: the one that the
            site configuration names for the repository.
        deferrable: Whether the triggerer waits; otherwise the task does. By default `default_deferrable` of Airflow's
            section `[operators]`.
        **kwargs: `patience_s` (seconds to try again within the task before it is deferred), `wait_limit_s` (seconds to
            wait for a busy path in total; by default as long as a lease may last at the gateway), and those of every
            operator.
    """

    def __init__(
        self, *, fqrn: str, gateway_conn_id: str | None = None, deferrable: bool | None = None, **kwargs: Any
    ) -> None:
        super().__init__(deferrable=default_deferrable() if deferrable is None else deferrable, **kwargs)
        self.fqrn = fqrn
        self.gateway_conn_id = gateway_conn_id

    def site(self) -> Site:
        site = super().site()
        return site.with_gateway(self.fqrn, self.gateway_conn_id) if self.gateway_conn_id else site


class CvmfsTagOperator(CvmfsOperator):
    """Gives the newest content of a repository a name, which keeps it from being collected. Needs no signing key.

    The tag is carried by a revision of its own. Its description names the run: a second try of the run finds its tag
    and reports `unchanged`.

    Returns a mapping: `tag`, `revision`, `root_hash`, `unchanged`, `lease_held_s`.

    Args:
        fqrn: The repository's name in the site configuration.
        tag: The name.
        message: What the tag is for.
        path: The path that is leased for a moment. The tag names the whole repository all the same. `/`: all of it, for
            which a stock gateway gives no lease; with a path of your own, leases of others are not waited for.
        **kwargs: `gateway_conn_id`, `deferrable`, `patience_s`, `wait_limit_s`, and those of every operator.

    Raises:
        TagError: The name cannot be one, or another run has given it.
    """

    template_fields: Sequence[str] = ("fqrn", "tag", "message", "path", "gateway_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"message": "md"}
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#fef9c3"

    def __init__(self, *, fqrn: str, tag: str, message: str = "", path: str = "/", **kwargs: Any) -> None:
        super().__init__(fqrn=fqrn, **kwargs)
        self.tag = tag
        self.message = message
        self.path = path

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.cvmfs.commit.commit import NewTag
        from include.site.changes import tag_revision

        tag = NewTag(self.tag, "; ".join(filter(None, (self.message, run_name(context)))))
        holder, lease = holder_name(context), self.path.rstrip("/")
        done = tag_revision(site, self.fqrn, tag, lease=lease, holder=holder, now=clock())
        self.log.info("tag %s names revision %d of %s", self.tag, done.revision, self.fqrn)
        return Done({"tag": self.tag, **done.to_json()})


class CvmfsRemoveOperator(CvmfsOperator):
    """Removes files, directories and nested catalogs, all in one revision under one short lease.

    A path that is not there is no error, so that it can be run again. The earlier revision stays until it is collected.
    Who removed what is recorded (`nightshift who`). A repository that asks for approval is refused.

    Returns a mapping: `removed` and `absent` (lists of paths), `dry_run`, and unless in a dry run `revision`,
    `root_hash`, `unchanged`, `lease_held_s`.

    Args:
        fqrn: The repository's name in the site configuration.
        paths: One absolute path within the repository, or several; none may lie within another.
        dry_run: Report what would be removed; change nothing.
        **kwargs: `gateway_conn_id`, `deferrable`, `patience_s`, `wait_limit_s`, and those of every operator.

    Raises:
        DestinationError: A malformed path, or one within another of the paths.
    """

    template_fields: Sequence[str] = ("fqrn", "paths", "gateway_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"paths": "json"}
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#fee2e2"

    def __init__(self, *, fqrn: str, paths: str | Sequence[str], dry_run: bool = False, **kwargs: Any) -> None:
        super().__init__(fqrn=fqrn, **kwargs)
        self.paths = paths
        self.only_report = dry_run

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.nightlies.steps.approve import require_no_approval
        from include.provenance.single_changes import note_removed
        from include.site.changes import removal

        require_no_approval(site, self.fqrn)
        site.require_thawed(self.fqrn)
        paths = [self.paths] if isinstance(self.paths, str) else list(self.paths)
        removal(paths)  # refuses what is wrong with any of them
        head = site.head(self.fqrn)
        existing = [path for path in paths if head.revision.lookup(path.rstrip("/")) is not None]
        facts = {"removed": existing, "absent": [path for path in paths if path not in existing]}
        self.log.info("%s: %s", self.fqrn, facts)
        if self.only_report or not existing:
            return Done(facts | {"dry_run": self.only_report, "revision": head.manifest.revision, "unchanged": True})
        now, holder = clock(), holder_name(context)
        done = removal(existing).commit(site, self.fqrn, holder=holder, now=now)
        note_removed(site, self.fqrn, existing, done, holder=holder, now=now, run=run_name(context))
        return Done(facts | {"dry_run": False} | done.to_json())


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
        from include.cvmfs.commit.commit import NewTag
        from include.cvmfs.format.database import check_tag_name
        from include.nightlies.steps.approve import require_no_approval
        from include.provenance.single_changes import note_by_hand
        from include.site.changes import publish_changeset, require_tag, would_publish

        require_no_approval(site, self.fqrn)
        site.require_thawed(self.fqrn)
        tag = NewTag(check_tag_name(self.tag), self.message or self.source) if self.tag else None
        if tag is not None:
            require_tag(site.head(self.fqrn), self.path, tag)
        changeset = self._prepared(site)
        if self.only_report:
            return Done(would_publish(site, changeset, replaces=self.replace).to_json())
        now, holder = clock(), holder_name(context)
        done = publish_changeset(
            site, changeset, holder=holder, now=now, replaces=self.replace, tag=tag, on_lease=self.on_lease
        )
        again = context["ti"].try_number > 1
        note_by_hand(site, done, source=self.source, holder=holder, now=now, run=run_name(context), again=again)
        self.log.info("%s%s: %s", self.fqrn, changeset.destination, done.to_json())
        return Done(done.to_json())

    def _prepared(self, site: Site) -> Changeset:
        """The tree's changeset; while this try waits for a path it is kept in the ledger."""
        from include.cvmfs.ingest.changeset import Changeset
        from include.nightlies.records import builds, damage
        from include.nightlies.steps.sources import source_limits
        from include.site.changes import TreeToPrepare, prepared_tree

        if (digest := self.kept.get("changeset")) and (record := builds.changeset(site.ledger, digest)) is not None:
            return Changeset.parse(record.body)
        item = Item(name=self.path, destination=self.path, source=self.source, sha256=self.sha256 or None)
        tree = TreeToPrepare(
            self.path,
            self._opened(site, item),
            clock(),
            damaged=[row.key for row in damage.of_repository(site.ledger, self.fqrn)],
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
        from include.cvmfs.sources.artifact import open_path
        from include.nightlies.steps.sources import opened, opened_at, source_limits
        from include.site.site import connected_store

        limits = site.settings.repository(self.fqrn).limits
        if "://" not in self.source:
            if not Path(self.source).is_absolute():
                raise SourceError(self.source, "is no absolute path and no URL; give one of them")
            return open_path(Path(self.source), sha256=item.sha256, limits=source_limits(limits))
        if self.store_conn_id is None:
            return opened(site, item, limits)
        folder, _, key = self.source.rstrip("/").rpartition("/")
        return opened_at(connected_store(site.secrets, self.store_conn_id, folder), key, item, limits)


class CvmfsLeaseOperator(CvmfsOperator):
    """Takes a lease on a path for the tasks between it and a `CvmfsReleaseOperator`; waits while the path is busy.

    Returns a mapping for `hooks.gateway.held_lease`, with which those tasks use the lease; its token is encrypted with
    the gateway's secret. The lease ends by itself after the gateway's lease time (`max_lease_time_s` of the connection)
    unless a task holds it by `held_lease`, which renews it. Operators of Nightshift take leases of their own: between
    the two, on the same path, they would wait for this one.

    Args:
        fqrn: The repository's name in the site configuration.
        path: The path that is going to be changed, absolute within the repository; its parent must exist.
        release_task_id: The task that gives it back. It is the holder that others see, so that the lease is not taken
            for one that a dead task left; `cvmfs_lease` sets it.
        **kwargs: `gateway_conn_id`, `deferrable`, `patience_s`, `wait_limit_s`, and those of every operator.

    Raises:
        BadLeasePath: The path is malformed.
    """

    template_fields: Sequence[str] = ("fqrn", "path", "gateway_conn_id")
    ui_color = "#fef9c3"

    def __init__(self, *, fqrn: str, path: str, release_task_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(fqrn=fqrn, **kwargs)
        self.path = path
        self.release_task_id = release_task_id

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.gateway.client.leases import seal
        from include.nightlies.steps.approve import require_no_approval

        require_no_approval(site, self.fqrn)
        site.require_thawed(self.fqrn)
        gateway_conn_id = site.settings.repository(self.fqrn).gateway
        with site.gateway(self.fqrn) as client:
            lease = client.acquire(self.fqrn, self.path, hostname=holder_name(context, self.release_task_id))
            self.on_lease(lambda: client.drop(lease))
            sealed = seal(lease, site.secrets.get(gateway_conn_id).password or "", now=clock())
        self.log.info("lease on %s taken until %s", lease.full_path, sealed["expires"] or "the gateway ends it")
        return Done({**sealed, "gateway_conn_id": gateway_conn_id})


class CvmfsReleaseOperator(NightshiftOperator):
    """Gives back what `CvmfsLeaseOperator` took. A lease that has ended, as by a commit, is as good. Returns whether it
    was still held.

    Args:
        lease: What `CvmfsLeaseOperator` returned.
        **kwargs: Those of every operator.
    """

    template_fields: Sequence[str] = ("lease",)
    ui_color = "#fef9c3"

    def __init__(self, *, lease: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lease = lease

    def execute(self, context: Context) -> bool:  # noqa: ARG002
        from hooks.gateway import unsealed

        client, lease = unsealed(self.lease)
        with client:
            dropped = self.outlasting(self.site(), lambda: client.drop(lease))
        self.log.info("lease on %s: %s", lease.full_path, "given back" if dropped else "it had ended")
        return dropped


@contextmanager
def cvmfs_lease(*, fqrn: str, path: str, task_id: str = "lease", **kwargs: Any) -> Iterator[XComArg]:
    """Have a lease around the tasks that are declared in the block: a setup task takes it, a teardown gives it back.

    The teardown runs whatever became of the tasks; if one of them failed the run still fails.

    Args:
        fqrn: The repository's name in the site configuration.
        path: The path that is going to be changed, absolute within the repository; its parent must exist.
        task_id: Of the setup task; that of the teardown ends in `_release`.
        **kwargs: Those of `CvmfsLeaseOperator`.

    Yields:
        What the setup task returns, for `hooks.gateway.held_lease` in the tasks.
    """
    take = CvmfsLeaseOperator(task_id=task_id, fqrn=fqrn, path=path, **kwargs)
    release = CvmfsReleaseOperator(task_id=f"{task_id}_release", lease=take.output)
    take.release_task_id = release.task_id
    with release.as_teardown(setups=take):
        yield take.output
