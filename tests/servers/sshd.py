"""A throw-away OpenSSH server of Debian's package `openssh-server` on a free loopback port: a node in tests."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.ports import LOOPBACK, free_port
from lab.servers.process import ServerProcess, ServerStartError, find_program

_SEPARATION = Path("/run/sshd")  # compiled in: where OpenSSH's unprivileged part lives


class SshServer:
    """A server with all its files in ``directory``, which must not exist yet, for the user who starts it.

    It has a host key and one user's key, both made here. ``environment``: what commands find in theirs.
    """

    def __init__(
        self, directory: Path, *, port: int | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.log = directory / "sshd.log"
        self._environment = dict(environment or {})
        self._process: ServerProcess | None = None

    @property
    def host_key(self) -> Path:
        return self.directory / "host"

    @property
    def user_key(self) -> Path:
        """The private key that is let in."""
        return self.directory / "user"

    @property
    def known_hosts(self) -> Path:
        """A file that knows this server."""
        return self.directory / "known_hosts"

    @property
    def process(self) -> ServerProcess:
        if self._process is None:
            raise ServerStartError("sshd", "is not started")
        return self._process

    def command(self) -> list[str]:
        """The command line; it has to name the program by its whole path, since sshd starts itself anew."""
        program = find_program("sshd")
        if program is None:
            raise ServerStartError("sshd", "the program is missing; apt-get install openssh-server")
        return [program, "-D", "-e", "-f", str(self.directory / "sshd_config")]

    def start(self) -> None:
        """Make keys and configuration, start it and wait until it answers; ServerStartError if it does not."""
        command = self.command()
        self.directory.mkdir(parents=True, mode=0o700)
        if os.geteuid() == 0:
            _SEPARATION.mkdir(mode=0o755, exist_ok=True)
        for key in (self.host_key, self.user_key):
            self.make_key(key)
        (self.directory / "authorized_keys").write_text(self.user_key.with_suffix(".pub").read_text())
        self.write_known_hosts()
        self._configure()
        self._process = ServerProcess("sshd", command, log=self.log, ready=self._answers)
        self._process.start()

    def stop(self) -> None:
        """Stop it and all its sessions; its files stay."""
        if self._process is not None:
            self._process.stop()

    def make_key(self, path: Path, passphrase: str = "") -> None:
        """A new Ed25519 key in ``path`` and ``path.pub``, in the place of one that is there."""
        path.unlink(missing_ok=True)
        self._run("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "nightshift", "-f", str(path))

    def write_known_hosts(self) -> None:
        """Let ``known_hosts`` hold the server's key as it is now."""
        kind, text, *_ = self.host_key.with_suffix(".pub").read_text().split()
        self.known_hosts.write_text(f"[{LOOPBACK}]:{self.port} {kind} {text}\n")

    def change_host_key(self) -> None:
        """Give the server another key, as if the machine had been installed anew; it is started again."""
        self.process.stop()
        self.make_key(self.host_key)
        self.process.start()

    def _configure(self) -> None:
        settings: Sequence[tuple[str, object]] = [
            ("ListenAddress", f"{LOOPBACK}:{self.port}"),
            ("HostKey", self.host_key),
            ("AuthorizedKeysFile", self.directory / "authorized_keys"),
            ("PidFile", "none"),
            ("UsePAM", "no"),
            ("StrictModes", "no"),  # throw-away folders lie below world-writable ones
            ("PasswordAuthentication", "no"),
            ("KbdInteractiveAuthentication", "no"),
            ("PermitRootLogin", "prohibit-password"),
            ("PermitUserRC", "no"),
            ("PrintMotd", "no"),
            ("MaxStartups", "100"),
            ("MaxSessions", "100"),
        ]
        lines = [f"{key} {value}" for key, value in settings]
        if self._environment:
            lines.append("SetEnv " + " ".join(f'"{key}={value}"' for key, value in self._environment.items()))
        (self.directory / "sshd_config").write_text("\n".join(lines) + "\n")

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), 5) as probe:
                probe.settimeout(5)
                return probe.recv(8).startswith(b"SSH-2.0")
        except OSError:
            return False

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise ServerStartError("sshd", f"{command[0]} ended with code {done.returncode}: {done.stderr.strip()}")

    def __enter__(self) -> SshServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
