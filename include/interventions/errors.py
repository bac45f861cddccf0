"""What can be wrong with an intervention, besides what stores, gateways and settings say.

InterventionError
└── BadFreeze(fqrn, detail)     a freeze without a reason, or that ends before it begins
"""

from __future__ import annotations

from include.errors import NightshiftError


class InterventionError(NightshiftError):
    """Base of everything in this file; names the repository and the cure."""

    code = "intervention-error"


class BadFreeze(InterventionError):
    code = "freeze-invalid"

    def __init__(self, fqrn: str, detail: str) -> None:
        self.fqrn = fqrn
        super().__init__(f"repository {fqrn}: {detail}.")
