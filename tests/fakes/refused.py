"""What a test expects of an error: its class or row, and its fields, not its wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from include.errors import ErrorRow

E = TypeVar("E", bound=BaseException)


@contextmanager
def refused(kind: type[E] | ErrorRow[..., E], /, **fields: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """The block ends in an error of exactly this class or row that has these fields."""
    if isinstance(kind, ErrorRow):
        kind, fields = kind.raised, {"code": kind.code, **fields}
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    found = {name: getattr(error, name) for name in fields}
    assert (type(error), found) == (kind, fields), f"got {type(error).__name__} {found}: {error}"
