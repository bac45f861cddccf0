"""Store an object from others' DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from operators.objects.base import ObjectOperator

if TYPE_CHECKING:
    from include.site.site import Site

__all__ = ["ObjectPutOperator"]


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
        return done.to_json()

    def _content(self) -> bytes:
        from include.storage.objects import read_object
        from include.storage.open import open_store

        if self.file is None:
            return self.data.encode() if isinstance(self.data, str) else self.data or b""
        path = Path(self.file)
        return read_object(open_store(path.parent.as_uri()), path.name, most=self.max_bytes)
