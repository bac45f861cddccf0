"""The settings of what people are told: by mail, by chat services, and by a call of the site's own service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from include.settings.block import Block
from include.settings.text_types import ConnectionId, MailAddress


class Mail(Block):
    """Mail to people."""

    connection: ConnectionId
    """The connection of an SMTP server: `schema` *ssl* or *starttls*, and a login if the server asks for one."""
    sender: MailAddress
    """The address that mail comes from."""
    to: Annotated[tuple[MailAddress, ...], Field(min_length=1)]
    """The addresses that get it."""
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 20.0
    """How long the server may take."""


class Webhook(Block):
    """A call of one's own service."""

    connection: ConnectionId
    """The connection with the service's URL as host; its password signs what is sent (docs/formats.md)."""
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 10.0
    """How long one call may take."""
    retries: Annotated[int, Field(ge=0, le=10)] = 3
    """How often a call that failed is repeated."""


class Chat(Block):
    """Chat and mail services by Apprise."""

    connections: Annotated[tuple[ConnectionId, ...], Field(min_length=1)]
    """One connection a service; its password is an Apprise URL, such as `slack://…`."""
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 20.0
    """How long one service may take."""


class Notify(Block):
    """Who gets messages of what goes wrong. Nothing of it is secret: addresses and keys are in the connections."""

    window_hours: Annotated[float, Field(gt=0, le=168)] = 12.0
    """A cause that was sent is not sent again so long."""
    whitelist_days: Annotated[int, Field(ge=0, le=365)] = 14
    """How many days before a whitelist ends a message says so."""
    late_minutes: Annotated[int, Field(ge=1, le=720)] = 30
    """How long after its schedule a night may begin; then a message says that it did not."""
    stuck_lease_minutes: Annotated[int, Field(ge=1, le=1440)] = 15
    """How long one lease may be held; then a message says so."""
    mail: Mail | None = None
    """None: no mail."""
    webhook: Webhook | None = None
    """None: no call."""
    apprise: Chat | None = None
    """None: no chat."""
