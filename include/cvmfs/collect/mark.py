"""The mark of a collection: root catalogs and histories that are kept and why, and everything that they need."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from include.cvmfs.format.database import Ref, RefType
from include.cvmfs.format.hashes import ObjectHash


@dataclass(frozen=True, slots=True)
class RootDecision:
    """What becomes of a root catalog. ``superseded``: Unix s; None for the current revision and for tags.

    ``tagged``: a tag names it. ``held``: only that protects it. ``published``: it is or was a revision, and not the
    root of a commit that is under way, was stopped or died.
    """

    root: ObjectHash
    keep: bool
    reason: str
    superseded: int | None = None
    tagged: bool = False
    held: bool = False
    published: bool = True


@dataclass(frozen=True, slots=True)
class RootPlan:
    """The decisions of one collection. ``histories``: those that go."""

    decisions: tuple[RootDecision, ...]
    histories: tuple[ObjectHash, ...]

    @property
    def kept(self) -> tuple[ObjectHash, ...]:
        return tuple(decision.root for decision in self.decisions if decision.keep)

    @property
    def revisions(self) -> tuple[ObjectHash, ...]:
        """Return those of :attr:`kept` that readers were given; a stopped commit takes others out of the reflog
        again."""
        return tuple(decision.root for decision in self.decisions if decision.keep and decision.published)

    @property
    def condemned(self) -> tuple[ObjectHash, ...]:
        return tuple(decision.root for decision in self.decisions if not decision.keep)

    def after(self, earlier: RootPlan, history: ObjectHash | None) -> RootPlan:
        """This plan, made later in the same collection: only what was condemned then can go.

        What was condemned by its age stays condemned, unless it is the current revision or a tag names it by now. What
        came since, or lost its tag since, was not marked as condemned and is left for the next time. ``history``: the
        current one.
        """
        condemned = {root.digest for root in earlier.condemned}
        decisions = []
        for decision in self.decisions:
            if decision.root.digest not in condemned:
                decisions.append(replace(decision, keep=True))
            elif decision.keep and (decision.tagged or decision.superseded is None):
                decisions.append(decision)
            else:
                decisions.append(replace(decision, keep=False))
        return RootPlan(
            tuple(decisions), tuple(kept_history for kept_history in earlier.histories if kept_history != history)
        )

    @property
    def next_superseded(self) -> int | None:
        """When the first of the kept roots was superseded that only their age protects (Unix s)."""
        aging = [
            decision.superseded
            for decision in self.decisions
            if decision.keep and not decision.tagged and decision.superseded is not None
        ]
        return min(aging, default=None)


def decide_roots(
    refs: Sequence[Ref], *, current: ObjectHash, tags: Mapping[ObjectHash, Collection[str]], history: ObjectHash | None,
    cutoff: int, published: Mapping[bytes, bytes | None],
) -> RootPlan:  # fmt: skip
    """Decide for all roots of a reflog.

    A root stays if it is the current one, if a tag names it, or if it was superseded after ``cutoff`` (Unix s): a
    reader may be on a revision until the next one was published, however old the revision itself is. ``tags``: root to
    names. ``history``: the current one. A tagged root that the reflog lacks stays as well. ``published``: the roots
    that were revisions, digest to that of the next one: a commit that died leaves others in the reflog, which supersede
    nothing. What is decided of a root does not change when others are added, but for tags: it may be gone by then.
    """
    written_at = {ref.hash.digest: ref.timestamp for ref in refs if ref.type is RefType.CATALOG}
    times = sorted(written_at[root] for root in published if root in written_at)
    decisions = [RootDecision(current, True, "the current revision")]
    seen = {current.digest}

    def superseded(root: ObjectHash) -> int:
        after = published.get(root.digest)
        return max(written_at.get(root.digest, 0), written_at.get(after, 0) if after is not None else 0)

    for root, names in tags.items():
        if root.digest not in seen:
            held = superseded(root) <= cutoff
            decisions.append(RootDecision(root, True, f"named by tag {min(names)}", tagged=True, held=held))
            seen.add(root.digest)
    for ref in refs:
        if ref.type is not RefType.CATALOG or ref.hash.digest in seen:
            continue
        seen.add(ref.hash.digest)
        since, was_revision = superseded(ref.hash), ref.hash.digest in published
        keep, when = (True, "within") if since > cutoff else (False, "before")
        reason = f"superseded {when} the grace"
        decisions.append(RootDecision(ref.hash, keep, reason, since, published=was_revision))
    # A client reads the history that its manifest names. An old one is needed as long as the revision that was the
    # current one before the next was written, since that one may have been written by a commit that died.
    written = sorted({ref.timestamp for ref in refs if ref.type is RefType.HISTORY})
    gone = [
        ref.hash for ref in refs
        if ref.type is RefType.HISTORY and (history is None or ref.hash.digest != history.digest)
        and _superseded(written, times, ref.timestamp, cutoff)
    ]  # fmt: skip
    return RootPlan(tuple(decisions), tuple(gone))


def _superseded(written: Sequence[int], times: Sequence[int], timestamp: int, cutoff: int) -> bool:
    """Tell whether by ``cutoff`` a later history was written, and then a revision published."""
    place = bisect_right(written, timestamp)
    if place == len(written):
        return False
    after = bisect_left(times, written[place])
    return after < len(times) and max(times[after], written[place]) <= cutoff
