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


def publication_params(repositories: Iterable[str]) -> dict[str, Param]:
    """The params of one tree that is published by hand. Of what must be chosen nothing has a default."""
    return {
        "repository": choice(repositories, title="Repository", description="The repository to publish to."),
        "path": Param(
            title="Destination",
            type="string",
            pattern="^/[^/]+(/[^/]+)*/?$",
            minLength=2,
            maxLength=1024,
            description="The destination: an absolute path inside the repository, such as /software/root/6.36.",
        ),
        "source": Param(
            title="Source",
            type="string",
            pattern="^[a-z0-9]+://.+",
            maxLength=2048,
            description="URL of a tarball or folder in one of the configured stores, as s3://bucket/name.tar.gz.",
        ),
        "sha256": Param(
            None,
            title="SHA-256",
            type=["null", "string"],
            pattern="^[0-9a-f]{64}$",
            description="SHA-256 that the tarball must have. Empty: not checked.",
        ),
        "tag": Param(
            None,
            title="Tag",
            type=["null", "string"],
            pattern="^[A-Za-z0-9][A-Za-z0-9._+-]*$",
            maxLength=255,
            description="Tag for the new revision. Empty: none.",
        ),
        "mode": Param(
            "refuse",
            title="If the destination exists",
            type="string",
            enum=["refuse", "replace"],
            description="refuse: fail if the destination holds anything. replace: swap it.",
        ),
        "dry_run": flag("Dry run", "Report what would be published; change nothing."),
    }


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
