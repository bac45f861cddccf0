"""Name a revision of a repository from others' DAGs."""

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

__all__ = ["CvmfsTagOperator"]


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
        from include.cvmfs.errors import CollectionRunning
        from include.gateway.errors import PathBusy
        from include.site.single_changes import tag_revision

        tag = NewTag(self.tag, "; ".join(filter(None, (self.message, run_name(context)))))
        holder, lease = holder_name(context), self.path.rstrip("/")
        try:
            done = tag_revision(site, self.fqrn, tag, lease=lease, holder=holder, now=clock())
        except (PathBusy, CollectionRunning) as busy:
            return Waiting({self.tag: busy})
        self.log.info("tag %s names revision %d of %s", self.tag, done.revision, self.fqrn)
        return Done({"tag": self.tag, **done.to_json()})
