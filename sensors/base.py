"""The base of every sensor: the site's connections, retries by what went wrong, and waiting by a check."""

from __future__ import annotations

from abc import abstractmethod
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue

from hooks.task import OnSite, RetryByKind, default_deferrable
from include.errors import NightshiftError, is_retryable
from triggers.checks import CHECKS, Observation
from triggers.poll import OutlastsOutages, PollTrigger


class NotThere(NightshiftError):
    """The awaited thing did not come; a further try waits again."""

    code = "awaited-object-missing"
    retryable = True


class NightshiftSensor(OutlastsOutages, OnSite, BaseSensorOperator):
    """A sensor that looks once and then is deferred.

    Args:
        **kwargs: Those of every sensor; `timeout` and `poke_interval` in seconds.
    """

    ui_color = "#e6f1f2"

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RetryByKind())
        super().__init__(**kwargs)


class WaitSensor(NightshiftSensor):
    """Base of the sensors that wait for one check of `triggers.checks.CHECKS`, and return its result.

    Args:
        timeout: Seconds to wait before the task fails, with what the last look saw.
        poke_interval: Seconds between two looks, at most; by default that of the check's row.
        deferrable: Whether the triggerer waits; otherwise the task does, by its `mode`. By default
            `default_deferrable` of Airflow's section `[operators]`.
        **kwargs: Those of every sensor.
    """

    check: ClassVar[str]

    def __init__(
        self, *, timeout: float, poke_interval: float | None = None, deferrable: bool | None = None, **kwargs: Any
    ) -> None:
        poll_s = CHECKS[self.check].poll_s if poke_interval is None else poke_interval
        super().__init__(timeout=timeout, poke_interval=poll_s, **kwargs)
        self.deferrable = default_deferrable() if deferrable is None else deferrable

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments of the check by name, as JSON; templates are filled in by now."""

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        answer = self._look()
        if answer.ready:
            return answer.result
        deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        self.log.info("%s; waiting until %s", answer.reason, deadline.isoformat("T", "seconds"))
        # the trigger ends by itself at the deadline, and then reports what it saw; the time-out is for its loss
        return self.defer(
            trigger=PollTrigger(self.check, self.arguments(), deadline.isoformat(), self.poke_interval),
            method_name="found",
            timeout=timedelta(seconds=self.timeout + 2 * self.poke_interval + 60),
        )

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002
        """Looks once, where the task itself waits; an error that may pass counts as not there yet."""
        try:
            answer = self._look()
        except Exception as error:
            if not is_retryable(error, otherwise=False):
                raise
            self.log.warning("%s", error)
            return PokeReturnValue(False)
        self.log.info("%s", answer.reason)
        return PokeReturnValue(answer.ready, answer.result)

    def found(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ARG002
        """Checks again after the wait.

        Args:
            context: The context of the task.
            event: What the trigger saw last.

        Returns:
            The check's result.

        Raises:
            NotThere: What is waited for did not come before the deadline.
            NightshiftError: What can never be, with its own error.
        """
        answer = self._look()
        if not (answer.ready or event["found"]):
            raise NotThere(f"{event['reason']}; waited for {self.timeout:.0f} s. See who is to provide or release it.")
        return answer.result

    def _look(self) -> Observation:
        site, look = self.site(), CHECKS[self.check].look
        return self.outlasting(site, lambda: look(lambda: site, **self.arguments()))
