"""Failures of a night that remain for now, by cause; people are notified as soon as a pass is done with one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from include.cvmfs import errors as cvmfs
from include.errors import Concern, kinds_in
from include.fts import errors as fts
from include.gateway import errors as gateway
from include.ledger import errors as ledger
from include.monitoring.summary import ArtifactOutcome, Line, Summary
from include.notify.message import Message, NotifyEvent
from include.publishers.server import errors as node
from include.settings import errors as settings
from include.stageout import errors as stageout
from include.storage import errors as storage

SHOWN = 20
"""Artifacts that a message names; the summary has them all."""
REJECTED = "artifact-rejected"
"""Used as the code of an artifact that its own index made unusable."""

SUBJECTS = (cvmfs, fts, gateway, ledger, node, settings, stageout, storage)
"""Where errors are defined that concern a part of the site."""

_CURES: Mapping[Concern, str] = {
    Concern.STORE: "Check the stores: `nightshift preflight` reports what is wrong with them.",
    Concern.GATEWAY: "Check the gateway: `nightshift preflight` reports what is wrong with it.",
    Concern.REPOSITORY: "Check the repository: `nightshift preflight`, then `nightshift repo check`.",
    Concern.FTS: "Check the FTS server: *Test* of its connection reports what is wrong.",
    Concern.NODE: "Check the publisher node: `nightshift preflight` reports whether we can log in.",
    Concern.CONFIGURATION: "Check the configuration: `nightshift settings check`.",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Artifacts of a night that failed in the same way, and what was skipped because of them.

    `site_cure`: the hint, if the error is the site's and not the artifacts'; such a cause stays the same one, whatever
    it affects later.
    """

    slot: str
    date: date
    code: str
    lines: tuple[Line, ...]
    blocked: tuple[Line, ...] = ()
    site_cure: str | None = None

    def key_of(self, line: Line) -> str:
        """The key of this failure of an artifact; the same if a later pass fails with it in the same way."""
        return f"failed:{self.slot}:{self.date}:{line.build_id}:{line.name}:{self.code}"

    def of(self, lines: Iterable[Line]) -> Cause:
        """The same cause, with some of its artifacts only."""
        return replace(self, lines=tuple(lines))

    def message(self, *, until: datetime | None, now: datetime) -> Message:
        """The message to people about it. `until`: when the night ends."""
        first, night = self.lines[0], f"night of {self.slot}, {self.date}"
        what = f"{first.name} failed" if len(self.lines) == 1 else f"{len(self.lines)} artifacts failed"
        named = ",".join(sorted(line.name for line in self.lines)) if self.site_cure is None else ""
        runs = {line.run: line.log for line in self.lines if line.run and line.log}
        return Message(
            key=f"failed:{self.slot}:{self.date}:{self.code}:{named}",
            event=NotifyEvent.FAILED,
            severity="error",
            title=f"{night}: {what}: {self.code}",
            text="\n".join([*_shown(self.lines), *self._blocked()]),
            cure=" ".join(filter(None, (self.site_cure, self._what_happens(until, now)))),
            links={("log" if len(runs) == 1 else f"log of {run}"): url for run, url in runs.items()},
            code=self.code,
        )

    def _blocked(self) -> list[str]:
        if not self.blocked:
            return []
        names = ", ".join(line.name for line in self.blocked[:SHOWN])
        more = f" and {len(self.blocked) - SHOWN} more" if len(self.blocked) > SHOWN else ""
        return [f"Not installed either, since they depend on it: {names}{more}."]

    def _what_happens(self, until: datetime | None, now: datetime) -> str:
        again = "Artifacts that are rebuilt go in with the next pass" if self.site_cure is None else ""
        if until is not None and now < until:
            last = f"the night's last pass tries all of it again, at {until:%H:%M} UTC at the latest"
            return f"{again}; {last}." if again else f"{last[0].upper()}{last[1:]}."
        run = next((line.run for line in self.lines if line.run), None)
        clear = f"clear the failed tasks of run {run.partition('/')[2]}, or " if run else ""
        dag = f"nightly_install_{self.slot}"
        return f"The night is over: when it is cured, {clear}run {dag} by hand with build_date {self.date.isoformat()}."


def causes(seen: Summary, has_left: Callable[[Line], bool]) -> Iterator[Cause]:
    """The causes of what failed in a night, where no try of its pass is to come any more.

    Args:
        has_left: Whether the pass that failed with an artifact is done with it.
    """
    failed = [line for line in seen.lines if line.fate is ArtifactOutcome.FAILED and has_left(line)]
    by_code: dict[str, list[Line]] = {}
    for line in failed:
        by_code.setdefault(line.code or REJECTED, []).append(line)
    for code, lines in sorted(by_code.items()):
        yield Cause(seen.slot, seen.date, code, tuple(lines), tuple(_blocked_by(lines, seen.lines)), site_cure(code))


def untold(cause: Cause, told: Collection[str]) -> Cause | None:
    """The cause with only the artifacts whose keys are not in `told`; None if it has no others."""
    left = [line for line in cause.lines if cause.key_of(line) not in told]
    return cause.of(left) if left else None


def site_cure(code: str) -> str | None:
    """The hint for an error that is the site's, not an artifact's; None for all others."""
    concern = _CONCERNS.get(code)
    return None if concern is None else _CURES.get(concern)


def _blocked_by(failed: Iterable[Line], lines: Sequence[Line]) -> Iterator[Line]:
    """Yield what was skipped because of these, or because of what was skipped because of them."""
    names = {line.name for line in failed}
    waiting = [line for line in lines if line.fate is ArtifactOutcome.BLOCKED and line.blocked_by is not None]
    while found := [line for line in waiting if line.blocked_by in names]:
        names |= {line.name for line in found}
        waiting = [line for line in waiting if line not in found]
        yield from found


def _shown(lines: Collection[Line]) -> list[str]:
    found = [f"{line.name}{'' if line.required else ' (optional)'}: {line.reason}" for line in [*lines][:SHOWN]]
    return [*found, *([f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]


_CONCERNS: Mapping[str, Concern] = {code: kind.concern for code, kind in kinds_in(*SUBJECTS).items()}
