"""Wait until readers of a repository get what they are to get; the waiting is done by the triggerer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sensors.base import WaitSensor

__all__ = ["CvmfsPathSensor", "CvmfsRevisionSensor"]


class CvmfsPathSensor(WaitSensor):
    """Succeeds when readers find something at a path, through the public URL and with the public key alone.

    Returns a mapping: `fqrn`, `path`, `revision`.

    Args:
        fqrn: The repository's name in the site configuration.
        path: An absolute path within the repository.
        absent: Wait until nothing is there any more instead.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.

    Raises:
        DestinationError: The path is malformed.
    """

    template_fields: Sequence[str] = ("fqrn", "path")
    check = "path"

    def __init__(
        self, *, fqrn: str, path: str, absent: bool = False, timeout: float = 6 * 3600.0, **kwargs: Any
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.fqrn = fqrn
        self.path = path
        self.absent = absent

    def arguments(self) -> dict[str, Any]:
        return {"fqrn": self.fqrn, "path": self.path, "absent": self.absent}


class CvmfsRevisionSensor(WaitSensor):
    """Succeeds when readers get a revision of a repository, or find a tag.

    Returns a mapping: `fqrn`, `revision` (that of the tag, if one was waited for), `root_hash` of the newest revision.

    Args:
        fqrn: The repository's name in the site configuration.
        revision: The oldest revision that will do, a number, or a template of one; with `tag`: the tag's. None: any.
        tag: The name of a tag. None: none is needed.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.
    """

    template_fields: Sequence[str] = ("fqrn", "revision", "tag")
    check = "revision"

    def __init__(
        self,
        *,
        fqrn: str,
        revision: int | str | None = None,
        tag: str | None = None,
        timeout: float = 6 * 3600.0,
        **kwargs: Any,
    ) -> None:
        if revision is None and tag is None:
            raise ValueError(f"repository {fqrn}: give the `revision` or the `tag` to wait for")
        super().__init__(timeout=timeout, **kwargs)
        self.fqrn = fqrn
        self.revision = revision
        self.tag = tag

    def arguments(self) -> dict[str, Any]:
        revision = None if self.revision is None else int(str(self.revision))
        return {"fqrn": self.fqrn, "revision": revision, "tag": self.tag}
