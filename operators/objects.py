"""Operators for single objects of a store: put, copy, delete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context

from hooks.object_store import require_one_store
from hooks.task import default_deferrable
from operators.base import NightshiftOperator

__all__ = ["ObjectCopyOperator", "ObjectDeleteOperator", "ObjectPutOperator"]

if TYPE_CHECKING:
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
        """Do the work of the task; return its result."""
        raise NotImplementedError

    def opened(self, site: Site, keys: Sequence[str]) -> Store:
        """The store, if these keys may be changed in it."""
        from include.site.site import require_no_repository

        store = site.chosen_store(self.store, self.store_conn_id)
        require_no_repository(site.settings, store, keys)
        return store


class ObjectPutOperator(ObjectOperator):
    """Stores a text, bytes or a file of the worker as one object. Run again with the same content it changes nothing.

    Returns a mapping: `url`, `size`, `sha256`, `unchanged`, `dry_run`.

    Args:
        key: The object's key in the store.
        data: What is stored; a text as UTF-8. Either this or `file`.
        file: An absolute path on the worker, of at most `max_bytes`.
        sha256: What the SHA-256 of the content must be; None: not checked.
        replace: Whether other content is replaced; otherwise it is refused with Conflict.
        max_bytes: Most bytes of `file`, which is held in memory.
        **kwargs: `store`, `store_conn_id`, `dry_run`, `deferrable`, and those of every operator.

    Raises:
        StoreError: The content has another sum, is too large, or the store refused it.
    """

    template_fields: Sequence[str] = (*ObjectOperator.template_fields, "key", "data", "file", "sha256")
    template_fields_renderers: ClassVar[dict[str, str]] = {"data": "txt"}

    def __init__(
        self,
        *,
        key: str,
        data: str | bytes | None = None,
        file: str | None = None,
        sha256: str | None = None,
        replace: bool = False,
        max_bytes: int = 1 << 30,
        **kwargs: Any,
    ) -> None:
        if (data is None) is (file is None):
            raise ValueError(f"object {key!r}: give `data` or `file`, one of them")
        super().__init__(**kwargs)
        self.key = key
        self.data = data
        self.file = file
        self.sha256 = sha256
        self.replace = replace
        self.max_bytes = max_bytes

    def work(self, site: Site) -> dict[str, Any]:
        from include.storage.objects import put_object

        store = self.opened(site, [self.key])
        done = put_object(
            store, self.key, self._content(), sha256=self.sha256, replaces=self.replace, dry_run=self.only_report
        )
        self.log.info("%s", done)
        return asdict(done)

    def _content(self) -> bytes:
        from include.storage.objects import read_object
        from include.storage.open import open_store

        if self.file is None:
            return self.data.encode() if isinstance(self.data, str) else self.data or b""
        path = Path(self.file)
        return read_object(open_store(path.parent.as_uri()), path.name, most=self.max_bytes)


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
        deleted = delete_objects(store, keys, prefix=self.prefix, dry_run=self.only_report)
        verb = "would be deleted" if self.only_report else "deleted"
        self.log.info("%s: %d objects %s: %s", store.url, len(deleted), verb, ", ".join(deleted[:20]))
        return list(deleted)


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
        return asdict(done)
