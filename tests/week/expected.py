"""What must be there, by the plan alone: fates of artifacts, trees and links in the end, whatever stood there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date

from include.cvmfs.format.catalog import MARKER
from tests.week.plan import BASE_PROJECT, PAIRS, SLOTS, Pair, SlotNight, Week
from tests.week.trees import Tree, directories, stored_hash

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DIRECTORY = "directory"
BUILD_DEPTH = 3
"""Slashes in the path of a build's directory."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a slot's night must end: what its summary says of each (project, platform), and whether links follow.

    `overtaken`: it was rebuilt when there was a later build already, to which `latest` leads.
    """

    night: SlotNight
    fates: Mapping[Pair, str]
    whole: bool
    overtaken: bool = False

    @property
    def directory(self) -> str:
        return directory(self.night.slot, self.night.build_id)


@dataclass(slots=True)
class Expected:
    """What the week comes to.

    `held`: the tree or the link at each destination; `ever`: all trees that stood there at some time; `links` of the
    slots by path, each with the directory of the build that it leads to; `required`: destinations without which a
    build, named by its directory, is not whole; `order`: of each directory, build date and number.
    """

    outcomes: dict[tuple[str, date], Outcome] = field(default_factory=dict)
    held: dict[str, Tree | str] = field(default_factory=dict)
    ever: dict[str, set[Tree]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    required: dict[str, tuple[str, ...]] = field(default_factory=dict)
    order: dict[str, tuple[date, int]] = field(default_factory=dict)

    def paths(self) -> dict[str, str]:
        """Every path below `/nightlies`, with `directory`, the link's text, or the name of the object of a file."""
        found = {"/nightlies": DIRECTORY}
        for path, what in self.held.items():
            found |= dict.fromkeys(_above(path), DIRECTORY)
            # the slot's directory and the build's have catalogs of their own, as each tree has
            nested = [above for above in _above(path) if 1 < above.count("/") <= BUILD_DEPTH]
            found |= {f"{above}/{MARKER}": stored_hash(b"") for above in nested}
            if isinstance(what, str):
                found[path] = _relative(path, what)
                continue
            found[f"{path}/{MARKER}"] = stored_hash(b"")
            files = what.files()
            found[path] = DIRECTORY
            found |= {f"{path}/{one}": DIRECTORY for one in directories(files)}
            found |= {f"{path}/{one}": stored_hash(content) for one, content in files.items()}
        return found | {path: _relative(path, target) for path, target in self.links.items()}


def expected(week: Week) -> Expected:
    """Goes through the week night by night."""
    done = Expected()
    for night in week.nights:
        for one in night.slots:
            _build(done, one)
        for one in night.slots:
            for again in one.again:
                for listed in again.stage.listed:
                    _stand(done, listed.tree)
                key = (one.slot, again.day)
                done.outcomes[key] = replace(done.outcomes[key], overtaken=True)
    return done


def directory(slot: str, build_id: str) -> str:
    """Where a build is."""
    return f"/nightlies/{slot}/{build_id}"


def _build(done: Expected, night: SlotNight) -> None:
    fates = _fates(night)
    rules, where = SLOTS[night.slot], directory(night.slot, night.build_id)
    for stage in night.stages:
        for listed in stage.listed:
            if fates[listed.tree.project, listed.tree.platform] == "published":
                _stand(done, listed.tree)
    if night.base is not None:
        for pair in sorted(set(PAIRS) - _listed(night)):
            _inherit(done, rules.partial, directory(night.slot, night.base[0]), where, pair)
    required = [pair for pair in PAIRS if pair[1] not in rules.optional]
    whole = night.last.complete and all(fates[pair] == "published" for pair in required)
    done.outcomes[night.slot, night.day] = Outcome(night, fates, whole)
    done.required[where] = tuple(f"{where}/{project}/{platform}" for project, platform in required)
    done.order[where] = (night.day, int(night.build_id.removeprefix("b")))
    if whole:
        for name in ("latest", WEEKDAYS[night.day.weekday()]):
            done.links[f"/nightlies/{night.slot}/{name}"] = where
        done.tags.add(f"{night.slot}-{night.build_id}")


def _fates(night: SlotNight) -> dict[Pair, str]:
    listed = _listed(night)
    damaged = {one.tree.platform for one in night.last.listed if one.damaged}
    fates = {}
    for pair in PAIRS:
        if pair[1] in damaged:
            fates[pair] = "failed" if pair[0] == BASE_PROJECT else "blocked"
        elif pair in listed or night.base is not None:
            fates[pair] = "published"
        else:
            fates[pair] = "never arrived"
    return fates


def _listed(night: SlotNight) -> set[Pair]:
    return {(one.tree.project, one.tree.platform) for one in night.last.listed}


def _stand(done: Expected, tree: Tree) -> None:
    done.held[tree.path] = tree
    done.ever.setdefault(tree.path, set()).add(tree)


def _inherit(done: Expected, how: str, base: str, where: str, pair: Pair) -> None:
    source, place = (f"{above}/{pair[0]}/{pair[1]}" for above in (base, where))
    there = done.held[source]
    if isinstance(there, str):
        source, there = there, done.held[there]
    if how == "link":
        done.held[place] = source
    elif isinstance(there, Tree):
        done.held[place] = there
        done.ever.setdefault(place, set()).add(there)


def _above(path: str) -> Iterator[str]:
    parts = path.split("/")[1:-1]
    return ("/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _relative(path: str, target: str) -> str:
    """The text of a link in a slot's tree, by counting: up to the directory that both are in, and down again."""
    own, other = path.split("/")[1:-1], target.split("/")[1:]
    shared = 0
    while shared < min(len(own), len(other) - 1) and own[shared] == other[shared]:
        shared += 1
    return "/".join([".."] * (len(own) - shared) + other[shared:])
