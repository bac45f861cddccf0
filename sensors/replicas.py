"""Wait until replicas have what stratum 0 has; the waiting is done by the triggerer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from hooks.task import require_wanted
from sensors.base import WaitSensor

if TYPE_CHECKING:
    from include.site.site import Site
    from triggers.checks import Observation


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
