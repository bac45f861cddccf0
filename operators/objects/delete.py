"""Delete objects of a store from others' DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from operators.objects.base import ObjectOperator

if TYPE_CHECKING:
    from include.site.site import Site

__all__ = ["ObjectDeleteOperator"]


class ObjectDeleteOperator(ObjectOperator):
    """Deletes objects by key, or all below a folder. A key without an object is no error.

    Returns the list of keys that were there.

    Args:
        keys: One key, or several.
        prefix: A folder of the store, all of which is deleted; never the whole store.
        **kwargs: `store`, `store_conn_id`, `dry_run`, `deferrable`, and those of every operator.

    Raises:
        BadKey: A malformed key or folder.
        StoreError: The store refused a deletion; the other keys were deleted.
    """

    template_fields: Sequence[str] = (*ObjectOperator.template_fields, "keys", "prefix")
    template_fields_renderers: ClassVar[dict[str, str]] = {"keys": "json"}
    ui_color = "#fee2e2"

    def __init__(self, *, keys: str | Sequence[str] = (), prefix: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keys = keys
        self.prefix = prefix

    def work(self, site: Site) -> list[str]:
        from include.storage.objects import delete_objects

        keys = [self.keys] if isinstance(self.keys, str) else list(self.keys)
        store = self.opened(site, keys if self.prefix is None else [*keys, self.prefix])
        found = delete_objects(store, keys, prefix=self.prefix, dry_run=self.only_report)
        verb = "would be deleted" if self.only_report else "deleted"
        self.log.info("%s: %d objects %s: %s", store.url, len(found), verb, ", ".join(found[:20]))
        return list(found)
