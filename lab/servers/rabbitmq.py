"""RabbitMQ of Debian's package `rabbitmq-server`, with all its files in one folder: the broker of a lab with Celery."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from lab.ports import LOOPBACK
from lab.secrets import write_private

LOGIN = "nightshift"
# The package's command for root drops its rights and reads its settings in /etc; this is what it starts.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


@dataclass(frozen=True, slots=True)
class RabbitServer:
    """One node, whose only user is `LOGIN`; `command` and `environment` are for a process manager.

    Clients are served at `host`. What nodes and tools tell each other stays on loopback.
    """

    directory: Path
    host: str
    port: int
    node_port: int
    names_port: int
    password: str
    consumer_timeout: timedelta

    @property
    def url(self) -> str:
        """The broker's URL, with the password."""
        return f"amqp://{LOGIN}:{self.password}@{self.host}:{self.port}//"

    def command(self) -> tuple[str, ...]:
        """The command line; it holds no secret."""
        return (str(PROGRAM),)

    def environment(self) -> Mapping[str, str]:
        """Return where the node finds its files, and which ports are its own."""
        return {
            "HOME": str(self.directory),  # of the cookie by which its tools log in
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RUNNING_UNDER_SYSTEMD": "true",  # a process manager gets Erlang itself, and no shell before it
            "RABBITMQ_CONFIG_FILE": str(self._configuration),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_NODENAME": "nightshift@localhost",
            "RABBITMQ_DIST_PORT": str(self.node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self.names_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
        }

    def prepare(self) -> None:
        """Writes its configuration; the user is made at the first start."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = {
            "listeners.tcp.1": f"{self.host}:{self.port}",
            "default_user": LOGIN,
            "default_pass": self.password,
            "consumer_timeout": self.consumer_timeout // timedelta(milliseconds=1),
            "disk_free_limit.absolute": "100MB",
        }
        write_private(self._configuration, "".join(f"{key} = {value}\n" for key, value in settings.items()))

    @property
    def _configuration(self) -> Path:
        return self.directory / "rabbitmq.conf"
