"""What can be wrong with an intervention, besides the errors of stores, gateways and settings."""

from __future__ import annotations

from include.errors import NightshiftError


class BadFreeze(NightshiftError):
    """A freeze without a reason, or that ends before it begins."""

    code = "freeze-invalid"

    def __init__(self, fqrn: str, detail: str) -> None:
        self.fqrn = fqrn
        super().__init__(f"repository {fqrn}: {detail}.")
