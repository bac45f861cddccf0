"""The secrets of a lab by their names, those that follow from others included."""

from __future__ import annotations

from dataclasses import asdict

from lab.secrets import Derived, LabSecrets


def by_name(secrets: LabSecrets) -> dict[str, str]:
    """Return them all."""
    derived = [name for name, value in vars(LabSecrets).items() if isinstance(value, Derived)]
    return {**asdict(secrets), **{name: getattr(secrets, name) for name in derived}}
