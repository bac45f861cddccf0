"""States of sites, and the rules by which a round of probes and reports changes them. Pure.

A site turns worse after one round and fails after two, or at once where two sources agree; it is taken back after
good rounds only, twice as many for each time that it turned worse within a day. So a site that flaps stays where it is.
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

    A read that fails is bad, any other probe that fails is poor. Transfers and readers count from `FEWEST_RESULTS` on;
    failures that may be those of the other site only where no probe shows that this one is well. Where one does, what
    readers report is poor at most: they are elsewhere, and are believed less.
    """
    observations = list(observations)
    probes = [result for result in observations if result.source is EvidenceSource.PROBE and result.what in READING]
    well = bool(probes) and not any(probe.failed for probe in probes)
    if well:
        observations = [result for result in observations if result.what != LINK]
    results, failed = Counter[EvidenceSource](), Counter[EvidenceSource]()
    kinds: Counter[tuple[EvidenceSource, str]] = Counter()
    broken: dict[str, str] = {}
    for result in observations:
        results[result.source] += result.good + result.failed
        failed[result.source] += result.failed
        kinds[result.source, result.kind] += result.failed
        if result.source is EvidenceSource.PROBE and result.failed:
            broken[result.what] = result.kind
    bad = [f"{what}: {broken[what]}" for what in READING if what in broken]
    poor = [f"{what}: {kind}" for what, kind in broken.items() if what not in READING]
    for source in (EvidenceSource.TRANSFER, EvidenceSource.READER):
        if results[source] >= FEWEST_RESULTS and failed[source] / results[source] >= POOR_SHARE:
            most = max((kind for of, kind in kinds if of is source), key=lambda kind: kinds[source, kind])
            text = f"{failed[source]} of {results[source]} {_FILES[source]} failed, most of them by: {most}"
            doubted = well and source is EvidenceSource.READER
            (bad if failed[source] / results[source] >= BAD_SHARE and not doubted else poor).append(text)
    sources = bool(broken.keys() & set(READING)) + sum(
        failed[source] / results[source] >= BAD_SHARE
        for source in (EvidenceSource.TRANSFER, EvidenceSource.READER)
        if results[source] >= FEWEST_RESULTS
    )
    if bad:
        return SiteJudgement(RoundVerdict.BAD, "; ".join(bad + poor), agreed=sources > 1)
    if poor:
        return SiteJudgement(RoundVerdict.POOR, "; ".join(poor))
    return SiteJudgement(RoundVerdict.GOOD if results.total() else RoundVerdict.SILENT)


LINK = "link"
READING = ("first byte", "range", "checksum")
"""The probes without which a site is of no use."""
_FILES = {EvidenceSource.TRANSFER: "transfers", EvidenceSource.READER: "files of readers"}


@dataclass(frozen=True, slots=True)
class HealthRound:
    """The outcome of a round.

    Attributes:
        health: Of every site, as it is now.
        changed: The sites that are in another state than before, with that state.
        own_network: Sites that turned bad together: it is our network, and none of them was marked.
    """

    health: Mapping[str, SiteHealth]
    changed: Mapping[str, SiteState] = field(default_factory=dict)
    own_network: tuple[str, ...] = ()


def judge_round(
    before: Mapping[str, SiteHealth],
    judgements: Mapping[str, SiteJudgement],
    worsened: Mapping[str, Sequence[datetime]],
    now: datetime,
) -> HealthRound:
    """The states after a round.

    Args:
        before: The health of every site.
        judgements: What the round has about them; a site without one stays as it is.
        worsened: When each site turned worse lately.
        now: The end of the round.
    """
    turning = tuple(
        name for name, judged in judgements.items()
        if judged.verdict is RoundVerdict.BAD and before[name].state is not SiteState.FAILED and not before[name].bad
    )  # fmt: skip
    together = turning if len(turning) >= FEWEST_SITES and 2 * len(turning) > len(before) else ()
    silent = SiteJudgement(RoundVerdict.SILENT)
    health = {
        name: current if name in together
        else after_round(current, judgements.get(name, silent), worsened.get(name, ()), now)
        for name, current in before.items()
    }  # fmt: skip
    changed = {name: after.state for name, after in health.items() if after.state is not before[name].state}
    return HealthRound(health, changed, together)


def after_round(health: SiteHealth, judged: SiteJudgement, worsened: Sequence[datetime], now: datetime) -> SiteHealth:
    """The health of one site after a round."""
    if judged.verdict is RoundVerdict.SILENT:
        return health
    good = health.good + 1 if judged.verdict is RoundVerdict.GOOD else 0
    bad = health.bad + 1 if judged.verdict is RoundVerdict.BAD else 0
    state, reason = health.state, health.reason
    if state is SiteState.FAILED or judged.verdict is RoundVerdict.GOOD:
        if state is not SiteState.OK and good >= needed_rounds(worsened, now):
            state, reason = SiteState.OK, f"{good} good rounds in a row"
    elif judged.verdict is RoundVerdict.BAD and (judged.agreed or bad >= BAD_ROUNDS):
        state, reason = SiteState.FAILED, judged.reason
    else:
        state, reason = SiteState.DEGRADED, judged.reason
    since = now if state is not health.state else health.since or now
    return replace(health, state=state, since=since, reason=reason, checked_at=now, good=good, bad=bad)


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
