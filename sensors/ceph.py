"""Wait until a Ceph cluster is well; the waiting is done by the triggerer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sensors.base import WaitSensor

__all__ = ["CephHealthSensor"]


class CephHealthSensor(WaitSensor):
    """Succeeds when all OSDs of a cluster are up, all placement groups active and clean, and no check disagrees.

    Those checks are about slow operations, full OSDs, and data that cannot be read. Warnings about other things do not
    count. A target whose cluster the configuration does not name is not waited for. Returns how the cluster is, as a
    mapping.

    Args:
        target: A target of `benchmarks:` in the configuration.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.
    """

    template_fields: Sequence[str] = ("target",)
    check = "ceph-clean"

    def __init__(self, *, target: str, timeout: float = 3600.0, **kwargs: Any) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.target = target

    def arguments(self) -> dict[str, Any]:
        return {"target": self.target}
