"""The root of every error that Nightshift raises on purpose. A subject draws its own tree below it.

Programs decide by the class or by an error's attributes, never by the text of a message. What is stored or sent is the
`code`: it stays when a class is renamed or moved. What no program tells apart by its class has none: it is a row.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
E_co = TypeVar("E_co", bound="NightshiftError", covariant=True)


class Concern(Enum):
    """Part that a failure concerns. All but the first are parts of the site: whatever they hit has one cause."""

    ARTIFACT = "artifact"
    """An artifact, change or call; nothing of the site."""
    STORE = "store"
    GATEWAY = "gateway"
    REPOSITORY = "repository"
    NODE = "node"
    FTS = "fts"
    CONFIGURATION = "configuration"


class NightshiftError(Exception):
    """Its message names the thing and what happened to it, then what helps."""

    code: str = "nightshift-error"
    """Names the kind of error in the ledger, in alerts and on pages. It never changes; no other class or row has it."""
    retryable: bool = False
    """The same call may succeed later without anyone's help."""
    outage: bool = False
    """A service cannot be reached, and it is worthwhile to wait for it."""
    concern: Concern = Concern.ARTIFACT
    hint: str = ""
    """Hint, where that is the same for every error of the class or row."""
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


class ErrorRow(Generic[P, E_co]):
    """A kind of error that differs from its class in these attributes only; called as the class is."""

    def __init__(
        self,
        raised: Callable[P, E_co],
        code: str,
        hint: str | None = None,
        *,
        retryable: bool | None = None,
        outage: bool | None = None,
        concern: Concern | None = None,
    ) -> None:
        self.raised = kind = cast("Any", raised)
        self.code = code
        self.hint: str = kind.hint if hint is None else hint
        self.retryable: bool = kind.retryable if retryable is None else retryable
        self.outage: bool = kind.outage if outage is None else outage
        self.concern: Concern = kind.concern if concern is None else concern

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> E_co:
        error: E_co = self.raised.__new__(self.raised)
        # before the rest: a message may end with the hint
        vars(error).update({name: value for name, value in vars(self).items() if name != "raised"})
        self.raised.__init__(error, *args, **kwargs)
        return error


def kinds_in(*modules: ModuleType) -> dict[str, type[NightshiftError] | ErrorRow[..., NightshiftError]]:
    """The classes and the rows that modules define, by their codes."""
    return {
        kind.code: kind for module in modules for kind in vars(module).values()
        if isinstance(kind, ErrorRow) or (isinstance(kind, type) and issubclass(kind, NightshiftError))
    }  # fmt: skip


def code_of(error: BaseException) -> str:
    """The code of an error; for one that is not ours, the name of its class."""
    return error.code if isinstance(error, NightshiftError) else type(error).__name__


def is_retryable(error: BaseException, *, otherwise: bool) -> bool:
    """Tell whether the same call may succeed later; `otherwise`: the answer for an error that is not ours."""
    return error.retryable if isinstance(error, NightshiftError) else otherwise
