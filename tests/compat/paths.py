"""Dotted paths that Airflow or setuptools stores, or that a site writes into its own DAGs."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator

from tests.compat.corpus import HERE

ROOT = HERE.parents[1]
IMPORTED = ("operators", "sensors", "hooks", "triggers")
"""Packages whose public classes sites use in DAGs of their own, and Airflow finds by their paths."""
FUNCTIONS = (
    "operators.alerts.alert_failed_run",
    "operators.alerts.note_failure",
    "operators.begin.index_asset",
    "operators.night.slot_asset",
    "operators.publishing.default_args",
    "operators.publishing.publishing_tasks",
    "airflow_local_settings.task_instance_mutation_hook",
)


def public_paths() -> list[str]:
    """All of them, sorted."""
    return sorted({*FUNCTIONS, *_classes(), *entry_points().values(), *_hooks()})


def _classes() -> Iterator[str]:
    for package in IMPORTED:
        for file in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for thing, value in vars(importlib.import_module(name)).items():
                if isinstance(value, type) and value.__module__ == name and not thing.startswith("_"):
                    yield f"{name}.{thing}"


def entry_points() -> dict[str, str]:
    """What the distribution offers, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"scripts": project["scripts"], **project["entry-points"]}
    return {
        f"{group} {name}": path.replace(":", ".") for group, names in groups.items() for name, path in names.items()
    }


def _hooks() -> Iterator[str]:
    from hooks.provider import get_provider_info

    yield from (str(one["hook-class-name"]) for one in get_provider_info()["connection-types"])
