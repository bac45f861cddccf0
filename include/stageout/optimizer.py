"""What the optimizers of the FTS servers decided of the links between sites: how many files may be active."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from include.errors import NightshiftError
from include.fts.client.open import connected_credential, open_client
from include.fts.client.replies import OptimizerDecision
from include.settings.transfers.sites import RemoteSite
from include.site.site import Site
from include.stageout.attempts.queues import Link, server_of, storage_of

TIMEOUT_S = 10.0
ServerDecisions = Mapping[str, Sequence[OptimizerDecision] | NightshiftError]
"""By the id of the server's connection; an error where the server did not answer."""


def ask_optimizers(site: Site) -> ServerDecisions:
    """Ask each FTS server of stage-out, with the credential of its connection."""
    found: dict[str, Sequence[OptimizerDecision] | NightshiftError] = {}
    for server in site.settings.stageout.fts:
        try:
            connection = site.secrets.get(server)
            with open_client(connection, connected_credential(connection), timeout_s=TIMEOUT_S, retries=0) as client:
                found[server] = client.link_decisions()
        except NightshiftError as error:
            found[server] = error
    return found


def decisions_by_link(
    links: Iterable[Link], sites: Mapping[str, RemoteSite], decisions: ServerDecisions
) -> dict[Link, OptimizerDecision]:
    """The decision of each link that its server has one of.

    Args:
        links: Source and destination sites.
        sites: The configured ones.
        decisions: Of all FTS servers, in the order of the configuration.
    """
    servers = list(decisions)
    known: dict[str, dict[tuple[str, str], OptimizerDecision]] = {}
    for server, answer in decisions.items():
        of_server = () if isinstance(answer, NightshiftError) else answer
        # the newest comes first, and stays
        known[server] = {
            (decided.source.lower(), decided.destination.lower()): decided for decided in reversed(of_server)
        }
    found: dict[Link, OptimizerDecision] = {}
    for link in links:
        storages = _storages(link, sites)
        decision = known[server_of(link, servers)].get(storages) if storages else None
        if decision is not None:
            found[link] = decision
    return found


def _storages(link: Link, sites: Mapping[str, RemoteSite]) -> tuple[str, str] | None:
    """The storages that FTS copies between: those of the first protocol of the source that both sites have."""
    source, destination = (sites[name].third_party if name in sites else () for name in link)
    here = {rule.protocol: storage_of(rule.url) for rule in reversed(destination)}
    return next(((storage_of(rule.url), here[rule.protocol]) for rule in source if rule.protocol in here), None)
