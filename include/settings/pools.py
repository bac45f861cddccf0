"""The Airflow pools of a deployment: one place for their names, sizes and reasons."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from include.settings.model import Site


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as Airflow's REST API and `airflow pools import` describe it."""

    name: str
    slots: int
    description: str
    include_deferred: bool = False

    def to_json(self) -> dict[str, str | int | bool]:
        return {
            "name": self.name,
            "slots": self.slots,
            "description": self.description,
            "include_deferred": self.include_deferred,
        }


def pools(site: Site, *, cores: int | None = None) -> tuple[Pool, ...]:
    """The pools of a site: preparing is bound by cores, publishing by the gateway, which commits one by one.

    Args:
        cores: Of all workers together; those of this machine if not given.
    """
    cores = cores or os.cpu_count() or 1
    return (
        Pool("prepare", max(3, cores), "Reading, compressing and uploading artifacts: bound by the cores of a worker."),
        Pool("publish", 2 + 2 * max(1, len(site.repositories)), "Short leases and commits: bound by the gateways."),
        Pool("control", 16, "Looking into indices and the ledger: light."),
    )


def to_import(pools: Iterable[Pool]) -> dict[str, dict[str, str | int | bool]]:
    """What `airflow pools import` reads: each pool by its name."""
    documents = (pool.to_json() for pool in pools)
    return {str(document.pop("name")): document for document in documents}
