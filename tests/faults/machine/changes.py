"""Publishers upload changes under their leases, and take up those whose lease is gone."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from include.cvmfs.format.paths import is_below
from tests.faults.machine.ground import numbers, places
from tests.faults.machine.leases import Leases
from tests.faults.machine.model import Held
from tests.faults.machine.world import HERE, MADE, Change


class Changes(Leases):
    @rule(place=places, stale=st.sampled_from([0, 0, 0, 1, 3]), name=numbers, number=numbers)
    def upload(self, place: int, stale: int, name: int, number: int) -> None:
        live = self.model.live(self.now)
        if live:
            self.uploaded(live[place % len(live)], stale, name, number)

    def uploaded(self, held: Held, stale: int, name: int, number: int) -> None:
        if any(one.held is held for one in self.standing):
            return
        base = sorted(self.world.roots)[-1 - min(stale, len(self.world.roots) - 1)]
        change = self.world.prepare(base, wanted(self.world.contents[base], held.path, name, number))
        if change is not None and change.touched:
            held.change = change
            self.swept[id(change)] = self.world.sweeps
            self.tag += 1
            held.tag = f"t{self.tag}" if number == 0 else ""

    @rule(place=places)
    def take_up(self, place: int) -> None:
        """A change whose lease was lost or spent, under a new one."""
        if not self.orphans:
            return
        path, change = self.orphans.pop(place % len(self.orphans))
        held = self.acquired(path)
        if held is not None:
            held.change = self.rejudged(change)

    def rejudged(self, change: Change) -> Change | None:
        again = self.world.judge_again(change)
        if again is not None:
            self.swept[id(again)] = self.swept[id(change)]
        return again


def wanted(content: dict[str, int], path: str, name: int, number: int) -> dict[str, int]:
    """What a publisher with a lease on ``path`` makes of a content."""
    made = dict(content)
    if path in MADE:
        if number == 0 and path in made:
            return {one: value for one, value in made.items() if not is_below(one, path)}
        made[path] = HERE
    file = f"{path}/f{name % 3}"
    if made.get(file) == number:
        del made[file]
    else:
        made[file] = number
    return made
