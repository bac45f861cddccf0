"""Copy an object between stores from others' DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hooks.object_store import require_one_store
from operators.objects.base import ObjectOperator

if TYPE_CHECKING:
    from include.site.site import Site

__all__ = ["ObjectCopyOperator"]


class ObjectCopyOperator(ObjectOperator):
    """Copies one object through the worker. Run again with the same content it changes nothing.

    Returns a mapping: `url`, `size`, `sha256`, `unchanged`, `dry_run`.

    Args:
        source_key: The key of the object to copy.
        key: The key of the copy; None: the same.
        source_store: The name of the store that has the object; None: `source_store_conn_id` describes it.
        source_store_conn_id: A connection of type `object_store`. Without either, the store of the copy has the object.
        sha256: What the SHA-256 of the object must be; None: not checked.
        replace: Whether other content at `key` is replaced; otherwise it is refused with Conflict.
        max_bytes: Most bytes of the object, which is held in memory.
        **kwargs: `store`, `store_conn_id` (of the copy), `dry_run`, `deferrable`, and those of every operator.

    Raises:
        NotFound: There is no such object.
        StoreError: The object has another sum, is too large, or a store refused it.
    """

    template_fields: Sequence[str] = (
        *ObjectOperator.template_fields, "source_store", "source_store_conn_id", "source_key", "key", "sha256",
    )  # fmt: skip

    def __init__(
        self,
        *,
        source_key: str,
        key: str | None = None,
        source_store: str | None = None,
        source_store_conn_id: str | None = None,
        sha256: str | None = None,
        replace: bool = False,
        max_bytes: int = 1 << 30,
        **kwargs: Any,
    ) -> None:
        require_one_store(source_store, source_store_conn_id)
        super().__init__(**kwargs)
        self.source_key = source_key
        self.key = key
        self.source_store = source_store
        self.source_store_conn_id = source_store_conn_id
        self.sha256 = sha256
        self.replace = replace
        self.max_bytes = max_bytes

    def work(self, site: Site) -> dict[str, Any]:
        from include.storage.objects import put_object, read_object

        key = self.key or self.source_key
        store = source = self.opened(site, [key])
        if self.source_store or self.source_store_conn_id:
            source = site.chosen_store(self.source_store, self.source_store_conn_id)
        data = read_object(source, self.source_key, most=self.max_bytes)
        done = put_object(store, key, data, sha256=self.sha256, replaces=self.replace, dry_run=self.only_report)
        self.log.info("%s/%s copied: %s", source.url, self.source_key, done)
        return done.to_json()
