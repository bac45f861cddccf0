"""What of a night failed and stays so for now, by its cause: each is told as soon as a pass has left it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime

from include.cvmfs import errors as cvmfs
from include.errors import Concern, NightshiftError
from include.gateway import errors as gateway
from include.ledger import errors as ledger
from include.notify.message import Event, Message
from include.publishers.server import errors as node
from include.settings import errors as settings
from include.storage import errors as storage
from include.watch.summary import Fate, Line, Summary

SHOWN = 20
"""Artifacts that a message names; the summary has them all."""
REJECTED = "Rejected"
"""What stands for the error of an artifact that its own index spoilt."""

SUBJECTS = (cvmfs, gateway, ledger, node, settings, storage)
"""Where errors are defined that concern a part of the site."""

_CURES: Mapping[Concern, str] = {
    Concern.STORE: "Look at the stores: `nightshift preflight` says what is wrong with them.",
    Concern.GATEWAY: "Look at the gateway: `nightshift preflight` says what is wrong with it.",
    Concern.REPOSITORY: "Look at the repository: `nightshift preflight`, then `nightshift repo check`.",
    Concern.NODE: "Look at the publisher node: `nightshift preflight` says whether we can log in.",
    Concern.CONFIGURATION: "Look at the configuration: `nightshift settings check`.",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Artifacts of a night that failed in the same way, and what was skipped because of them.

    `site_cure`: what helps, where it is nothing of the artifacts themselves; such a cause stays the same one, whatever
    it hits later.
    """

    slot: str
    date: date
    error_class: str
    lines: tuple[Line, ...]
    blocked: tuple[Line, ...] = ()
    site_cure: str | None = None

    def key_of(self, line: Line) -> str:
        """What stands for this failure of an artifact; the same if a later pass fails with it in the same way."""
        return f"failed:{self.slot}:{self.date}:{line.build_id}:{line.name}:{self.error_class}"

    def of(self, lines: Iterable[Line]) -> Cause:
        """The same cause, with some of its artifacts only."""
        return replace(self, lines=tuple(lines))

    def message(self, *, until: datetime | None, now: datetime) -> Message:
        """What people are told of it. `until`: when the night ends."""
        first, night = self.lines[0], f"night of {self.slot}, {self.date}"
        what = f"{first.name} failed" if len(self.lines) == 1 else f"{len(self.lines)} artifacts failed"
        named = ",".join(sorted(one.name for one in self.lines)) if self.site_cure is None else ""
        runs = {one.run: one.log for one in self.lines if one.run and one.log}
        return Message(
            key=f"failed:{self.slot}:{self.date}:{self.error_class}:{named}",
            event=Event.FAILED,
            severity="error",
            title=f"{night}: {what}: {self.error_class}",
            text="\n".join([*_shown(self.lines), *self._blocked()]),
            cure=" ".join(filter(None, (self.site_cure, self._what_happens(until, now)))),
            links={("log" if len(runs) == 1 else f"log of {run}"): url for run, url in runs.items()},
        )

    def _blocked(self) -> list[str]:
        if not self.blocked:
            return []
        names = ", ".join(one.name for one in self.blocked[:SHOWN])
        more = f" and {len(self.blocked) - SHOWN} more" if len(self.blocked) > SHOWN else ""
        return [f"Not installed either, since they depend on it: {names}{more}."]

    def _what_happens(self, until: datetime | None, now: datetime) -> str:
        again = "Artifacts that are rebuilt go in with the next pass" if self.site_cure is None else ""
        if until is not None and now < until:
            last = f"the night's last pass tries all of it again, at {until:%H:%M} UTC at the latest"
            return f"{again}; {last}." if again else f"{last[0].upper()}{last[1:]}."
        run = next((one.run for one in self.lines if one.run), None)
        clear = f"clear the failed tasks of run {run.partition('/')[2]}, or " if run else ""
        dag = f"nightly_install_{self.slot}"
        return f"The night is over: when it is cured, {clear}run {dag} by hand with build_date {self.date.isoformat()}."


def causes(seen: Summary, has_left: Callable[[Line], bool]) -> Iterator[Cause]:
    """The causes of what failed in a night, where no try of its pass is to come any more.

    Args:
        has_left: Whether the pass that failed with an artifact is done with it.
    """
    failed = [one for one in seen.lines if one.fate is Fate.FAILED and has_left(one)]
    by_class: dict[str, list[Line]] = {}
    for one in failed:
        by_class.setdefault(one.error_class or REJECTED, []).append(one)
    for error_class, lines in sorted(by_class.items()):
        blocked = [one for one in seen.lines if one.fate is Fate.BLOCKED and _names(one.reason, lines)]
        yield Cause(seen.slot, seen.date, error_class, tuple(lines), tuple(blocked), site_cure(error_class))


def untold(cause: Cause, told: Collection[str]) -> Cause | None:
    """What of a cause nobody was told yet, by the keys of what they were; None if that is nothing."""
    left = [one for one in cause.lines if cause.key_of(one) not in told]
    return cause.of(left) if left else None


def site_cure(error_class: str) -> str | None:
    """What helps against an error that is the site's, not an artifact's; None for all others."""
    concern = _CONCERNS.get(error_class)
    return None if concern is None else _CURES.get(concern)


def _names(reason: str, lines: Iterable[Line]) -> bool:
    return any(f"depends on {one.name}," in reason for one in lines)


def _shown(lines: Collection[Line]) -> list[str]:
    found = [f"{one.name}{'' if one.required else ' (optional)'}: {one.reason}" for one in [*lines][:SHOWN]]
    return [*found, *([f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]


_CONCERNS: Mapping[str, Concern] = {
    kind.__name__: kind.concern
    for module in SUBJECTS
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, NightshiftError)
}
