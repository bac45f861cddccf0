"""The root of every error that Nightshift raises on purpose. A subject draws its own tree below it.

Programs decide by the class or by its attributes, never by the text of a message. What is stored or sent is the `code`:
it stays when a class is renamed or moved.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar


class Concern(Enum):
    """What a failure is a failure of. All but the first are parts of the site: whatever they hit has one cause."""

    ARTIFACT = "artifact"
    """One artifact, change or call; nothing of the site."""
    STORE = "store"
    GATEWAY = "gateway"
    REPOSITORY = "repository"
    NODE = "node"
    CONFIGURATION = "configuration"


class NightshiftError(Exception):
    """Its message names the thing and what happened to it, then what helps."""

    code: ClassVar[str] = "nightshift-error"
    """Names the kind of error in the ledger, in alerts and on pages. Each class has its own; it never changes."""
    retryable: bool = False
    """The same call may succeed later without anyone's help."""
    outage: ClassVar[bool] = False
    """A service cannot be reached, and it is worthwhile to wait for it."""
    concern: ClassVar[Concern] = Concern.ARTIFACT
    hint: ClassVar[str] = ""
    """What helps, where that is the same for every error of the class."""
    stage: Enum | None = None
    """The step of a procedure in which it happened; set by a procedure that names its steps."""

    def __init__(self, message: str = "") -> None:
        # Names may have bytes that are not UTF-8, as lone surrogates; logs, JSON and pages take text only.
        super().__init__(message.encode("utf-8", "backslashreplace").decode())

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (pools, task runners); the fields are not the arguments of Exception.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(kind: type[NightshiftError], args: tuple[Any, ...], fields: dict[str, Any]) -> NightshiftError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


def code_of(error: BaseException | type[BaseException]) -> str:
    """The code of an error or of its class; for one that is not ours, the name of the class."""
    kind = error if isinstance(error, type) else type(error)
    return kind.code if issubclass(kind, NightshiftError) else kind.__name__


def is_retryable(error: BaseException, *, otherwise: bool) -> bool:
    """Whether the same call may succeed later; `otherwise`: the answer for an error that is not ours."""
    return error.retryable if isinstance(error, NightshiftError) else otherwise
