"""Retries of failed transfers: the class of a failure, and a rule for each class; pure.

The class comes from what FTS reports of a file, `SCOPE [errno] text`, by one table. A retry algorithm is a function
from failure, spent retries and chance to a decision; `exponential` is the one that is used where no other is given.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from functools import partial
from importlib.metadata import entry_points

from include.fts.states import FailureReason, FailureScope
from include.stageout.errors import RETRY_UNKNOWN
from include.stageout.states import TransferState

MAX_REASON_CHARACTERS = 2048
"""As FTS keeps them."""
LONGEST_WAIT = timedelta(days=30)


class TransferFailureClass(Enum):
    """Failures that are treated in the same way."""

    SOURCE_MISSING = "source-missing"
    SOURCE_CHECKSUM = "source-checksum"
    DESTINATION_CHECKSUM = "destination-checksum"
    DESTINATION_EXISTS = "destination-exists"
    CREDENTIAL = "credential"
    PERMISSION = "permission"
    QUOTA = "quota"
    NO_SPACE = "no-space"
    INVALID = "invalid"
    """The request cannot work: a name is too long, a path leads through a file, a protocol is not supported."""
    QUEUE_TIMEOUT = "queue-timeout"
    """Canceled by FTS after `max_time_in_queue`."""
    CANCELED = "canceled"
    """Canceled by others, as for a banned storage."""
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    SUBMISSION = "submission"
    """FTS fails with the job of the file, and takes others."""
    REGISTRATION = "registration"
    """Copied and verified, but the catalogue has another file of the name."""
    OTHER = "other"


def failure_class(failure: FailureReason) -> TransferFailureClass:
    """The class of the first row of the table that has this failure."""
    return next((row.failure_class for row in _SIGNS if row.has(failure)), TransferFailureClass.OTHER)


@dataclass(frozen=True, slots=True)
class _Sign:
    """A row of the table; fields with None or an empty value match anything."""

    failure_class: TransferFailureClass
    scope: FailureScope | None = None
    numbers: frozenset[int] = frozenset()
    text: str = ""

    def has(self, failure: FailureReason) -> bool:
        return (
            self.scope in (None, failure.scope)
            and (not self.numbers or failure.errno in self.numbers)
            and re.search(self.text, failure.text, re.IGNORECASE) is not None
        )


def _sign(
    failure_class: TransferFailureClass, *numbers: int, scope: FailureScope | None = None, text: str = ""
) -> _Sign:
    return _Sign(failure_class, scope, frozenset(numbers), text)


_F, _SOURCE, _DESTINATION = TransferFailureClass, FailureScope.SOURCE, FailureScope.DESTINATION


def _http(codes: str) -> str:
    """Return where davix, XRootD and dCache write a status: "HTTP 507", "status code 507", "rejected PUT: 507"."""
    return rf"\b(HTTP(/\d\.\d)?|status( code)?|rejected [A-Z]+|response)[ :]{{1,2}}({codes})\b"


def _curl(codes: str) -> str:
    """Return where gfal2 and XRootD write a number of libcurl: "curl error (56)"."""
    return rf"\bcurl( error| code| status)?[ :=(]{{1,3}}({codes})\b(?!\.)"


_MISMATCH = r"checksums? do(es)? not match|(checksum|size) mismatch"

SUBMISSION_FAILED = "FTS fails with the job of this file"
"""Begins the reason of a file whose submissions had no clear reply."""

# The first row counts: texts before numbers, since one errno has many causes.
_SIGNS = (
    _sign(_F.SUBMISSION, text=f"^{SUBMISSION_FAILED}"),
    _sign(_F.SOURCE_CHECKSUM, scope=_SOURCE, text=_MISMATCH),
    _sign(_F.SOURCE_CHECKSUM, text=r"source and user-defined .*do not match"),
    _sign(_F.DESTINATION_CHECKSUM, text=_MISMATCH),
    _sign(_F.CREDENTIAL, text=r"(proxy|credentials?|certificate|token)\b.{0,40}\b(has )?expired|no delegation found"),
    _sign(_F.QUEUE_TIMEOUT, text=r"stayed in the queue|max(imum)?[ _]time[ _]in[ _]queue"),
    _sign(_F.QUOTA, errno.EDQUOT),
    _sign(_F.QUOTA, text=r"quota.{0,20}exceeded|exceeded.{0,20}quota"),
    _sign(_F.NO_SPACE, errno.ENOSPC),
    _sign(_F.NO_SPACE, text=r"no (free )?space|not have enough space|SRM_NO_FREE_SPACE|pools are full|" + _http("507")),
    _sign(_F.TIMEOUT, errno.ETIMEDOUT, errno.ETIME),
    _sign(_F.TIMEOUT, text=r"timed? ?out|performance marker|was forcefully killed|" + _curl("28")),
    _sign(_F.DESTINATION_EXISTS, errno.EEXIST, scope=_DESTINATION),
    _sign(_F.DESTINATION_EXISTS, text=r"destination file exists"),
    _sign(_F.SOURCE_MISSING, errno.ENOENT, scope=_SOURCE),
    _sign(_F.PERMISSION, errno.EPERM, errno.EACCES, errno.EROFS),
    _sign(_F.PERMISSION, text=r"permission (denied|refused)|operation not permitted|" + _http("40[13]")),
    _sign(_F.INVALID, errno.ENAMETOOLONG, errno.E2BIG, errno.EISDIR, errno.ENOTDIR, errno.EFBIG, errno.EPROTONOSUPPORT),
    _sign(_F.CANCELED, errno.ECANCELED),
    _sign(_F.CANCELED, text=r"storage banned|cancell?ed by"),
    _sign(
        _F.CONNECTION,
        errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH,
        errno.ENETUNREACH, errno.ECOMM, errno.EPIPE, errno.EAGAIN, errno.EBUSY,
    ),
    _sign(_F.CONNECTION, text=r"could not connect|connection (refused|reset|closed|aborted|broken)"),
    _sign(_F.CONNECTION, text=r"service not known|name resolution|end-of-file|terminated abruptly|" + _http("50[0-4]")),
    # no host, no connection, a part only, TLS, no reply, sending or receiving broke off
    _sign(_F.CONNECTION, text=_curl("[5-7]|18|35|5[256]|9[25]")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RetryRule:
    """The retries of a class of failures: the wait doubles from `first` to `longest`, `retries` times at most."""

    retries: int
    first: timedelta = timedelta()
    longest: timedelta = timedelta(hours=6)


_NEVER = RetryRule(0)
RETRY_RULES: Mapping[TransferFailureClass, RetryRule] = {
    _F.SOURCE_MISSING: _NEVER,
    _F.SOURCE_CHECKSUM: _NEVER,
    _F.DESTINATION_EXISTS: _NEVER,
    _F.QUOTA: _NEVER,
    _F.INVALID: _NEVER,
    _F.REGISTRATION: _NEVER,
    # a new credential is waited for, and no retry is spent
    _F.CREDENTIAL: _NEVER,
    # storages refuse what they allow an hour later, as while their user lists are renewed
    _F.PERMISSION: RetryRule(4, timedelta(minutes=30)),
    _F.NO_SPACE: RetryRule(6, timedelta(minutes=30)),
    _F.CANCELED: RetryRule(6, timedelta(minutes=30)),
    _F.QUEUE_TIMEOUT: RetryRule(4, timedelta(minutes=10)),
    _F.DESTINATION_CHECKSUM: RetryRule(4, timedelta(minutes=5)),
    _F.TIMEOUT: RetryRule(6, timedelta(minutes=5)),
    _F.CONNECTION: RetryRule(8, timedelta(minutes=2)),
    _F.SUBMISSION: RetryRule(3, timedelta(minutes=10)),
    _F.OTHER: RetryRule(4, timedelta(minutes=10)),
}


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The fate of a failed transfer: its next state, after how long something happens there, and why."""

    to: TransferState
    wait: timedelta
    reason: str


RetryAlgorithm = Callable[[FailureReason, int, float], RetryDecision]
"""Takes the failure, the retries that the transfer has spent, and a number drawn from 0 to 1."""


def exponential(failure: FailureReason, spent: int, chance: float) -> RetryDecision:
    """The rule of the failure's class, with jitter: a wait is between half of the rule's and all of it.

    `spent`: retries before this failure, 0 for a first attempt. `chance`: from 0 to 1; it spreads transfers that failed
    together.
    """
    kind = failure_class(failure)
    return _decided(kind, RETRY_RULES[kind], failure, spent, chance)


def _decided(
    kind: TransferFailureClass, rule: RetryRule, failure: FailureReason, spent: int, chance: float
) -> RetryDecision:
    if kind is TransferFailureClass.CREDENTIAL:
        return RetryDecision(TransferState.NEEDS_CREDENTIAL, timedelta(), f"{kind.value}: {failure.text}")
    if spent >= rule.retries:
        why = f"after {spent} retries" if rule.retries else "not retried"
        return RetryDecision(TransferState.FAILED, timedelta(), f"{kind.value}, {why}: {failure.text}")
    # bounded before it is multiplied: the power of a large number would not fit
    doubled = rule.first * (2 ** min(spent, 30))
    wait = min(doubled, rule.longest) * (0.5 + 0.5 * chance)
    reason = f"{kind.value}, retry {spent + 1} of {rule.retries}: {failure.text}"
    return RetryDecision(TransferState.RETRY_WAIT, wait, reason)


_COOL_OFF = RetryRule(3, timedelta(hours=2), timedelta(hours=2))


def fixed(failure: FailureReason, spent: int, chance: float) -> RetryDecision:
    """The same wait and number of retries for all failures that `exponential` retries."""
    kind = failure_class(failure)
    rule = _COOL_OFF if RETRY_RULES[kind].retries else RETRY_RULES[kind]
    return _decided(kind, rule, failure, spent, chance)


RETRY_ALGORITHMS: Mapping[str, RetryAlgorithm] = {"exponential": exponential, "fixed": fixed}
ENTRY_POINTS = "nightshift.retry"
"""The group of the entry points of other algorithms."""
_ALLOWED = frozenset({TransferState.RETRY_WAIT, TransferState.NEEDS_CREDENTIAL, TransferState.FAILED})


def retry_algorithm(name: str) -> RetryAlgorithm:
    """The algorithm of this name, ours or that of an installed package.

    Raises StageoutError: RETRY_UNKNOWN if no package has it, or its code cannot be imported.
    """
    if name in RETRY_ALGORITHMS:
        return RETRY_ALGORITHMS[name]
    points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
    if not points:
        raise RETRY_UNKNOWN(f"the retry algorithm {name}", f"no package has an entry point {ENTRY_POINTS} of this name")
    try:
        return partial(_checked, name, points[0].load())
    except Exception as error:
        why = f"{points[0].value} cannot be loaded: {type(error).__name__}: {error}"
        raise RETRY_UNKNOWN(f"the retry algorithm {name}", why[:MAX_REASON_CHARACTERS]) from error


def _checked(name: str, algorithm: RetryAlgorithm, failure: FailureReason, spent: int, chance: float) -> RetryDecision:
    """The decision of a site's own algorithm; of one that fails, or decides what cannot be, that of `exponential`."""
    try:
        decision = algorithm(failure, spent, chance)
        if decision.to in _ALLOWED and timedelta() <= decision.wait <= LONGEST_WAIT:
            return decision
        fault = f"it decided {decision.to.value} after {decision.wait}"
    except Exception as error:  # noqa: BLE001 - whatever a site's code raises, no transfer may stay behind
        fault = f"{type(error).__name__}: {error}"
    decision = exponential(failure, spent, chance)
    return replace(decision, reason=f"{decision.reason}; the retry algorithm {name} failed: {fault[:200]}")
