"""Settings of notifications."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from include.settings.block import Block
from include.settings.text_types import ConnectionId


class Services(Block):
    """Mail, chat and web services by Apprise."""

    connections: Annotated[tuple[ConnectionId, ...], Field(min_length=1)]
    """One connection a service; its password is an Apprise URL, such as `mailtos://…` or `slack://…`."""
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 20.0
    """How long one service may take."""


class Notify(Block):
    """Who gets messages of what goes wrong. Nothing of it is secret: URLs are in the connections."""

    window_hours: Annotated[float, Field(gt=0, le=168)] = 12.0
    """A cause that was sent is not sent again so long."""
    whitelist_days: Annotated[int, Field(ge=0, le=365)] = 14
    """How many days before a whitelist ends a message says so."""
    late_minutes: Annotated[int, Field(ge=1, le=720)] = 30
    """How long after its schedule a night may begin; then a message says that it did not."""
    stuck_lease_minutes: Annotated[int, Field(ge=1, le=1440)] = 15
    """How long one lease may be held; then a message says so."""
    apprise: Services | None = None
    """None: no one is notified."""
