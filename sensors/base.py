"""What every sensor of Nightshift has: the site's connections, and retries by what went wrong."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseSensorOperator

from hooks.retry import RetryByKind
from hooks.site import OnSite
from triggers.outage import OutlastsOutages


class NightshiftSensor(OutlastsOutages, OnSite, BaseSensorOperator):
    """A sensor that looks once and then is deferred; `timeout` and `poke_interval` (seconds) as for every sensor."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RetryByKind())
        super().__init__(**kwargs)
