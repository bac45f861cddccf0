"""The plan of the simulated week: which builds come when, in how many pieces, and what goes wrong. Pure.

Seven nights from Monday to Sunday, three slots, two platforms, eight projects; and on the evening before one build
more, on which the first night's partial one stands. The seed chooses what comes late, and the moments.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import date, timedelta

from tests.week.trees import Tree

PROJECTS = ("Gaudi", "LHCb", "Lbcom", "Rec", "Boole", "Brunel", "Phys", "DaVinci")
OPT, DBG = "x86_64-el9-opt", "x86_64-el9-dbg"
PLATFORMS = (OPT, DBG)
BASE_PROJECT = "Gaudi"
MONDAY = date(2026, 11, 2)
NIGHTS = 7
FIRST_BUILD = 98  # so that a build id is once longer than the one before
OPEN_MINUTES, CUT_OFF_MINUTES = 120, 2
LONGEST_PAUSE_S = 3.0

Pair = tuple[str, str]
PAIRS: tuple[Pair, ...] = tuple((project, platform) for project in PROJECTS for platform in PLATFORMS)


@dataclass(frozen=True, slots=True)
class Rules:
    """What differs between the slots. `optional`: platforms without which a build is whole."""

    partial: str
    optional: tuple[str, ...] = ()


SLOTS = {"main": Rules("copy"), "dev": Rules("link"), "sim": Rules("copy", optional=(DBG,))}

# which night has what, counted from Monday = 0; on the others of its kind it happens in no slot
FAILED_PLATFORM = ("main", 2, DBG)
NEVER_ARRIVES = ("sim", 3, ("Phys", DBG))
NEVER_COMPLETE = ("dev", 5, "Boole")
REBUILT_WHILE_OPEN = ("main", 1, ("LHCb", OPT))
REBUILT_LATER = ("dev", 1, ("Rec", DBG))
"""The night on which the build of the night before is rebuilt, after that night's own."""
KILLED, FROZEN = 2, 4


def dependencies(project: str) -> tuple[str, ...]:
    """Everything stands on one project, and the last on one more."""
    return {BASE_PROJECT: (), "DaVinci": (BASE_PROJECT, "Phys")}.get(project, (BASE_PROJECT,))


@dataclass(frozen=True, slots=True)
class Listed:
    """An artifact as an index lists it. `damaged`: its tarball does not have the sum that the index says."""

    tree: Tree
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """One version of an index: all that it lists. `pause_s`: how long the builder waits before it is written."""

    listed: tuple[Listed, ...]
    complete: bool
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Again:
    """A build that is rebuilt when its night is over: what its index lists then."""

    day: date
    build_id: str
    stage: Stage
    partial_of: tuple[str, date] | None = None


@dataclass(frozen=True, slots=True)
class SlotNight:
    """One slot's build of a date. `base`: the build (id and date) that a partial one stands on."""

    slot: str
    day: date
    build_id: str
    stages: tuple[Stage, ...]
    base: tuple[str, date] | None = None
    wait_minutes: int = OPEN_MINUTES
    again: tuple[Again, ...] = ()

    @property
    def last(self) -> Stage:
        return self.stages[-1]


@dataclass(frozen=True, slots=True)
class Night:
    """All slots of a date, and what happens in the middle of it."""

    day: date
    slots: tuple[SlotNight, ...]
    killed: bool = False
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Week:
    """The whole of it, in order; `nights[0]` is the evening before, with one slot."""

    seed: int
    nights: tuple[Night, ...]

    def slot_nights(self) -> tuple[SlotNight, ...]:
        return tuple(one for night in self.nights for one in night.slots)


def week(seed: int, nights: int = NIGHTS) -> Week:
    """The plan of so many nights; a shorter week has its kill and its freeze on its last night at the latest."""
    if not 1 <= nights <= NIGHTS:
        raise ValueError(f"{nights} nights: choose 1 to {NIGHTS}")
    draw = _Drawing(random.Random(seed))
    done = [Night(MONDAY - timedelta(days=1), (draw.slot_night("main", -1, partial=False),))]
    for number in range(nights):
        partial = tuple(SLOTS)[number % len(SLOTS)]
        done.append(
            Night(
                MONDAY + timedelta(days=number),
                tuple(draw.slot_night(slot, number, partial=slot == partial) for slot in SLOTS),
                killed=number == min(KILLED, nights - 1),
                frozen=number == min(FROZEN, nights - 1),
            )
        )
    return Week(seed, tuple(done))


@dataclass(slots=True)
class _Drawing:
    """Draws builds in their order, and remembers of each slot what a partial one can stand on."""

    source: random.Random
    builds: dict[tuple[str, int], SlotNight] = field(default_factory=dict)

    def slot_night(self, slot: str, number: int, *, partial: bool) -> SlotNight:
        build_id = f"b{FIRST_BUILD + 1 + number}"
        base = self._base(slot, number) if partial else None
        complete = NEVER_COMPLETE[:2] != (slot, number)
        made = SlotNight(
            slot,
            MONDAY + timedelta(days=number),
            build_id,
            self._stages(slot, number, build_id, self._own(slot, number, partial=partial), complete=complete),
            base=(base.build_id, base.day) if base else None,
            wait_minutes=OPEN_MINUTES if complete else CUT_OFF_MINUTES,
            again=self._again(slot, number),
        )
        self.builds[slot, number] = made
        return made

    def _own(self, slot: str, number: int, *, partial: bool) -> list[Pair]:
        """What the build lists itself, in the order in which it comes; what others stand on comes first."""
        if partial:
            projects = [BASE_PROJECT, *self.source.sample(PROJECTS[1:], 2)]
            return [(project, platform) for project in projects for platform in PLATFORMS]
        gone = {NEVER_ARRIVES[2]} if NEVER_ARRIVES[:2] == (slot, number) else set()
        if NEVER_COMPLETE[:2] == (slot, number):
            gone = {(NEVER_COMPLETE[2], platform) for platform in PLATFORMS}
        others = [pair for pair in PAIRS if pair[0] != BASE_PROJECT and pair not in gone]
        self.source.shuffle(others)
        return [(BASE_PROJECT, platform) for platform in PLATFORMS] + others

    def _stages(self, slot: str, number: int, build_id: str, own: list[Pair], *, complete: bool) -> tuple[Stage, ...]:
        failed = {BASE_PROJECT: FAILED_PLATFORM[2]} if FAILED_PLATFORM[:2] == (slot, number) else {}
        rebuilt = REBUILT_WHILE_OPEN[2] if REBUILT_WHILE_OPEN[:2] == (slot, number) else None
        if rebuilt in own:
            own.remove(rebuilt)
            own.insert(len(PLATFORMS), rebuilt)
        few = len(own) < len(PAIRS) // 2
        cuts = [len(own) // 2, len(own)] if few or not complete else [10, 14, len(own)]
        stages: list[Stage] = []
        for cut in cuts:
            last = cut == len(own)
            trees = [Tree(slot, build_id, *pair, version=2 if last and pair == rebuilt else 1) for pair in own[:cut]]
            listed = tuple(Listed(one, failed.get(one.project) == one.platform) for one in trees)
            pause = self.source.uniform(0, LONGEST_PAUSE_S) if stages else 0.0
            stages.append(Stage(listed, complete and last, round(pause, 2)))
        return tuple(stages)

    def _again(self, slot: str, number: int) -> tuple[Again, ...]:
        if REBUILT_LATER[:2] != (slot, number):
            return ()
        before = self.builds[slot, number - 1]
        listed = tuple(
            Listed(Tree(slot, before.build_id, one.tree.project, one.tree.platform, 2))
            if (one.tree.project, one.tree.platform) == REBUILT_LATER[2]
            else one
            for one in before.last.listed
        )
        return (Again(before.day, before.build_id, Stage(listed, complete=True), before.base),)

    def _base(self, slot: str, number: int) -> SlotNight:
        """The last build of the slot that lacks nothing."""
        lacking = {FAILED_PLATFORM[:2], NEVER_ARRIVES[:2], NEVER_COMPLETE[:2]}
        before = [one for one in range(number - 1, -2, -1) if (slot, one) not in lacking]
        return self.builds[slot, before[0]]
