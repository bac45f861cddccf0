"""A round of health checks: each site is probed, judged with what transfers and readers report, and changes are told.

Probes use the site's own rules and the storages of stage-out, so they take the way that transfers and readers take.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from include.errors import NightshiftError
from include.federation.records import conclude_round, health_of, last_round, note_results
from include.federation.states import EvidenceSource, HealthRound, SiteHealth, SiteObservation, SiteState, judge_site
from include.fts.client.client import BanOf
from include.fts.client.open import connected_client
from include.fts.states import FailureReason
from include.notify.message import Message, NotifyEvent
from include.notify.notifier import Notifier
from include.settings.sites import ChecksumMode, RemoteSite, SiteProbe
from include.site.site import Site
from include.stageout.errors import PLACE_UNLISTED
from include.stageout.opening import SiteClients
from include.stageout.places.facts import FileFacts, SitePlace
from include.stageout.retry import TransferFailureClass, failure_class
from include.stageout.urls import storage_of

AT_ONCE = 16
LONGEST_ROUND = timedelta(hours=1)
"""Age above which reports count no more, however long ago the last round was."""
LEFTOVER = timedelta(hours=1)
"""Age at which a file of a probe is removed that died."""
RANGE = 64 << 10
PREFIX = "nightshift-probe-"
BANNED_BY_US = "nightshift: "
"""Begins the message of a ban, by which it is ended again."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Result of a round.

    Attributes:
        outcome: The health of every site, and what changed.
        probes: Results of the probes of each site.
        unprobed: Sites that could not be probed by a fault on our side, with the reason.
        faults: What failed of bans and messages.
    """

    outcome: HealthRound
    probes: Mapping[str, list[SiteObservation]]
    unprobed: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


def check_sites(
    site: Site,
    *,
    now: Callable[[], datetime],
    only: Collection[str] = (),
    say: Callable[[str], object] = lambda _: None,
) -> RoundReport:
    """Probe sites, judge all of them, record and tell changes, and ban failed ones at FTS where the settings say so.

    Args:
        site: The deployment.
        now: The clock.
        only: Probe these sites; empty: all that have a probe.
        say: Called with progress.
    """
    sites = {
        name: remote for name, remote in site.settings.sites.items() if remote.probe and (not only or name in only)
    }
    clients, owner = SiteClients(site), site.settings.federation.owner or ""
    before = last_round(site.ledger)

    def probed(remote: RemoteSite) -> list[SiteObservation] | NightshiftError:
        try:
            results = list(probe_site(clients.any_place(remote.name, owner), remote))
        except NightshiftError as error:
            return error
        say(f"{remote.name}: " + ", ".join(map(_shown, results)))
        return results

    with ThreadPoolExecutor(AT_ONCE, "probe") as pool:
        answers = dict(zip(sites, pool.map(probed, sites.values()), strict=True))
    probes = {name: answer for name, answer in answers.items() if isinstance(answer, list)}
    unprobed = {name: str(answer) for name, answer in answers.items() if isinstance(answer, NightshiftError)}
    ended = now()
    note_results(site.ledger, (result for results in probes.values() for result in results), now=ended)
    outcome = conclude_round(
        site.ledger,
        site.settings.sites,
        lambda results: {name: judge_site(some) for name, some in results.items() if name in site.settings.sites},
        since=max(before or ended - LONGEST_ROUND, ended - LONGEST_ROUND),
        now=ended,
    )
    notifier = Notifier.of(site)
    for message in _messages(outcome):
        notifier.tell(message, now=ended)
    return RoundReport(outcome, probes, unprobed, tuple(reconcile_bans(site) if site.settings.federation.ban else ()))


def probe_site(
    place: SitePlace, remote: RemoteSite, clock: Callable[[], float] = time.monotonic
) -> Iterator[SiteObservation]:
    """The results of the probes of a site; what its protocols cannot do here is not tried.

    Raises NightshiftError where the fault is on our side, as of a credential.
    """
    probe = remote.probe
    if probe is None:
        return
    steps: list[tuple[str, Callable[[], FailureReason | None]]] = [
        ("first byte", lambda: _failure(place.read(probe.file, 0, 1))),
        ("range", lambda: _failure(place.read(probe.file, probe.size // 2, min(RANGE, -(-probe.size // 2))))),
        ("checksum", lambda: _compared(place, probe, remote.checksum)),
    ]
    if probe.folder is not None:
        name = f"{probe.folder}/{PREFIX}{secrets.token_hex(8)}"
        _clean(place, probe.folder)
        steps += [
            ("write", lambda: place.write(name, name.encode())),
            ("copy", lambda: place.copy(probe.file, f"{name}-copy")),
            ("delete", lambda: _removed(place, [name, f"{name}-copy"])),
        ]
    for what, step in steps:
        began = clock()
        failure = step()
        if failure is not None and failure.errno in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT):
            if what == "write":
                return
            continue
        kind = "" if failure is None else _kind(failure)
        result = SiteObservation(remote.name, EvidenceSource.PROBE, what, kind, seconds=clock() - began)
        yield replace(result, good=int(failure is None), failed=int(failure is not None))
        if failure is not None and failure.errno in _GONE:
            return  # the other probes would only wait, too


_GONE = frozenset({errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECOMM})


def _failure(answer: bytes | FailureReason) -> FailureReason | None:
    return answer if isinstance(answer, FailureReason) else None


def _shown(result: SiteObservation) -> str:
    return f"{result.what} {result.kind or f'{result.seconds:.3f} s'}"


def _kind(failure: FailureReason) -> str:
    kind = failure_class(failure)
    if kind is TransferFailureClass.DESTINATION_CHECKSUM:
        return "content"
    return "missing" if failure.errno == errno.ENOENT else kind.value


def _compared(place: SitePlace, probe: SiteProbe, mode: ChecksumMode) -> FailureReason | None:
    """Compare size and Adler-32, which is computed here where the site does not report it."""
    for asked in (ChecksumMode.ADLER32, ChecksumMode.READ_BACK):
        if asked is ChecksumMode.ADLER32 and mode is not asked:
            continue
        answer = place.look([probe.file], checksum=asked)[probe.file]
        if answer is None:
            return FailureReason(None, errno.ENOENT, "it does not exist")
        if isinstance(answer, FailureReason):
            return answer
        if answer.size != probe.size:
            return FailureReason(None, errno.EIO, f"size mismatch ({answer.size}, not {probe.size})")
        if answer.checksum is not None:
            return _same(answer, probe)
    return None


def _same(answer: FileFacts, probe: SiteProbe) -> FailureReason | None:
    good = answer.checksum == f"adler32:{probe.checksum}"
    return None if good else FailureReason(None, errno.EIO, "checksum mismatch")


def _removed(place: SitePlace, names: list[str]) -> FailureReason | None:
    failures = [failure for failure in place.remove(names).values() if failure is not None]
    return failures[0] if failures else None


def _clean(place: SitePlace, folder: str) -> None:
    """Remove what earlier probes left that died."""
    try:
        old = [
            name
            for name, _, modified in place.listed(folder)
            if name.rpartition("/")[2].startswith(PREFIX) and datetime.now(UTC) - modified > LEFTOVER
        ]
    except NightshiftError as error:
        if error.code != PLACE_UNLISTED.code:
            raise
        return  # the write shows more
    if old:
        place.remove(old)


def _messages(outcome: HealthRound) -> Iterable[Message]:
    severities = {SiteState.FAILED: "error", SiteState.DEGRADED: "warning", SiteState.OK: "ok"}
    cures = {
        SiteState.FAILED: "Nothing is sent to it until its probes succeed again. `nightshift site status` has more; "
        "tell its administrators.",
        SiteState.DEGRADED: "It is still used. See the page Sites.",
        SiteState.OK: "",
    }
    for name, state in outcome.changed.items():
        health = outcome.health[name]
        yield Message(
            key=f"site:{name}:{state.value}:{health.since}",
            event=NotifyEvent.SITE,
            severity=severities[state],
            title=f"site {name}: {state.value}",
            text=health.reason,
            cure=cures[state],
        )
    if outcome.own_network:
        yield Message(
            key="site:own-network",
            event=NotifyEvent.SITE,
            severity="error",
            title=f"{len(outcome.own_network)} of {len(outcome.health)} sites turned bad together",
            text=f"No site was marked: {', '.join(outcome.own_network)}.",
            cure="Check our own network, proxies and credentials first.",
        )


def reconcile_bans(site: Site) -> Iterator[str]:
    """Ban the storages of sites to which nothing is sent at every FTS server, and end bans of ours that have no cause.

    A storage that another site has, too, is banned only if nothing is sent to that one either. Yields what failed.
    """
    health = health_of(site.ledger, site.settings.sites)
    storages = {name: {storage_of(rule.url) for rule in remote.third_party}
                for name, remote in site.settings.sites.items()}  # fmt: skip
    used = {storage for name, current in health.items() if current.obstacle is None for storage in storages[name]}
    causes = {
        storage: f"{BANNED_BY_US}{name}: {current.obstacle}"
        for name, current in health.items() if current.obstacle is not None
        for storage in storages[name] - used
    }  # fmt: skip
    for server in site.settings.stageout.fts:
        try:
            with connected_client(site.secrets.get(server)) as client:
                bans = {ban.name: ban.message or "" for ban in client.bans(BanOf.STORAGE)}
                for storage in causes.keys() - bans.keys():
                    client.ban(BanOf.STORAGE, storage, wait=True, allow_submit=True, message=causes[storage][:200])
                for storage, message in bans.items():
                    if message.startswith(BANNED_BY_US) and storage not in causes:
                        client.unban(BanOf.STORAGE, storage)
        except NightshiftError as error:
            yield f"bans at {server}: {error}"


def summary_of(health: Mapping[str, SiteHealth]) -> dict[str, int]:
    """The number of sites by state; held ones apart."""
    states = ["held" if site.held_by is not None else site.state.value for site in health.values()]
    return {state: states.count(state) for state in ("ok", "degraded", "failed", "held")}
