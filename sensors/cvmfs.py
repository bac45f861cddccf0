"""Wait until readers of a repository, or its replicas, have what they are to have; the triggerer does the waiting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from hooks.task import require_wanted
from include.gateway.errors import BadLeasePath
from include.gateway.protocol import checked_path
from sensors.base import WaitSensor

if TYPE_CHECKING:
    from include.site.site import Site
    from triggers.checks import Observation

__all__ = ["CvmfsPathSensor", "CvmfsRevisionSensor", "LeaseFreeSensor", "PlaceSensor"]


class LeaseFreeSensor(WaitSensor):
    """Succeeds when no lease overlaps a path of a repository. It takes none: the next task to ask may.

    Args:
        fqrn: The repository's name. It need not be configured if `gateway_conn_id` is given.
        path: An absolute path within the repository; empty: all of it.
        gateway_conn_id: A connection of type `cvmfs_gateway`, whose address is asked; None: the one that the site
            configuration names for the repository.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.

    Raises:
        BadLeasePath: The path is malformed.
    """

    template_fields: Sequence[str] = ("fqrn", "path", "gateway_conn_id")
    check = "lease-free"

    def __init__(
        self, *, fqrn: str, path: str = "", gateway_conn_id: str | None = None, timeout: float = 7200.0, **kwargs: Any
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.fqrn = fqrn
        self.path = path
        self.gateway_conn_id = gateway_conn_id

    def arguments(self) -> dict[str, Any]:
        """The path as leases have it. Raises BadLeasePath, which is not retried."""
        try:
            value = {"repository": self.fqrn, "path": checked_path(self.path)}
        except BadLeasePath as bad:
            message = f"{self.task_id}: path {self.path!r} of {self.fqrn}: {bad}; {BadLeasePath.hint}"
            raise BadLeasePath(message, repository=self.fqrn, path=self.path) from None
        return value | ({"gateway_conn_id": self.gateway_conn_id} if self.gateway_conn_id else {})


class PlaceSensor(WaitSensor):
    """Succeeds when `path` of a configured repository is reserved, or free, and no lease is held on it.

    It takes nothing: publishing there takes a lease and looks again. A tree that is there already, or a file in the
    way, ends the wait at once, before anything is built in vain. Returns repository, path, revision and reason.

    Args:
        fqrn: The repository's name in the site configuration.
        path: The destination that is going to be published to.
        until: `reserved` waits for a reservation (an empty nested catalog, made by `ReserveDestinationsOperator`);
            `free` also takes a path that does not exist.
        replaces: What is there is going to be replaced, and is no obstacle.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.

    Raises:
        DestinationError: Nothing can be published there, however long one waits.
    """

    template_fields: Sequence[str] = ("fqrn", "path")
    check = "place"

    def __init__(
        self,
        *,
        fqrn: str,
        path: str,
        until: str = "reserved",
        replaces: bool = False,
        timeout: float = 7200.0,
        **kwargs: Any,
    ) -> None:
        if until not in ("reserved", "free"):
            raise ValueError(f"until is {until!r}: write 'reserved' or 'free'")
        super().__init__(timeout=timeout, **kwargs)
        self.fqrn = fqrn
        self.path = path
        self.until = until
        self.replaces = replaces

    def arguments(self) -> dict[str, Any]:
        return {"repository": self.fqrn, "path": self.path, "wanted": self.until, "replaces": self.replaces}


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


class ReplicaInSyncSensor(WaitSensor):
    """Succeeds when the replicas of a repository have a revision, verified; their looks are recorded in the ledger.

    Returns each look as a mapping. A repository without replicas is in sync.

    Args:
        repository: The repository's name in the site configuration.
        replicas: Names of its replicas there; empty: all.
        revision: The oldest revision that will do; None: the one that stratum 0 has at the moment of the check.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.
    """

    template_fields = ("repository", "replicas", "revision")
    check = "replicas-in-sync"

    def __init__(
        self,
        *,
        repository: str,
        replicas: Sequence[str] = (),
        revision: int | str | None = None,
        timeout: float = 6 * 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.repository = repository
        self.replicas = replicas
        self.revision = revision

    def arguments(self) -> dict[str, Any]:
        number = None if self.revision in (None, "", "None") else int(str(self.revision))
        return {"repository": self.repository, "replicas": list(self.replicas), "revision": number}

    def _look(self) -> Observation:
        answer = super()._look()
        _record(self.site(), answer.result)
        return answer


class ReplicaQuietSensor(WaitSensor):
    """Waits before a collection for replicas in the middle of a snapshot, and for those that lag or are away too long.

    Each is waited for as long as its longest snapshot takes. After that, and after the timeout, it goes on without
    them and reports it. Their looks are recorded in the ledger. Returns `turn`, `reason` and the replicas left
    `without`.

    Args:
        repository: The repository's name in the site configuration. Skipped if the run's parameter `repositories` names
            others only.
        timeout: Seconds for all replicas together.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.
    """

    template_fields = ("repository",)
    check = "replicas-quiet"

    def __init__(self, *, repository: str, timeout: float = 12 * 3600.0, **kwargs: Any) -> None:
        super().__init__(timeout=timeout, deferrable=True, **kwargs)  # after the timeout it goes on
        self.repository = repository

    def execute(self, context: Context) -> dict[str, Any]:
        require_wanted(context, self.repository)
        return self._said(super().execute(context))

    def found(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return self._said(self._look().result)

    def arguments(self) -> dict[str, Any]:
        return {"repository": self.repository}

    def _look(self) -> Observation:
        answer = super()._look()
        _record(self.site(), answer.result["looks"])
        return answer

    def _said(self, result: dict[str, Any]) -> dict[str, Any]:
        turn = "go on without" if result["turn"] == "wait" else result["turn"]
        self.log.info("%s: %s: %s", self.repository, turn, result["reason"])
        return {"turn": turn, "reason": result["reason"], "without": result["without"]}


def _record(site: Site, looks: Iterable[Mapping[str, Any]]) -> None:
    from include.replicas.look import record
    from include.replicas.states import ReplicaLook

    record(site.ledger, map(ReplicaLook.from_json, looks))
