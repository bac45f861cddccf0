"""Remove files and folders of a repository from others' DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hooks.site import run_name
from operators.base import clock, holder_name
from operators.cvmfs.base import CvmfsOperator
from operators.lease import Done, Waiting
from operators.links import RepositoryLink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.site.site import Site

__all__ = ["CvmfsRemoveOperator"]


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
        from include.care.provenance.single_changes import note_removed
        from include.cvmfs.errors import CollectionRunning
        from include.gateway.errors import PathBusy
        from include.nightlies.steps.approve import require_no_approval
        from include.site.single_changes import removal

        require_no_approval(site, self.fqrn)
        site.require_thawed(self.fqrn)
        paths = [self.paths] if isinstance(self.paths, str) else list(self.paths)
        removal(paths)  # refuses what is wrong with any of them
        head = site.head(self.fqrn)
        there = [path for path in paths if head.revision.lookup(path.rstrip("/")) is not None]
        facts = {"removed": there, "absent": [path for path in paths if path not in there]}
        self.log.info("%s: %s", self.fqrn, facts)
        if self.only_report or not there:
            return Done(facts | {"dry_run": self.only_report, "revision": head.manifest.revision, "unchanged": True})
        now, holder = clock(), holder_name(context)
        try:
            done = removal(there).commit(site, self.fqrn, holder=holder, now=now)
        except (PathBusy, CollectionRunning) as busy:
            return Waiting({there[0]: busy})
        note_removed(site, self.fqrn, there, done, holder=holder, now=now, run=run_name(context))
        return Done(facts | {"dry_run": False} | done.to_json())
