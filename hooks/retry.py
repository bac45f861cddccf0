"""Retries by what went wrong: `retryable` of a library error is whether the same call may succeed later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryDecision, RetryPolicy

from include.errors import NightshiftError

if TYPE_CHECKING:
    from airflow.sdk import Context


class RetryByKind(RetryPolicy):
    """An error with `retryable = False` fails the task at once; with `True` it is retried as the task is configured.

    Others, of which nothing is known, are tried again too. The policy logs what it decides.
    """

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002
        max_tries: int,  # noqa: ARG002
        context: Context | None = None,  # noqa: ARG002
    ) -> RetryDecision:
        """Airflow asks this in the task's process, with the error itself."""
        if not isinstance(exception, NightshiftError):
            return RetryDecision.default()
        if exception.retryable:
            return RetryDecision.retry(reason=f"{exception.code} may pass by itself")
        return RetryDecision.fail(f"{exception.code} will not pass by itself")

    def serialize(self) -> dict[str, Any]:
        return {"__type": "RetryByKind"}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> RetryByKind:  # noqa: ARG003
        return cls()
