"""What can go wrong with the embedded services.

LabError
 +-- ServiceFailed       a service ended, or did not answer as itself in time
"""

from include.errors import ErrorRow, NightshiftError


class LabError(NightshiftError):
    """Base of all; the message names the thing and has a hint."""

    code = "lab-error"


class ServiceFailed(LabError):
    """A service ended, or did not answer as itself in time."""

    code = "lab-service-failed"
    retryable = True

    def __init__(self, service: str, why: str, log: str) -> None:
        self.service, self.why, self.log = service, why, log
        super().__init__(f"{service}: {why}; its log: {log}")


SUPERVISOR_FAILED = ErrorRow(LabError, "lab-supervisor-failed", retryable=True)
"""The process manager does not start or answer."""
FOREIGN_INDEX = ErrorRow(LabError, "lab-foreign-index")
"""The index of a build was not made by the demonstration, which therefore leaves it alone."""
NOT_THE_DEMONSTRATIONS = ErrorRow(LabError, "lab-not-the-demonstrations")
"""A slot, store or repository that is not for the demonstration alone."""
CEPH_LAB_MISSING = ErrorRow(LabError, "lab-ceph-missing", "run nightshift lab ceph up")
"""There is no Ceph lab, or it does not run."""
OSD_UNKNOWN = ErrorRow(LabError, "lab-osd-unknown", "nightshift lab ceph status lists the OSDs")
"""The Ceph lab has no OSD of this number."""
LINK_IMPOSSIBLE = ErrorRow(LabError, "lab-link-impossible", "run it as root, with Debian's iproute2 and the module tun")
"""There is no link with a delay for this user on this machine."""
