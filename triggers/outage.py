"""Wait in the triggerer while a store, gateway or publisher node cannot be reached: no worker, no pool is held."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import Context

from include.nightlies.rules.passes import is_outage, pauses
from triggers.poll import PollTrigger

if TYPE_CHECKING:
    from include.site.site import Site

T = TypeVar("T")

RECOVERED_S = 600.0
"""Work that went on for so long before it met an outage has met another one than before."""
CURE = "See that it runs and that workers reach it (nightshift preflight names what cannot be reached)."


class OutlastsOutages:
    """Operators and sensors that outlast an outage: they try again with growing pauses, within the same try.

    `outage_minutes` of the site is how long they wait. After it the error counts like any other, and further tries of
    the task wait as long again.
    """

    _pauses = 0
    """Number of pauses of this try so far."""

    def outlasts(self, site: Site) -> bool:
        """Tell whether an outage would be waited out now: then a step is to record nothing of it."""
        return getattr(self, "deferrable", True) and self._pauses < len(_planned(site))

    def outlasting(self, site: Site, work: Callable[[], T]) -> T:
        """Do what may meet an outage.

        Args:
            site: The site, for its `outage_minutes`.
            work: What to do; called again from the start after a pause.

        Returns:
            What `work` returns.

        Raises:
            TaskDeferred: It met an outage; the task begins again by `outage_over`.
            NightshiftError: What `work` raises, also once `outage_minutes` are over.
        """
        began = time.monotonic()
        try:
            return work()
        except Exception as error:
            if not is_outage(error) or not self.outlasts(site):
                raise
            planned = _planned(site)
            waited = 0 if time.monotonic() - began > RECOVERED_S else self._pauses
            left_s = sum(planned[waited:])
            self.log.warning(  # type: ignore[attr-defined]
                "%s. %s Looking again in %.0f s, for %.0f minutes at most", error, CURE, planned[waited], left_s / 60
            )
            end = datetime.now(UTC) + timedelta(seconds=planned[waited])
            trigger = PollTrigger("pause", {}, end.isoformat())
            self.defer(trigger=trigger, method_name="outage_over", kwargs={"number": waited + 1})  # type: ignore[attr-defined]
            raise AssertionError from error  # defer raises

    def outage_over(self, context: Context, event: dict[str, Any], number: int = 0) -> Any:
        """Begin again after a pause; whether the outage is over, the work finds out.

        Args:
            context: The context of the task.
            event: What the trigger reports.
            number: How many pauses there were.

        Returns:
            What the task returns.
        """
        self._pauses = number
        self.log.info("back from waiting: %s", event["reason"])  # type: ignore[attr-defined]
        return self.execute(context)  # type: ignore[attr-defined]


def _planned(site: Site) -> tuple[float, ...]:
    return pauses(site.settings.outage_minutes * 60.0)
