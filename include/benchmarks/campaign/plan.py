"""Plan of a campaign, with its bytes and seconds, before anything is changed; the runners by kind. Pure.

A new runner is a class and a row of `RUNNERS` and `TARGETS_OF`.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from include.benchmarks.campaign.presets import MIB, PRESETS, Preset, PresetLoad, PresetStep
from include.benchmarks.errors import PLAN_REFUSED, PRESET_UNKNOWN
from include.benchmarks.measure.endpoints import CurlRunner, DavixRunner, ReaderRunner, XrdcpRunner
from include.benchmarks.measure.fio import DdRunner, FioRunner, RadosRunner
from include.benchmarks.measure.loads import (
    BLOCK_UNIT,
    DistantRead,
    LoadAccess,
    LoadStep,
    RunnerKind,
    ServerState,
    StreamLoad,
    TcpWindow,
)
from include.benchmarks.measure.objects import ObjectRunner
from include.benchmarks.measure.programs import DD, FIO, RADOS, BenchmarkProgram
from include.benchmarks.measure.publisher import PublisherRunner
from include.benchmarks.measure.readers import NGINX, ReadersRunner
from include.benchmarks.measure.remote import RemoteRunner
from include.benchmarks.measure.targets import Runner, TargetSpace
from include.settings.benchmarks import EndpointServer, EndpointTarget, Mark, TargetKind, TargetSettings

RUNNERS: Mapping[RunnerKind, Runner[Any]] = {
    RunnerKind.FIO: FioRunner(),
    RunnerKind.DD: DdRunner(),
    RunnerKind.RADOS: RadosRunner(),
    RunnerKind.OBJECTS: ObjectRunner(),
    RunnerKind.REMOTE: RemoteRunner(),
    RunnerKind.PUBLISHER: PublisherRunner(),
    RunnerKind.READERS: ReadersRunner(),
    RunnerKind.CURL: CurlRunner(),
    RunnerKind.DAVIX: DavixRunner(),
    RunnerKind.XRDCP: XrdcpRunner(),
    RunnerKind.READER: ReaderRunner(),
}
TARGETS_OF: Mapping[RunnerKind, frozenset[TargetKind]] = {
    RunnerKind.FIO: frozenset({TargetKind.PATH}),
    RunnerKind.DD: frozenset({TargetKind.PATH}),
    RunnerKind.RADOS: frozenset({TargetKind.POOL}),
    RunnerKind.OBJECTS: frozenset({TargetKind.BUCKET}),
    RunnerKind.REMOTE: frozenset({TargetKind.REMOTE}),
    RunnerKind.PUBLISHER: frozenset({TargetKind.BUCKET, TargetKind.PATH}),
    RunnerKind.READERS: frozenset({TargetKind.PATH}),
    RunnerKind.CURL: frozenset({TargetKind.ENDPOINT}),
    RunnerKind.DAVIX: frozenset({TargetKind.ENDPOINT}),
    RunnerKind.XRDCP: frozenset({TargetKind.ENDPOINT}),
    RunnerKind.READER: frozenset({TargetKind.ENDPOINT}),
}
"""The kinds of target that each runner works on."""
PROGRAMS: Mapping[RunnerKind, BenchmarkProgram] = {
    RunnerKind.FIO: FIO,
    RunnerKind.DD: DD,
    RunnerKind.RADOS: RADOS,
    RunnerKind.READERS: NGINX,
}
"""Programs that have to be installed, by runner."""
USUAL: Mapping[TargetKind, RunnerKind] = {
    TargetKind.PATH: RunnerKind.FIO,
    TargetKind.BUCKET: RunnerKind.OBJECTS,
    TargetKind.POOL: RunnerKind.RADOS,
    TargetKind.REMOTE: RunnerKind.REMOTE,
    TargetKind.ENDPOINT: RunnerKind.READER,
}
"""The runner of a kind of target, where a plan names none."""

FILL_BLOCK, SMALL_FILL_BLOCK = 4 * MIB, MIB // 4
FILL_BLOCKS = 50
"""Of each stream at least, where large blocks are written."""
FILL_STREAMS = 8
"""Of a fill, each a dataset of its own, which may be deleted and written again while the others stay."""
FILL_S = 900
"""Against the seconds of the presets' steps: a fill writes a part of the whole target."""
AGE_PERCENT = 20
"""Of a target: what is written over its level and deleted, each time that it ages."""
LEAST_AGED = 10
"""Percent of a target: less than that, written again, proves nothing about it."""
MOST_ROUNDS = 50
KILO = 1000
MOST_DIGITS = 100
"""A rate above is shown as a whole number."""
SHORTEST_S = 1
RAMP_SHARE = 0.1
LONGEST_RAMP_S = 10
LOOK_AGAIN = 1.4
"""How many times as many rounds there are at the next look."""
LOAD_SHARE = 0.75
"""Of the time of a campaign: what its loads take."""


@dataclass(frozen=True, slots=True)
class CampaignWish:
    """What a person or a schedule asks for."""

    target: str
    preset: str
    scale: float = 1.0
    rounds: int = 5
    minutes: int | None = None
    """For all steps together; None: what the target's limits allow."""
    budget_bytes: int | None = None
    """To write in all steps together; None: what the target's limits allow."""
    most_rounds: int | None = None
    """Further rounds are run up to so many, while they may change the verdict; None: none are."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of a campaign. `round` 0: it prepares, and is not counted."""

    number: int
    round: int
    load: LoadStep
    phase: int = 0
    """Steps of one phase are repeated together."""
    fills: bool = False
    """It brings the target to a level, on which the steps after it rely."""
    servers: ServerState | None = None
    packet_bytes: int | None = None

    @property
    def counted(self) -> bool:
        """Tell whether its figures are compared."""
        return self.round > 0

    @property
    def bytes(self) -> int:
        """Return what it writes at most."""
        return sum(load.bytes * load.copies for load in self.load.loads if load.writes)

    @property
    def seconds(self) -> int:
        """Return what it takes at most."""
        return self.load.seconds + self.load.ramp_s


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """Steps in their order, and what they take of the target. Rounds after those that were asked for may not be run."""

    wish: CampaignWish
    kind: TargetKind
    steps: tuple[PlannedStep, ...]

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many rounds the figures are compared with the baseline; after the last one, no round is left."""
        most = max((step.round for step in self.steps), default=0)
        found = [min(self.wish.rounds, most)]
        while found[-1] < most:
            found.append(min(most, math.ceil(found[-1] * LOOK_AGAIN)))
        return tuple(found)

    @property
    def datasets(self) -> Mapping[str, StreamLoad]:
        """Return what the run creates, by name: each written load at its largest."""
        found: dict[str, StreamLoad] = {}
        for step in self.steps:
            for load in step.load.loads:
                if load.creates and (load.dataset not in found or load.bytes > found[load.dataset].bytes):
                    found[load.dataset] = load
        return found

    @property
    def packets(self) -> Sequence[int]:
        """The packet sizes for which the run creates a pool each."""
        return sorted({step.packet_bytes for step in self.steps if step.packet_bytes is not None})

    @property
    def bytes(self) -> int:
        """Return what all steps write together, at most."""
        return sum(step.bytes for step in self.steps)

    @property
    def peak_bytes(self) -> int:
        """Return what the run has on the target at the same time, at most."""
        return sum(load.bytes * load.copies for load in self.datasets.values())

    @property
    def seconds(self) -> int:
        """Return what the rounds that were asked for take together, at most; further ones have what is left of the
        minutes."""
        return sum(step.seconds for step in self.steps if step.round <= self.wish.rounds)


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises BenchmarkError (PRESET_UNKNOWN)."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(PRESETS))}"
        raise PRESET_UNKNOWN(name, f"no preset has this name; {meant}")
    return PRESETS[name]


def make_plan(
    wish: CampaignWish, settings: TargetSettings, kind: TargetKind, space: TargetSpace | None
) -> CampaignPlan:
    """Return what the campaign will do.

    Args:
        wish: What is asked for.
        settings: Of the target.
        kind: Of the target.
        space: How full the target is; None where it does not say.

    Raises:
        BenchmarkError: PRESET_UNKNOWN, or PLAN_REFUSED with all that is wrong at once.
    """
    preset = find_preset(wish.preset)
    wrong = [*_wrong_wish(wish), *_wrong_target(preset, settings, kind, space)]
    if wrong:
        raise PLAN_REFUSED(f"{wish.preset} on {wish.target}", "; ".join(wrong))
    return plan_preset(preset, wish, settings, kind, space)


def plan_preset(
    preset: Preset, wish: CampaignWish, settings: TargetSettings, kind: TargetKind, space: TargetSpace | None
) -> CampaignPlan:
    """Return what a campaign of a preset will do; of the rounds that are not asked for, only those within the limits
    of bytes.

    How many of them there is time for, the campaign finds out.

    Raises BenchmarkError (PLAN_REFUSED).
    """
    if isinstance(settings, EndpointTarget):
        preset = _at(preset, settings, wish.scale)
        if not any(phase.steps for phase in preset.phases):
            raise PLAN_REFUSED(f"{wish.preset} on {wish.target}", "no step of it reads from a server of the target")
    # servers are not stopped more often than was asked for
    most = wish.rounds if preset.stops_servers else wish.most_rounds or wish.rounds
    wrong: list[str] = []
    for rounds in range(most, wish.rounds - 1, -1):
        plan = CampaignPlan(wish, kind, tuple(_planned(wish, settings, preset, kind, space, rounds)))
        wrong = [*_over_limits(plan, settings, space), *_wrong_steps(plan)]
        if not wrong:
            return plan
    raise PLAN_REFUSED(f"{wish.preset} on {wish.target}", "; ".join(wrong))


def _wrong_wish(wish: CampaignWish) -> Iterator[str]:
    if not 0 < wish.scale <= 1:
        yield f"the scale {wish.scale:g} is not above 0 and at most 1"
    if not 1 <= wish.rounds <= MOST_ROUNDS:
        yield f"{wish.rounds} rounds are not 1 to {MOST_ROUNDS}"
    if wish.most_rounds is not None and not wish.rounds <= wish.most_rounds <= MOST_ROUNDS:
        yield f"{wish.most_rounds} rounds at most are not {wish.rounds} to {MOST_ROUNDS}"
    for name, value in (("minutes", wish.minutes), ("budget", wish.budget_bytes)):
        if value is not None and value <= 0:
            yield f"{name}: {value} is not positive"


def _wrong_target(
    preset: Preset, settings: TargetSettings, kind: TargetKind, space: TargetSpace | None
) -> Iterator[str]:
    if kind not in preset.targets:
        takes = " or ".join(sorted(accepted.value for accepted in preset.targets))
        yield f"the preset is for a {takes}, not a {kind.value}"
    missing = [mark for mark in preset.marks if getattr(settings, mark) is not Mark.ALLOWED]
    if missing:
        yield "the target is not marked " + " and ".join(f"`{mark}: allowed`" for mark in missing)
    if preset.stops_servers and not (settings.cluster and settings.cluster.servers):
        yield "the target has no `cluster:` with `servers:` that can be stopped"
    highest = {
        phase.fill_percent + (AGE_PERCENT if phase.ageing else 0)
        for phase in preset.phases
        if phase.fill_percent is not None
    }
    for percent in sorted(highest):
        if space is None:
            yield f"the target does not report how full it is, so it cannot be filled to {percent} %"
        elif percent > settings.limits.fill_percent:
            yield f"it would be filled to {percent} %, over its limit of {settings.limits.fill_percent} %"
    levels = {phase.fill_percent for phase in preset.phases if phase.fill_percent is not None and phase.ageing}
    if space is not None and any(space.used_percent + LEAST_AGED > percent for percent in levels):
        yield f"the target is {space.used_percent:.0f} % full already: too little of it would be the campaign's to age"


def _at(preset: Preset, settings: EndpointTarget, scale: float) -> Preset:
    """The preset with the steps that the endpoint has servers for; without a link at the round trip that there is."""

    def fitted(step: PresetStep) -> Iterator[PresetStep]:
        (load,) = step.loads
        read = load.distant
        if read is None or read.server not in settings.urls or (step.whole_scale and scale < 1):
            return
        name = step.name
        if settings.link is None:
            if read.rtt_ms or read.window is not TcpWindow.STOCK:
                return
            read, name = replace(read, rtt_ms=None), name.replace("-000ms-stock", "")
        yield replace(step, name=name, loads=(replace(load, file_bytes=int(settings.size), distant=read),))

    phases = (
        replace(phase, steps=tuple(new for step in phase.steps for new in fitted(step)), prepare=_prepared(settings))
        for phase in preset.phases
    )
    return replace(preset, phases=tuple(phases))


def _prepared(settings: EndpointTarget) -> tuple[PresetStep, ...]:
    """Return the step that writes the file of an endpoint, if campaigns do."""
    if settings.sha256 is not None:
        return ()
    server = next(server for server in settings.urls if server is not EndpointServer.XROOT)
    rtt_ms = None if settings.link is None else 0.0
    load = PresetLoad(LoadAccess.WRITE, "file", 1, int(settings.size), 1, distant=DistantRead(server, rtt_ms))
    return (PresetStep("write-file", (load,), runner=RunnerKind.CURL),)


def _planned(
    wish: CampaignWish,
    settings: TargetSettings,
    preset: Preset,
    kind: TargetKind,
    space: TargetSpace | None,
    rounds: int,
) -> Iterator[PlannedStep]:
    minutes = min(wish.minutes or settings.limits.minutes, settings.limits.minutes)
    # an ageing is two steps
    fills = sum(1 + 2 * phase.ageing for phase in preset.phases if phase.fill_percent is not None)
    measured = sum(
        sum(step.seconds for step in phase.prepare) + wish.rounds * sum(step.seconds for step in phase.steps)
        for phase in preset.phases
    )
    # further rounds do not count: a campaign with them is compared with one that has none
    # a ramp comes on top of each step, and files are opened, flushed and removed between them
    allowed = LOAD_SHARE * minutes * 60
    pace = min(1.0, allowed / (fills * FILL_S + measured))
    # a large target takes hours: a fill has all the time that the steps leave
    fill_s = max(SHORTEST_S, int((allowed - pace * measured) / max(fills, 1)))
    numbers = count(1)
    filled: list[StreamLoad] = []
    draw = random.Random(preset.name)  # noqa: S311 - the same for every campaign, so that they can be compared
    for part, phase in enumerate(preset.phases):
        if phase.fill_percent is not None and space is not None:
            wanted = int(space.total * phase.fill_percent / 100) - (space.total - space.free)
            fill = _fill(phase.fill_percent, wanted - sum(load.bytes for load in filled), kind, fill_s)
            if fill is not None:
                filled += fill.loads
                yield PlannedStep(next(numbers), 0, fill, part, fills=True)
            for _ in range(phase.ageing if filled else 0):
                again = [filled[place] for place in sorted(draw.sample(range(len(filled)), len(filled) // 2))]
                for aged in _ageing(again, space, kind, fill_s):
                    yield PlannedStep(next(numbers), 0, aged, part, fills=True)
        for step in phase.prepare:
            yield PlannedStep(next(numbers), 0, _scaled(step, wish.scale, kind, pace), part)
        for number in range(1, rounds + 1):
            for step in phase.steps:
                scaled = _scaled(step, wish.scale, kind, pace)
                yield PlannedStep(
                    next(numbers), number, scaled, part, servers=step.servers, packet_bytes=step.packet_bytes
                )


def _scaled(step: PresetStep, scale: float, kind: TargetKind, pace: float) -> LoadStep:
    runner = step.runner or USUAL[kind]
    seconds = max(SHORTEST_S, int(step.seconds * pace))
    loads = []
    for load in step.loads:
        if load.rate is not None:  # as much as the rate lets through
            load = replace(load, file_bytes=round(load.rate * seconds / scale))  # noqa: PLW2901
        loads.append(load.scaled(scale, runner))
    # what writes may end within its ramp: it has only so much to write
    endless = all(load.endless for load in loads)
    ramp = min(LONGEST_RAMP_S, int(seconds * RAMP_SHARE)) if endless and RUNNERS[runner].abilities.takes_ramp else 0
    return LoadStep(step.name, runner, tuple(loads), seconds, ramp)


def _fill(percent: int, size: int, kind: TargetKind, seconds: int) -> LoadStep | None:
    """All datasets at the same time, so that what is deleted of them later leaves holes between the others."""
    parts = [_filling(f"fill-{percent}-{part}", size // FILL_STREAMS, kind) for part in range(FILL_STREAMS)]
    loads = tuple(load for load in parts if load is not None)
    return LoadStep(f"fill-to-{percent}", USUAL[kind], loads, seconds) if loads else None


def _ageing(again: Sequence[StreamLoad], space: TargetSpace, kind: TargetKind, seconds: int) -> tuple[LoadStep, ...]:
    """Delete parts of the fill and write them again, their blocks between those of other data, and delete these."""
    over = _filling("turn", int(space.total * AGE_PERCENT / 100), kind, FILL_STREAMS)
    if over is None:
        return ()
    # what is written again is deleted before: a small dataset in place of a large one
    small = replace(over, file_bytes=over.block_bytes, files=1)
    return LoadStep("age", USUAL[kind], (*again, over), seconds), LoadStep("thin-out", USUAL[kind], (small,), seconds)


def _filling(dataset: str, size: int, kind: TargetKind, streams: int = 1) -> StreamLoad | None:
    # whole blocks of all streams: small ones where large ones would miss the level
    block = FILL_BLOCK if size >= FILL_BLOCKS * streams * FILL_BLOCK else SMALL_FILL_BLOCK
    each = size // streams // block * block
    if each <= 0:
        return None
    return PresetLoad(LoadAccess.WRITE, dataset, streams, each, block).scaled(1, USUAL[kind])


def _over_limits(plan: CampaignPlan, settings: TargetSettings, space: TargetSpace | None) -> Iterator[str]:
    limits, wish = settings.limits, plan.wish
    allowed = min(int(limits.bytes), wish.budget_bytes or int(limits.bytes))
    if plan.bytes > allowed:
        yield f"it would write {shown_bytes(plan.bytes)}, over {shown_bytes(allowed)}; lower the scale or the rounds"
    minutes = min(limits.minutes, wish.minutes or limits.minutes)
    if plan.seconds > minutes * 60:
        yield f"it would take {plan.seconds / 60:.0f} minutes, over {minutes}; lower the rounds"
    if space is not None:
        level = 100 - 100 * (space.free - plan.peak_bytes) / space.total if space.total else 100.0
        if level > limits.fill_percent:
            yield f"the target would be {level:.0f} % full, over its limit of {limits.fill_percent} %"


def _wrong_steps(plan: CampaignPlan) -> Iterator[str]:
    written: dict[str, StreamLoad] = {}
    for step in plan.steps:
        load_step = step.load
        abilities = RUNNERS[load_step.runner].abilities
        if plan.kind not in TARGETS_OF[load_step.runner]:
            yield f"{load_step.name}: {load_step.runner.value} does not work on a {plan.kind.value}"
        if load_step.together and not abilities.ends_together:
            yield f"{load_step.name}: {load_step.runner.value} cannot end several loads at the same time"
        for load in load_step.loads:
            if load.access not in abilities.accesses:
                yield f"{load_step.name}: {load_step.runner.value} cannot do {load.access.value}"
            if load.rate is not None and not abilities.limits_rates:
                yield f"{load_step.name}: {load_step.runner.value} cannot limit rates"
            if load.distant:
                continue  # of a file that is there, and is what it is
            if load.block_bytes % BLOCK_UNIT or load.file_bytes % load.block_bytes:
                yield f"{load_step.name}: blocks are multiples of {BLOCK_UNIT} bytes, files of blocks"
            before = written.get(load.dataset)
            streams = 1 if load.way else load.streams  # jobs share the files
            if load.needs_data and (before is None or before.streams < streams or before.files < load.files):
                yield f"{load_step.name}: no step before writes all of {load.dataset}"
            if load.creates:
                written[load.dataset] = load


def shown_time(plan: CampaignPlan) -> str:
    """Return how long a campaign takes at most, for people."""
    further = "; further rounds have what is left of its time" if len(plan.looks) > 1 else ""
    return f"{plan.seconds / 60:.1f} minutes{further}"


def shown_rate(rate: float) -> str:
    """Operations per second for people."""
    return f"{rate:,.0f}/s" if rate >= MOST_DIGITS else f"{rate:.3g}/s"


def shown_bytes(size: float) -> str:
    """A size for people."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < KILO:
            return f"{size:.3g} {unit}"
        size /= KILO
    return f"{size:.4g} PB"
