"""A round of health checks: each site is probed, judged with what transfers and readers report, and changes are told.

Probes use the site's own rules and the storages of stage-out, so they take the way that transfers and readers take.
"""

from __future__ import annotations

import errno
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from include.errors import NightshiftError
from include.federation.records import conclude_round, health_of
from include.federation.states import DAY, READING, EvidenceSource, HealthRound, SiteHealth, SiteObservation, SiteState
from include.fts.client import BanOf
from include.fts.open import connected_client
from include.fts.states import FailureReason
from include.notify import DeliveryOutcome, Message, Notifier, NotifyEvent
from include.settings.sites import ChecksumMode, RemoteSite, SiteProbe
from include.site.site import Site
from include.stageout.errors import PLACE_UNLISTED
from include.stageout.files import storage_of
from include.stageout.opening import SiteClients
from include.stageout.places.facts import FileFacts, SitePlace
from include.stageout.retry import TransferFailureClass, failure_class

PROBES_S, MESSAGES_S = 360.0, 120.0
"""Seconds of all probes, which run at the same time: one that takes longer has failed. Seconds of all messages."""
ONCE = timedelta(days=3650)
"""The window of a message that is never sent again."""
MOST_LISTED = 10_000
"""Files of the folder of probes that are listed at most."""
LEFTOVER = timedelta(hours=1)
"""Age at which a file of a probe is removed that died."""
RANGE = 64 << 10
"""Bytes of the range that is read."""
PREFIX = "nightshift-probe-"
_OURS = re.compile(rf"{PREFIX}[0-9a-f]{{16}}(-copy)?")
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
    probes: Mapping[str, Sequence[SiteObservation]]
    unprobed: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


def check_sites(
    site: Site, *, now: Callable[[], datetime], only: Collection[str] = (), say: Callable[[str], object] = len
) -> RoundReport:
    """Probe sites, judge them, record and tell changes, and ban failed ones at FTS where the settings say so.

    Args:
        site: The deployment.
        now: The clock.
        only: Probe and judge these sites alone, by their probes; empty: all sites, by what is reported of them, too.
        say: Called with progress.
    """
    configured = site.settings.sites
    sites = {name: remote for name, remote in configured.items() if remote.probe and (not only or name in only)}
    clients, owner = SiteClients(site), site.settings.federation.owner or ""
    probes: dict[str, list[SiteObservation]] = {name: [] for name in sites}
    unprobed: dict[str, str] = {}

    def probe(name: str) -> None:
        try:
            for result in probe_site(clients.any_place(name, owner), sites[name], say=say):
                probes[name].append(result)
        except NightshiftError as error:
            unprobed[name] = str(error)

    threads = {name: threading.Thread(target=probe, args=[name], name="probe", daemon=True) for name in sites}
    for thread in threads.values():
        thread.start()
    ends = time.monotonic() + PROBES_S
    for name, thread in threads.items():
        thread.join(max(0.0, ends - time.monotonic()))
        if thread.is_alive():
            # it is left behind: what it still finds comes into a list that is not looked into any more
            late = SiteObservation(name, EvidenceSource.PROBE, READING[0], "timeout", failed=1, seconds=PROBES_S)
            probes[name] = [*probes[name], late]
    results = {name: tuple(some) for name, some in probes.items() if name not in unprobed}
    ended = now()
    outcome = conclude_round(site.ledger, configured, results, now=ended, only=only)
    faults = [] if only else [*_tell(site, outcome, unprobed, ended), *reconcile_bans(site)]
    return RoundReport(outcome, results, unprobed, tuple(faults))


def probe_site(
    place: SitePlace,
    remote: RemoteSite,
    *,
    say: Callable[[str], object] = len,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[SiteObservation]:
    """The results of the probes of a site; writes and copies that its protocols cannot do here are not tried.

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
        folder, name = probe.folder, f"{probe.folder}/{PREFIX}{secrets.token_hex(8)}"

        def write() -> FailureReason | None:
            _clean(place, folder)
            return place.write(name, name.encode())

        steps += [
            ("write", write),
            ("copy", lambda: place.copy(probe.file, f"{name}-copy")),
            ("delete", lambda: _removed(place, [name, f"{name}-copy"])),
        ]
    for what, step in steps:
        began = clock()
        failure = step()
        if failure is not None and what not in READING and failure.errno in _IMPOSSIBLE:
            if what == "write":
                return
            continue
        kind = "" if failure is None else _kind(failure)
        result = SiteObservation(remote.name, EvidenceSource.PROBE, what, kind, seconds=clock() - began)
        yield replace(result, good=int(failure is None), failed=int(failure is not None))
        shown = f"{result.seconds:.3f} s" if failure is None else f"{kind}: {failure.text[:200]}"
        say(f"{remote.name}: {what}: {shown}")
        if kind in _GONE:
            return  # the other probes would only wait, too


_IMPOSSIBLE = (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT)
_GONE = frozenset({TransferFailureClass.TIMEOUT.value, TransferFailureClass.CONNECTION.value})


def _failure(answer: bytes | FailureReason) -> FailureReason | None:
    return answer if isinstance(answer, FailureReason) else None


def _kind(failure: FailureReason) -> str:
    if failure.errno in _IMPOSSIBLE:
        return "unsupported"
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
        if answer.checksum is not None and answer.checksum.startswith("adler32:"):
            return _same(answer, probe)
    return None


def _same(answer: FileFacts, probe: SiteProbe) -> FailureReason | None:
    good = answer.checksum == f"adler32:{probe.checksum}"
    return None if good else FailureReason(None, errno.EIO, "checksum mismatch")


def _removed(place: SitePlace, names: list[str]) -> FailureReason | None:
    failures = [failure for failure in place.remove(names).values() if failure is not None]
    return failures[0] if failures else None


def _clean(place: SitePlace, folder: str) -> None:
    """Remove what earlier probes left that died: files of their exact form, and right in the folder."""
    try:
        old = [
            name
            for name, _, modified in islice(place.listed(folder), MOST_LISTED)
            if _OURS.fullmatch(name.removeprefix(f"{folder}/")) and datetime.now(UTC) - modified > LEFTOVER
        ]
    except NightshiftError as error:
        if error.code != PLACE_UNLISTED.code:
            raise
        return  # the write shows more
    if old:
        place.remove(old)


def _tell(site: Site, outcome: HealthRound, unprobed: Mapping[str, str], now: datetime) -> Iterator[str]:
    """Send a message for each change, for each that could not be sent before, and for what is wrong on our side.

    Yields what could not be sent. A state is one message, since its key has the time since when it holds; sites that
    cannot be probed are one again after the usual window.
    """
    notifier, ends = Notifier.of(site), time.monotonic() + MESSAGES_S
    messages: list[tuple[Message, timedelta | None]] = [(message, ONCE) for message in _of_states(outcome, now)]
    messages += [(_of_our_network(outcome), ONCE)] if outcome.own_network else []
    messages += [(_of_our_side(unprobed), None)] if unprobed else []
    for message, window in messages:
        if time.monotonic() > ends:
            yield "messages: no time was left for all of them; the next round sends the others"
            return
        if notifier.tell(message, now=now, window=window) is DeliveryOutcome.FAILED:
            yield f"message could not be sent: {message.title}"


def _of_states(outcome: HealthRound, now: datetime) -> Iterator[Message]:
    severities = {SiteState.FAILED: "error", SiteState.DEGRADED: "warning", SiteState.OK: "ok"}
    cures = {
        SiteState.FAILED: "Nothing is sent to it until its probes succeed again. `nightshift site status` has more; "
        "tell its administrators.",
        SiteState.DEGRADED: "It is still used. See the page Sites.",
        SiteState.OK: "",
    }
    for name, health in outcome.health.items():
        # one that was never judged otherwise has no reason
        back = bool(health.reason) and health.since is not None and now - health.since < DAY
        if health.state is not SiteState.OK or back:
            yield Message(
                key=f"site:{name}:{health.state.value}:{health.since}",
                event=NotifyEvent.SITE,
                severity=severities[health.state],
                title=f"site {name}: {health.state.value}",
                text=health.reason,
                cure=cures[health.state],
            )


def _of_our_network(outcome: HealthRound) -> Message:
    return Message(
        key=f"site:own-network:{outcome.own_network_since}",
        event=NotifyEvent.SITE,
        severity="error",
        title=f"{len(outcome.own_network)} of {len(outcome.health)} sites turned bad together",
        text=f"No site was marked: {', '.join(outcome.own_network)}.",
        cure="Check our own network, proxies and credentials first.",
    )


def _of_our_side(unprobed: Mapping[str, str]) -> Message:
    names = ", ".join(unprobed)
    return Message(
        key=f"site:unprobed:{names}",
        event=NotifyEvent.SITE,
        severity="warning",
        title=f"cannot be probed: {names}"[:200],
        text="\n".join(f"{name}: {why}" for name, why in unprobed.items()),
        cure="The fault is on our side: check the credential of `federation.owner`, and the connections.",
    )


def reconcile_bans(site: Site) -> Iterator[str]:
    """Ban the storages of sites to which nothing is sent at every FTS server, and end bans of ours that have no cause.

    A storage that another site has, too, is banned only if nothing is sent to that one either. Where the settings do
    not ask for bans, those of before are ended. Yields what failed.
    """
    asked_for = site.settings.federation.ban
    health = health_of(site.ledger, site.settings.sites) if asked_for else {}
    storages = {name: {storage_of(rule.url) for rule in site.settings.sites[name].third_party} for name in health}
    used = {storage for name, current in health.items() if current.obstacle is None for storage in storages[name]}
    causes = {
        storage: f"{BANNED_BY_US}{name}: {current.obstacle}"
        for name, current in health.items() if current.obstacle is not None
        for storage in storages[name] - used
    }  # fmt: skip
    for server in site.settings.stageout.fts:
        try:
            with connected_client(site.secrets.get(server)) as client:
                bans = {ban.name.lower(): ban for ban in client.bans(BanOf.STORAGE)}
                for storage in causes.keys() - bans.keys():
                    client.ban(BanOf.STORAGE, storage, wait=True, allow_submit=True, message=causes[storage][:200])
                for storage, ban in bans.items():
                    if (ban.message or "").startswith(BANNED_BY_US) and storage not in causes:
                        client.unban(BanOf.STORAGE, ban.name)
        except NightshiftError as error:
            if asked_for:
                yield f"bans at {server}: {error}"


def summary_of(health: Mapping[str, SiteHealth]) -> dict[str, int]:
    """The number of sites by state; held ones apart."""
    states = ["held" if site.held_by is not None else site.state.value for site in health.values()]
    return {state: states.count(state) for state in ("ok", "degraded", "failed", "held")}
