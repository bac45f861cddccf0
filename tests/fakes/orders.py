"""What the orders of ``worker.py`` say about a gateway and its store.

It is apart from the worker, since a process that commits for a gateway imports it too, and nothing else.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from include.cvmfs.format.keys import load_signer
from include.gateway.service.commits import committer
from include.gateway.service.commits.ownership import claim
from include.gateway.service.config import AcceptedKey, RepositoryConfig, ServiceConfig
from include.storage.kinds import Credentials, StoreOptions, Traits
from include.storage.open import open_store
from include.storage.store import Store

KEY_ID, SECRET = "worker", "not-a-secret"
Order = dict[str, Any]


def gateway_config(order: Order) -> ServiceConfig:
    """Content of an order; a gateway finds out within seconds which one owns the repository."""
    if order.get("single_writer"):
        committer.claim = partial(claim, patience_s=2.5, renewed_every_s=0.25)  # type: ignore[attr-defined]
    fqrn, keys = order["fqrn"], Path(order["keys"])
    repository = RepositoryConfig(
        lambda: store_of(order), lambda: load_signer(keys, fqrn), (AcceptedKey(KEY_ID, SECRET),)
    )
    return ServiceConfig(
        Path(order["state"]),
        {fqrn: repository},
        port=order["port"],
        max_lease_time_s=order["max_lease_time_s"],
        stop_timeout_s=1,
    )


def store_of(order: Order) -> Store:
    traits = Traits(**order["traits"]) if order.get("traits") else None
    options = StoreOptions(
        endpoint=order.get("endpoint"), retries=order.get("retries", 5), timeout_s=60, traits=traits,
        single_writer=order.get("single_writer", False),
    )  # fmt: skip
    credentials = Credentials(*order["credentials"]) if order.get("credentials") else None
    return open_store(order["store"], credentials=credentials, options=options)
