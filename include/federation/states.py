"""States of sites, and the rules by which a round of probes and reports changes them. Pure.

A site turns worse after one round and fails after two, or at once where two sources agree; it is taken back after
good rounds only, twice as many for each time that it turned worse within a day. So a site that flaps from round to
round stays where it is. One that is poor for ever is used as such, and one of which nothing is heard is tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

FEWEST_RESULTS = 10
"""Results of transfers and readers, below which their share of failures says nothing."""
POOR_SHARE, BAD_SHARE = 0.1, 0.5
"""Shares of failed results with which a round is poor, or bad."""
BAD_ROUNDS, GOOD_ROUNDS, MOST_GOOD_ROUNDS = 2, 2, 64
"""Rounds in a row after which a site has failed; after which it is taken back, at first and at most."""
DAY = timedelta(days=1)
APART = timedelta(minutes=5)
"""Rounds that end sooner after each other count as one."""
SILENT_ROUNDS = 4
"""Rounds without a result, after which a failed site is tried again."""
OWN_NETWORK_ROUNDS = 4
"""Rounds for which sites that turned bad together are not marked."""
FEWEST_SITES = 3
"""Sites that have to turn bad in one round before our own network may be the cause."""


class SiteState(Enum):
    """States of a site."""

    OK = "ok"
    DEGRADED = "degraded"
    """It is used, after others where there is a choice."""
    FAILED = "failed"
    """Nothing is sent to it."""


class EvidenceSource(Enum):
    """Sources of results about a site."""

    PROBE = "probe"
    TRANSFER = "transfer"
    """A file that FTS copied from or to the site."""
    READER = "reader"


@dataclass(frozen=True, slots=True)
class SiteObservation:
    """Results of one kind at a site.

    Attributes:
        site: Its name.
        source: Where they come from.
        what: The probe, as `first byte`; LINK for transfers whose failure may be that of the other site.
        kind: The class of the failures, as `connection`; empty where there is none.
        good: How many went well.
        failed: How many did not.
        bytes: That were read.
        seconds: Of a probe; of a reader, those in which it waited.
        requests: That a reader sent.
        retries: Of a reader.
    """

    site: str
    source: EvidenceSource
    what: str = ""
    kind: str = ""
    good: int = 0
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0
    requests: int = 0
    retries: int = 0


class RoundVerdict(Enum):
    """Result of one round about a site."""

    GOOD = "good"
    POOR = "poor"
    BAD = "bad"
    SILENT = "silent"
    """Nothing was tried."""


@dataclass(frozen=True, slots=True)
class SiteJudgement:
    """The verdict of a round, why, and whether two sources agree that it is bad."""

    verdict: RoundVerdict
    reason: str = ""
    agreed: bool = False


@dataclass(frozen=True, slots=True)
class SiteHealth:
    """State of a site as the ledger has it.

    Attributes:
        site: Its name.
        state: By probes and reports.
        since: When it came into that state.
        reason: Why.
        checked_at: When the last round ended that tried anything.
        good: Good rounds in a row.
        calm: Rounds in a row that were not bad.
        bad: Bad rounds in a row.
        held_by: Who holds the site, whatever its state is; None: it is not held.
        held_reason: Why.
        held_at: Since when.
    """

    site: str
    state: SiteState = SiteState.OK
    since: datetime | None = None
    reason: str = ""
    checked_at: datetime | None = None
    good: int = 0
    calm: int = 0
    bad: int = 0
    held_by: str | None = None
    held_reason: str | None = None
    held_at: datetime | None = None

    @property
    def obstacle(self) -> str | None:
        """Reason for which nothing is sent to the site; None: it is used."""
        if self.held_by is not None:
            return f"it is held by {self.held_by}: {self.held_reason}"
        return f"it has failed: {self.reason}" if self.state is SiteState.FAILED else None


def judge_site(observations: Iterable[SiteObservation]) -> SiteJudgement:
    """The verdict about one site.

    A read that fails is bad, any other probe that fails is poor. Transfers and readers count from `FEWEST_RESULTS` on.
    Where probes show that the site is well, failures that may be those of the other site do not count, and failures
    of readers and of no known class are poor at most: they may be of other causes.
    """
    observations = list(observations)
    probes = [result for result in observations if result.source is EvidenceSource.PROBE]
    reads = [probe for probe in probes if probe.what in READING]
    well = bool(reads) and not any(probe.failed for probe in reads)
    bad = [f"{probe.what}: {probe.kind}" for probe in reads if probe.failed]
    poor = [f"{probe.what}: {probe.kind}" for probe in probes if probe.failed and probe not in reads]
    sources, few = int(bool(bad)), False
    for source, files in _FILES.items():
        results = [result for result in observations if result.source is source and not (well and result.what == LINK)]
        total, failed = (sum(getattr(result, name) for result in results) for name in ("good", "failed"))
        total += failed
        if total < FEWEST_RESULTS:
            few = few or bool(failed)
            continue
        sure = sum(
            result.failed for result in results if not well or (source is not _DOUBTED and result.kind != UNCLASSED)
        )
        if sure / total >= BAD_SHARE or failed / total >= POOR_SHARE:
            kinds = Counter[str]()
            for result in results:
                kinds[result.kind] += result.failed
            text = f"{failed} of {total} {files} failed, most of them by: {kinds.most_common(1)[0][0]}"
            (bad if sure / total >= BAD_SHARE else poor).append(text)
            sources += sure / total >= BAD_SHARE
    if bad:
        return SiteJudgement(RoundVerdict.BAD, "; ".join(bad + poor), agreed=sources > 1)
    if poor:
        return SiteJudgement(RoundVerdict.POOR, "; ".join(poor))
    # a few results of which some failed say nothing, unless probes say more
    heard = well or (bool(observations) and not few)
    return SiteJudgement(RoundVerdict.GOOD if heard else RoundVerdict.SILENT)


LINK = "link"
READING = ("first byte", "range", "checksum")
"""The probes without which a site is of no use."""
UNCLASSED = "other"
_DOUBTED = EvidenceSource.READER
_FILES = {EvidenceSource.TRANSFER: "transfers", EvidenceSource.READER: "files of readers"}


@dataclass(frozen=True, slots=True)
class HealthRound:
    """The outcome of a round.

    Attributes:
        health: Of every site, as it is now.
        changed: The sites that are in another state than before, with that state.
        own_network: Sites that turned bad together: it is our network, and none of them was marked.
        own_network_since: When the first of such rounds in a row ended.
    """

    health: Mapping[str, SiteHealth]
    changed: Mapping[str, SiteState] = field(default_factory=dict)
    own_network: tuple[str, ...] = ()
    own_network_since: datetime | None = None


def judge_round(
    before: Mapping[str, SiteHealth],
    judgements: Mapping[str, SiteJudgement],
    worsened: Mapping[str, Sequence[datetime]],
    now: datetime,
    own_network_rounds: int = 0,
) -> HealthRound:
    """The states after a round.

    Args:
        before: The health of every site that is judged.
        judgements: What the round has about them.
        worsened: When each site turned worse lately.
        now: The end of the round.
        own_network_rounds: Rounds in a row before this one of which our own network was the cause.
    """
    silent = SiteJudgement(RoundVerdict.SILENT)
    judged = {name: judgements.get(name, silent) for name in before}
    heard = [name for name, judgement in judged.items() if judgement.verdict is not RoundVerdict.SILENT]
    new = [name for name in heard if before[name].state is not SiteState.FAILED and not before[name].bad]
    turning = tuple(name for name in new if judged[name].verdict is RoundVerdict.BAD)
    many = len(turning) >= FEWEST_SITES and 2 * len(turning) > len(heard)
    together = turning if many and own_network_rounds < OWN_NETWORK_ROUNDS else ()
    health = {
        name: replace(current, checked_at=now) if name in together
        else after_round(current, judged[name], worsened.get(name, ()), now)
        for name, current in before.items()
    }  # fmt: skip
    changed = {name: after.state for name, after in health.items() if after.state is not before[name].state}
    return HealthRound(health, changed, together)


def after_round(health: SiteHealth, judged: SiteJudgement, worsened: Sequence[datetime], now: datetime) -> SiteHealth:
    """The health of one site after a round."""
    verdict, failed = judged.verdict, health.state is SiteState.FAILED
    if verdict is RoundVerdict.SILENT and not failed:
        return health
    again = health.checked_at is not None and now - health.checked_at < APART
    more = 0 if again else 1
    good = max(1, health.good + more) if verdict is RoundVerdict.GOOD else 0
    calm = max(1, health.calm + more) if verdict is not RoundVerdict.BAD else 0
    bad = max(1, health.bad + more) if verdict is RoundVerdict.BAD else 0
    state, reason, needed = health.state, health.reason, needed_rounds(worsened, now)
    if failed:
        if good >= needed:
            state, reason = SiteState.OK, f"{good} good rounds in a row"
        elif verdict is RoundVerdict.SILENT and calm >= max(needed, SILENT_ROUNDS):
            state, reason = SiteState.DEGRADED, f"{calm} rounds without a result: it is tried again"
        elif verdict is RoundVerdict.POOR and calm >= needed:
            state, reason = SiteState.DEGRADED, judged.reason
    elif verdict is RoundVerdict.GOOD:
        if state is not SiteState.OK and good >= needed:
            state, reason = SiteState.OK, f"{good} good rounds in a row"
    elif verdict is RoundVerdict.BAD and (judged.agreed or bad >= BAD_ROUNDS):
        state, reason = SiteState.FAILED, judged.reason
    else:
        state, reason = SiteState.DEGRADED, judged.reason
    since = now if state is not health.state else health.since or now
    return replace(
        health, state=state, since=since, reason=reason, checked_at=now, good=good, calm=calm, bad=bad
    )  # fmt: skip


def needed_rounds(worsened: Sequence[datetime], now: datetime) -> int:
    """Good rounds in a row that a site has to have before it is taken back."""
    lately = sum(now - at < DAY for at in worsened)
    return min(MOST_GOOD_ROUNDS, GOOD_ROUNDS << max(0, min(lately, 10) - 1))


def in_reading_order(names: Iterable[str], health: Mapping[str, SiteHealth]) -> list[str]:
    """Sites in the order in which readers try them: as given, degraded ones later, failed and held ones last."""
    rank = {SiteState.OK: 0, SiteState.DEGRADED: 1, SiteState.FAILED: 2}

    def place(name: str) -> int:
        current = health.get(name)
        return 0 if current is None else 3 if current.held_by is not None else rank[current.state]

    return sorted(names, key=place)
