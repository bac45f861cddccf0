"""Hold a lease around tasks that publish in their own way: taken by a setup task, given back by a teardown task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from operators.base import NightshiftOperator, clock, holder_name
from operators.cvmfs.base import CvmfsOperator
from operators.lease import Done, Waiting

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.site.site import Site

__all__ = ["CvmfsLeaseOperator", "CvmfsReleaseOperator", "cvmfs_lease"]


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
        from include.gateway.client.values import seal
        from include.gateway.errors import PathBusy
        from include.nightlies.steps.approve import require_no_approval

        require_no_approval(site, self.fqrn)
        site.require_thawed(self.fqrn)
        gateway_conn_id = site.settings.repository(self.fqrn).gateway
        with site.gateway(self.fqrn) as client:
            try:
                lease = client.acquire(self.fqrn, self.path, hostname=holder_name(context, self.release_task_id))
            except PathBusy as busy:
                return Waiting({self.path: busy})
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
