"""Meta info: free JSON about a repository, for people (docs/formats.md, meta info)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from include.cvmfs.errors import FormatError

_WHAT = "meta info"
_TEXTS = {
    "administrator": "administrator",
    "email": "email",
    "organisation": "organisation",
    "description": "description",
    "url": "url",
    "recommended-stratum0": "stratum0",
}
_STRATUM1S = "recommended-stratum1s"


@dataclass(frozen=True, slots=True)
class MetaInfo:
    """The members of the skeleton; whatever else the JSON holds is kept in ``others``."""

    administrator: str = ""
    email: str = ""
    organisation: str = ""
    description: str = ""
    url: str = ""
    stratum0: str = ""
    stratum1s: tuple[str, ...] = ()
    custom: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> MetaInfo:
        """Read the JSON object; absent members are empty. Raises FormatError."""
        try:
            members = json.loads(data)
        except (ValueError, RecursionError) as fault:
            raise FormatError(_WHAT, f"not JSON: {str(fault)[:80]}") from fault
        if not isinstance(members, dict):
            raise FormatError(_WHAT, "not a JSON object")
        texts = {name: _text(key, members.pop(key, "")) for key, name in _TEXTS.items()}
        mirrors = members.pop(_STRATUM1S, [])
        custom = members.pop("custom", {})
        if not isinstance(mirrors, list) or not isinstance(custom, dict):
            raise FormatError(_WHAT, f"{_STRATUM1S} is not a list or custom not an object")
        return cls(**texts, stratum1s=tuple(_text(_STRATUM1S, url) for url in mirrors), custom=custom, others=members)

    def format(self) -> bytes:
        """The JSON text, the skeleton's members first; equal values give equal bytes."""
        members: dict[str, Any] = {key: getattr(self, name) for key, name in _TEXTS.items()}
        members |= {_STRATUM1S: list(self.stratum1s), "custom": self.custom, **self.others}
        return json.dumps(members, indent=2).encode() + b"\n"


def skeleton() -> bytes:
    """The meta info of a new repository: all members there, to be filled in."""
    return MetaInfo().format()


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise FormatError(_WHAT, f"{key} is not text")
    return value
