"""The fake stock gateway answers as the real one was recorded, surprises included; what it leaves out is named here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.fakes.stockgateway import StockGateway
from tests.integration.gateway.test_keeping_leases import Counting
from tests.integration.gateway.test_recorded_exchanges import EXCHANGES, SECRETS, Exchange, Replay, _masked

LEFT_OUT = re.compile(
    "route|wrong method|^trailing slash$|^repos?$|repo unknown|restricted|not of this repo|drop sub|expir|payload|repo$"
    "|default-key|commit, no payload|commit by other|after commit|list leases$|no hostname|fallback"
)
"""Routing, one key for all, repositories, payloads, and what depends on how much time had passed."""


def covered() -> Iterator[Exchange]:
    skip_drop = False
    for exchange in EXCHANGES:
        if skip_drop and exchange.name.startswith("drop"):
            skip_drop = False
            continue
        if LEFT_OUT.search(exchange.name):
            skip_drop = exchange.name == "default-key repo, ok"
            continue
        yield exchange


def test_every_exchange_that_it_covers_is_answered_as_the_real_one_did() -> None:
    keys = {name: secret for name, secret in SECRETS.items() if name != "nokey"}
    seen: list[str] = []
    with StockGateway(Counting(), keys, admins={"adminkey"}) as stock:  # type: ignore[arg-type]
        replay = Replay(stock.url)
        for exchange in covered():
            status, _, body = replay.send(exchange)
            expected = (int(exchange.reply.start.split(" ")[1]), _masked(exchange.reply.body))
            assert (status, _masked(body)) == expected, exchange.name
            seen.append(exchange.name)
    assert len(seen) >= 45
    for surprise in ("sibling sharing", "LIKE underscore: ask", "case: ask", "drop with other key", "dot-dot path"):
        assert any(name.startswith(surprise) for name in seen), surprise
