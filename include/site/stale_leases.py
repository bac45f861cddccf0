"""Leases that were left behind: whose each is, and the ending of those of our own tasks that are dead.

A gateway ends leases by path, with an administrator's key, of any holder; so a lease is ended only if nothing else
would end with it, and only if it still is the one that was judged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from include.gateway.client.leases import LeaseInfo
from include.gateway.errors import AdminKeyNeeded, GatewayError
from include.gateway.protocol import TaskName
from include.site.site import Site

log = logging.getLogger(__name__)

DEAD = frozenset({"success", "failed", "skipped", "upstream_failed", "removed", "up_for_retry"})
"""States of Airflow in which no try of a task runs or is about to. A later try is another holder."""

StateOf = Callable[[TaskName], str | None]
"""Asks Airflow for a task's state; None if it does not know the task."""


class LeaseOwnership(Enum):
    """Owner of a lease, and so what is done with it."""

    DEAD = "ours, of a task that is dead"
    ALIVE = "ours, of a task that runs or is about to"
    UNKNOWN = "taken with our key, by no task of this Airflow"
    FOREIGN = "of others"


@dataclass(frozen=True, slots=True)
class LeaseFinding:
    """A lease, whose it is, and why that is thought. ``expires``: ISO 8601 with zone."""

    repository: str
    path: str
    key_id: str
    hostname: str
    expires: str
    whose: LeaseOwnership
    reason: str

    def to_json(self) -> dict[str, str]:
        return asdict(self) | {"whose": self.whose.name}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LeaseFinding:
        return cls(**{**value, "whose": LeaseOwnership[value["whose"]]})

    def is_of(self, lease: LeaseInfo) -> bool:
        """Tell whether it is the very lease that was judged."""
        return (self.repository, self.path, self.key_id, self.hostname, self.expires) == _identity(lease)

    def __str__(self) -> str:
        where = f"{self.repository}{self.path or '/'}"
        return f"{where}: {self.whose.value}; held by {self.hostname!r} with key {self.key_id} until {self.expires}"


@dataclass(frozen=True, slots=True)
class LeaseFindings:
    """Leases on all gateways, and the repositories whose gateway did not list them, with the error."""

    findings: tuple[LeaseFinding, ...]
    silent: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class EndedLease:
    """Outcome for a dead lease. ``fault``: it was not ended, and a person has to see to it."""

    finding: LeaseFinding
    ended: bool
    reason: str
    fault: bool = False


def look(site: Site, state_of: StateOf) -> LeaseFindings:
    """Judge the leases of every configured repository that has a gateway."""
    findings: list[LeaseFinding] = []
    silent: list[tuple[str, str]] = []
    for fqrn, settings in sorted(site.settings.repositories.items()):
        if settings.server is not None and settings.server.behind == "none":
            continue
        try:
            with site.gateway(fqrn) as client:
                held, key_id = client.leases(), client.key_id
        except GatewayError as error:
            silent.append((fqrn, str(error)))
            continue
        findings += [judge(lease, key_id, state_of) for lease in held if lease.repository == fqrn]
    return LeaseFindings(tuple(findings), tuple(silent))


def judge(lease: LeaseInfo, key_id: str, state_of: StateOf) -> LeaseFinding:
    """Return whose a lease is; ``key_id``: that of our connection to its gateway."""
    whose, reason = _whose(lease, key_id, state_of)
    return LeaseFinding(*_identity(lease), whose, reason)


def end_dead(site: Site, findings: Iterable[LeaseFinding], state_of: StateOf) -> list[EndedLease]:
    """End the leases of dead tasks; each is judged once more right before. Raises GatewayError if a gateway is away."""
    done = []
    for finding in findings:
        if finding.whose is LeaseOwnership.DEAD:
            done.append(_end(site, finding, state_of))
            log.info("%s: %s: %s", finding, "ended" if done[-1].ended else "left alone", done[-1].reason)
    return done


def hit_by(path: str, held: Sequence[LeaseInfo]) -> list[LeaseInfo]:
    """The leases that ending ``path`` would end on any gateway: a stock one takes it for the beginning of a pattern of
    SQL, with ``%`` and ``_`` for anything, in upper or lower case."""
    pattern = re.compile(
        "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in path or "/"),
        re.DOTALL | re.IGNORECASE,
    )
    return [lease for lease in held if pattern.match(lease.path or "/")]


def _whose(lease: LeaseInfo, key_id: str, state_of: StateOf) -> tuple[LeaseOwnership, str]:
    if lease.key_id != key_id:
        return LeaseOwnership.FOREIGN, f"its key {lease.key_id} is not ours"
    task = TaskName.parse(lease.hostname)
    if task is None:
        return (
            LeaseOwnership.UNKNOWN,
            "its holder is no task: a user at a command line, or another program with our key",
        )
    state = state_of(task)
    if state is None:
        return (
            LeaseOwnership.UNKNOWN,
            "this Airflow does not know the task: its run was deleted, or it is of another Airflow",
        )
    if state in DEAD:
        return LeaseOwnership.DEAD, f"its task is {state}"
    return LeaseOwnership.ALIVE, f"its task is {state}"


def _end(site: Site, finding: LeaseFinding, state_of: StateOf) -> EndedLease:
    fqrn = finding.repository
    with site.gateway_admin(fqrn) as client, site.gateway(fqrn) as ours:
        held = [lease for lease in client.leases() if lease.repository == fqrn]
        same = [lease for lease in held if finding.is_of(lease)]
        if not same:
            return EndedLease(finding, False, "it has ended already, or another one has replaced it")
        for lease in hit_by(finding.path, held):
            whose, why = _whose(lease, ours.key_id, state_of)
            if whose is not LeaseOwnership.DEAD:
                beside = "" if finding.is_of(lease) else f"the lease on {lease.full_path} would end with it, and "
                return EndedLease(finding, False, f"{beside}{why}")
        try:
            client.drop_by_path(fqrn, finding.path)
        except AdminKeyNeeded:
            cure = "name a connection with an administrator's key as `gateway_admin` of the repository"
            return EndedLease(finding, False, f"the gateway lets only an administrator end leases: {cure}", fault=True)
    return EndedLease(finding, True, finding.reason)


def _identity(lease: LeaseInfo) -> tuple[str, str, str, str, str]:
    return lease.repository, lease.path, lease.key_id, lease.hostname, lease.expires.isoformat()
