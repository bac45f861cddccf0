"""What the machine believes: who holds what until when, what was acknowledged, and what each answer may be."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from include.cvmfs.format.paths import is_below
from include.gateway.protocol import overlap
from tests.faults.machine.service import Answer
from tests.faults.machine.world import Change, Content, World

INVALID, BASE, GENERATION = "invalid lease", "base_mismatch", "generation_moved"
BASES = {BASE, "merge_error", "unknown_root"}


@dataclass(eq=False)
class Held:
    """A lease that was granted; ``deadline`` by the monotonic clock (ns), as is ``remembered``, of its outcome."""

    token: str
    path: str
    deadline: int
    change: Change | None = None
    tag: str = ""
    dropped: bool = False
    revision: int | None = None
    remembered: int = 0


@dataclass(eq=False)
class Standing:
    """A commit that was sent when the repository was at revision ``sent_at``.

    ``fenced``: whether its lease has been checked for the last time before the switch.
    """

    held: Held
    change: Change
    answer: Future[Answer]
    sent_at: int
    fenced: bool = False


@dataclass
class Model:
    world: World
    held: list[Held] = field(default_factory=list)
    tags: dict[str, Change] = field(default_factory=dict)

    def live(self, now: int) -> list[Held]:
        return [one for one in self.held if is_live(one, now)]

    def in_the_way(self, path: str, now: int, standing: Sequence[Standing]) -> bool:
        """Whether a lease on ``path`` must be refused: another overlaps it, or has not ended its switch yet."""
        switching = [one.held for one in standing if one.fenced and one.held.revision is None]
        return any(overlap(path, one.path) for one in [*self.live(now), *switching])

    # -- what became of the repository

    def observe(self, possible: Collection[Change]) -> None:
        """Take over the revisions that came: each is explained by some of the changes, each of those wholly in it."""
        for number, root, content in self.world.observed():
            before = self.world.contents[self.world.revision]
            differs = {path for path in {*before, *content} if before.get(path) != content.get(path)}
            whole = [one for one in possible if all(content.get(path) == one.now.get(path) for path in one.touched)]
            for path in differs:
                makers = [one for one in whole if path in one.touched]
                assert makers, f"revision {number}: {path} changed, and nobody wanted it"
                # whoever changed it knew what stood there: others' work is never taken back
                assert any(before.get(path) in (one.was.get(path), one.now.get(path)) for one in makers), path
            self.world.roots[number], self.world.contents[number] = root, content
            self.world.touched[number] = differs

    # -- what an answer may be

    def judge(self, one: Standing, answer: Answer, *, now: int, moved: bool, swept: bool) -> None:
        """``moved``: a list was published since the change was judged; ``swept``: objects were deleted since then."""
        reason = answer.members.get("reason")
        if answer.members["status"] == "ok":
            self._accepted(one, answer.members["final_revision"], now, moved)
            return
        allowed = set()
        if not is_live(one.held, now):
            allowed.add(INVALID)
        if moved:
            allowed.add(GENERATION)
        if self._is_touched(one, self.world.revision) or swept:
            allowed |= BASES
        assert reason in allowed, f"{one.held.path or '/'}: refused, {dict(answer.members)}; expected {allowed or 'ok'}"

    def _accepted(self, one: Standing, revision: int, now: int, moved: bool) -> None:
        held, change = one.held, one.change
        content = self.world.contents[revision]
        assert holds(content, change), f"revision {revision} was acknowledged, and the change is not in it"
        held.revision = revision
        if held.tag:
            self.tags[held.tag] = change
        if revision <= one.sent_at:
            return  # it stood already: nothing of this change is named, so no collection can take it away
        earlier = self.world.contents[max(number for number in self.world.contents if number < revision)]
        if holds(earlier, change):
            return
        for path in {*earlier, *change.was}:
            if is_below(path, held.path):
                assert earlier.get(path) == change.was.get(path), f"{path}: not as in the base, and yet accepted"
        if not one.fenced:
            assert not held.dropped, "committed under a lease that was dropped"
            assert held.deadline > now, "committed under a lease that had ended"
            assert not moved, "committed though a list was published since it was judged"

    def _is_touched(self, one: Standing, until: int) -> bool:
        """Whether anything came into the leased path since the change's base."""
        since = [number for number in self.world.touched if one.change.revision < number <= until]
        if not one.held.path:
            return bool(since)
        return any(is_below(path, one.held.path) for number in since for path in self.world.touched[number])


def is_live(held: Held, now: int) -> bool:
    return not held.dropped and held.revision is None and held.deadline > now


def holds(content: Content, change: Change) -> bool:
    return all(content.get(path) == change.now.get(path) for path in change.touched)
