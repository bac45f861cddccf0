"""Wait for storage sites, and for files of users that go to them; the waiting is done by the triggerer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sensors.base import WaitSensor


class SiteHealthSensor(WaitSensor):
    """Succeeds when none of the sites has failed or is held. Returns the state of each.

    Args:
        sites: Names in the site configuration; empty: all.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.
    """

    template_fields = ("sites",)
    check = "sites-usable"

    def __init__(self, *, sites: Sequence[str] | str = (), timeout: float = 6 * 3600.0, **kwargs: Any) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.sites = sites

    def arguments(self) -> dict[str, Any]:
        return {"sites": [self.sites] if isinstance(self.sites, str) and self.sites else [*self.sites]}


class RegisteredSensor(WaitSensor):
    """Succeeds when every file of a workflow has ended its way and is registered. Returns how many are in each state.

    A file without a data set counts once its copy is verified and its source cleaned or kept. Files that failed are
    waited for, too: they can be resubmitted.

    Args:
        owner: The user whose files they are.
        workflow: The workflow that requests named.
        allow_failed: Whether files that failed or were killed are left out.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.
    """

    template_fields = ("owner", "workflow")
    check = "workflow-registered"

    def __init__(
        self, *, owner: str, workflow: str, allow_failed: bool = False, timeout: float = 24 * 3600.0, **kwargs: Any
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.owner = owner
        self.workflow = workflow
        self.allow_failed = allow_failed

    def arguments(self) -> dict[str, Any]:
        return {"owner": self.owner, "workflow": self.workflow, "allow_failed": self.allow_failed}
