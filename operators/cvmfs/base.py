"""What operators for CernVM-FS in others' DAGs have in common; they need no row in the ledger beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hooks.site import default_deferrable
from operators.lease import LeaseTaskOperator

if TYPE_CHECKING:
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
