"""Owner mapping: user and group ids of a tree into those of a repository, in the stock tools' map file format.

Each line has two numbers, ``from to``; ``*`` in the place of the first is for all ids without a line of their own,
which otherwise stay as they are. Lines that begin with ``#`` are comments (docs/formats.md, owner maps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from include.cvmfs.errors import FormatError

_LARGEST_ID = 0xFFFFFFFF
_MOST_DIGITS = 20  # before they become a number; there may be zeros in front
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class IdMap:
    """Where numbers go; ``default`` is for those without a rule, None leaves them."""

    rules: Mapping[int, int] = field(default_factory=dict)
    default: int | None = None

    def __getitem__(self, number: int) -> int:
        return self.rules.get(number, number if self.default is None else self.default)

    @classmethod
    def parse(cls, text: str, name: str = "owner map") -> IdMap:
        """Read a map file called ``name``; of several rules for one id the last holds. Raises FormatError."""
        rules: dict[int, int] = {}
        default: int | None = None
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            words = line.split()
            if len(words) != 2 or not _is_id(words[1]) or not (words[0] == "*" or _is_id(words[0])):
                problem = f"{line[:_SHOWN]!r} is not a rule; write two ids, as in '1001 0', or '* 0' for all others"
                raise FormatError(f"{name}, line {number}", problem)
            if words[0] == "*":
                default = int(words[1])
            else:
                rules[int(words[0])] = int(words[1])
        return cls(rules, default)

    def format(self) -> str:
        """The text that :meth:`parse` reads."""
        lines = [f"{owner} {other}\n" for owner, other in sorted(self.rules.items())]
        return "".join(lines) + ("" if self.default is None else f"* {self.default}\n")


@dataclass(frozen=True, slots=True)
class OwnerMap:
    """Maps for user and group ids; an empty one changes nothing."""

    users: IdMap = field(default_factory=IdMap)
    groups: IdMap = field(default_factory=IdMap)

    def of(self, uid: int, gid: int) -> tuple[int, int]:
        return self.users[uid], self.groups[gid]


def fixed(uid: int, gid: int) -> OwnerMap:
    """Everything to one owner."""
    return OwnerMap(IdMap(default=uid), IdMap(default=gid))


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS and int(word) <= _LARGEST_ID
