"""*Start a run*: the filled-in form of an action. The browser sends it to Airflow's own interface, with the login of
the person who presses the button, so that Airflow's permissions and audit log apply. A DAG that is paused, or that the
person may not start, is refused with the reason: when the page is drawn, and again before the run is started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from include.dag_runs import why_not_startable
from include.pages.asked import Asked, BadPageQuery
from include.pages.registry import AIRFLOW

LONGEST = 30_000
"""Characters of a field: a night's whole list of artifacts may be in one."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form. `kind`: text, boolean, whole (a number), or names (a list, by commas)."""

    name: str
    label: str
    kind: str = "text"
    required: bool = False
    on: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """The action of a button: the DAG that it starts, with its parameters. `fixed`: those not editable."""

    dag_id: str
    title: str
    text: str
    fields: tuple[Field, ...]
    fixed: Mapping[str, str] = field(default_factory=dict)


_SLOT, _BUILD = Field("slot", "Slot", required=True), Field("build_id", "Build", required=True)
_PROJECTS = Field("projects", "Projects, by commas; empty: all", "names")
_PLATFORMS = Field("platforms", "Platforms, by commas; empty: all", "names")
_REASON = Field("reason", "Reason", required=True)
_REPOSITORY = Field("repository", "Repository", required=True)
_DATE = Field("build_date", "Build date", required=True)

ACTIONS: Mapping[str, Action] = {
    "install": Action(
        "nightly_install",
        "Install a night again",
        "What failed is tried again, and what is new is published. What is in the repository already stays.",
        (_SLOT, _DATE, _PROJECTS, _PLATFORMS,
         Field("dry_run", "Dry run: only report what would be published", "boolean")),
    ),
    "without": Action(
        "nightly_install",
        "Publish without what failed",
        "Tries all of the night once more. What is missing then of this list is only reported, and links move.",
        (_SLOT, _DATE, Field("without", "May be missing: project/platform, by commas", "names", required=True)),
    ),
    "accept": Action(
        "nightly_install",
        "Accept quality",
        "Installs the night although the quality gate blocks it. The reason is recorded, and links move.",
        (_SLOT, _DATE, Field("accept_quality", "Why the build is right", required=True)),
    ),
    "undo": Action(
        "undo_build",
        "Undo a build",
        "Takes artifacts of a build back by a new revision, after an approval.",
        (_SLOT, _BUILD, _PROJECTS, _PLATFORMS, _REASON,
         Field("move_links", "Let links that lead to it lead to an earlier build", "boolean"),
         Field("approval", "Ask for an approval first", "boolean", on=True),
         Field("dry_run", "Dry run: only report what would be undone", "boolean", on=True)),
    ),
    "redo": Action(
        "intervene",
        "Redo a build",
        "Lets the next run of the night install again what was undone of it. The repository is not changed by this.",
        (_SLOT, _BUILD, _PROJECTS, _PLATFORMS, Field("reason", "Reason")),
        {"action": "redo"},
    ),
    "freeze": Action(
        "intervene",
        "Freeze a repository",
        "Stops all publications, removals and collections of the repository until it is thawed.",
        (_REPOSITORY, _REASON, Field("hours", "Hours until it ends by itself; empty: never", "whole")),
        {"action": "freeze"},
    ),
    "thaw": Action(
        "intervene", "Thaw a repository", "Allows publications again. What waits goes on by itself.",
        (_REPOSITORY,), {"action": "thaw"},
    ),
}  # fmt: skip


def read(asked: Asked) -> dict[str, Any]:
    """The form of an `action`, its fields filled in from the other parameters. Raises BadPageQuery."""
    name = asked.choice("action", ACTIONS)
    if name is None:
        raise BadPageQuery("action", "an action is needed")
    action = ACTIONS[name]
    values = {
        entry.name: asked.text(entry.name, longest=LONGEST) or "" for entry in action.fields if entry.kind != "boolean"
    }
    return {
        "action": action,
        "values": values,
        "fixed": {name: json.dumps(value) for name, value in action.fixed.items()},
        "refusal": why_not_startable(asked.dag(action.dag_id)),
        "dag": f"{AIRFLOW}/dags/{quote(action.dag_id, safe='')}",
        "api": f"{AIRFLOW}/api/v2/dags/{quote(action.dag_id, safe='')}/dagRuns",
        "every": 0,
    }
