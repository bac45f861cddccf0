"""What can go wrong with the embedded services.

LabError
 +-- PortTaken           other programs listen where services should
 +-- ServiceFailed       a service ended, or did not answer as itself in time
 +-- SupervisorFailed    the process manager does not start or answer
 +-- LeftRunning         processes of the lab survived the end of the lab
 +-- SecretsDamaged      the file of secrets cannot be used
 +-- BuildSourceMissing  software that a build should be packed from is not on the machine
 +-- NightFailed         a night could not be run at all
"""

from collections.abc import Sequence

from include.errors import NightshiftError


class LabError(NightshiftError):
    """Base of all; the message names the thing and the cure."""

    code = "lab-error"


class PortTaken(LabError):
    """Other programs listen on ports that services need. `taken`: lines that name them; `exports`: what moves them."""

    code = "port-taken"

    def __init__(self, taken: Sequence[str], offset: int | None, exports: Sequence[str]) -> None:
        self.taken, self.exports = tuple(taken), tuple(exports)
        together = [f"  export NIGHTSHIFT_PORT_OFFSET={offset}    # all ports, or"] if offset else []
        lines = [
            f"{len(taken)} {'port is' if len(taken) == 1 else 'ports are'} taken:",
            *(f"  {line}" for line in taken),
            "End these programs, or choose other ports:",
            *together,
            *(f"  export {line}" for line in exports),
        ]
        super().__init__("\n".join(lines))


class ServiceFailed(LabError):
    """A service ended, or did not answer as itself in time."""

    code = "lab-service-failed"
    retryable = True

    def __init__(self, service: str, why: str, log: str) -> None:
        self.service, self.why, self.log = service, why, log
        super().__init__(f"{service}: {why}; its log: {log}")


class SupervisorFailed(LabError):
    """The process manager does not start or answer."""

    code = "lab-supervisor-failed"
    retryable = True


class LeftRunning(LabError):
    """Processes of the lab survived the end of the lab."""

    code = "lab-processes-left"

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        super().__init__(f"still running: {', '.join(map(str, pids))}: end them with kill -9")


class SecretsDamaged(LabError):
    """The file of secrets cannot be used."""

    code = "lab-secrets-damaged"


class BuildSourceMissing(LabError):
    """Software that a build should be packed from is not on the machine."""

    code = "build-source-missing"

    def __init__(self, project: str, where: str, cure: str) -> None:
        self.project = project
        super().__init__(f"project {project}: nothing to pack at {where}; {cure}")


class NightFailed(LabError):
    """A night could not be run at all."""

    code = "lab-night-failed"
