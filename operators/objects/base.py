"""What operators for single objects of a store have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hooks.object_store import require_one_store
from hooks.site import default_deferrable
from operators.base import NightshiftOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.site.site import Site
    from include.storage.store import Store


class ObjectOperator(NightshiftOperator):
    """A task that changes objects of one store; it waits out an outage. Objects of repositories are refused.

    Args:
        store: The store's name in the site configuration; None: `store_conn_id` describes it.
        store_conn_id: A connection of type `object_store` whose extra names the bucket (`url`); by default
            `object_store_default`. Only one of the two may be given.
        dry_run: Report what would be done; change nothing.
        deferrable: Whether the triggerer waits for the end of an outage; otherwise the task fails, and is tried again
            as its `retries` say. By default `default_deferrable` of Airflow's section `[operators]`.
        **kwargs: Those of every operator.
    """

    template_fields: Sequence[str] = ("store", "store_conn_id")
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        store: str | None = None,
        store_conn_id: str | None = None,
        dry_run: bool = False,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        require_one_store(store, store_conn_id)
        super().__init__(**kwargs)
        self.store = store
        self.store_conn_id = store_conn_id
        self.only_report = dry_run
        self.deferrable = default_deferrable() if deferrable is None else deferrable

    def execute(self, context: Context) -> Any:  # noqa: ARG002
        site = self.site()
        return self.outlasting(site, lambda: self.work(site))

    def work(self, site: Site) -> Any:
        """What the task does and returns."""
        raise NotImplementedError

    def opened(self, site: Site, keys: Sequence[str]) -> Store:
        """The store, if these keys may be changed in it."""
        from include.site.stores import require_no_repository

        store = site.chosen_store(self.store, self.store_conn_id)
        require_no_repository(site.settings, store, keys)
        return store
