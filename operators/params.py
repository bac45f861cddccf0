"""Parameters of runs that several DAGs have in their forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk import Param

NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._+-]{0,127}"
"""Names of builds, projects and platforms."""


def flag(title: str, description: str, *, default: bool = False) -> Param:
    """Return a parameter that is on or off."""
    return Param(default, title=title, type="boolean", description=description)


def choice(names: Iterable[str], **schema: Any) -> Param:
    """A parameter that is one of these names: the only one by default; of several, one has to be chosen."""
    listed = sorted(names)
    return Param(*listed[:1] if len(listed) == 1 else (), type="string", enum=listed, **schema)


def choose_artifacts(projects: str, platforms: str) -> dict[str, Param]:
    """Some projects and platforms of a build; empty by default, which their descriptions explain."""
    names: dict[str, Any] = {"type": ["array", "null"], "items": {"type": "string", "pattern": f"^{NAME_PATTERN}$"}}
    return {
        "projects": Param(None, title="Projects", **names, maxItems=1000, description=projects),
        "platforms": Param(None, title="Platforms", **names, maxItems=100, description=platforms),
    }


def choose_repositories(names: list[str], description: str) -> Param:
    """Some of these repositories; empty by default, which the description explains."""
    return _choose("Repositories", names, description)


def confirmed_by_hand(*, reason: str, dry_run: str) -> dict[str, Param]:
    """The params of a change made by hand: its reason, whether approval is asked for, and the dry run.

    Args:
        reason: Description of the reason.
        dry_run: Description of the dry run.

    Returns:
        `reason`, `approval` and `dry_run`.
    """
    return {
        "reason": Param(title="Reason", type="string", minLength=3, maxLength=1000, description=reason),
        "approval": flag(
            "Approval", "Ask for approval before it is done; a repository may insist on it.", default=True
        ),
        "dry_run": flag("Dry run", dry_run, default=True),
    }


def choose_caches(names: list[str], description: str) -> Param:
    """Some of these caches; empty by default, which the description explains."""
    return _choose("Caches", names, description)


def choose_sites(names: list[str], description: str) -> Param:
    """Some of these sites; empty by default, which the description explains."""
    return _choose("Sites", names, description)


def _choose(title: str, names: list[str], description: str) -> Param:
    items = {"type": "string", "enum": names}
    return Param(None, title=title, type=["null", "array"], items=items, description=description)
