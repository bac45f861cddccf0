"""Names that others use or that are stored: of DAGs, settings, commands, headers, metrics, states, environment."""

from __future__ import annotations

import ast
import enum
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from tests.compat.corpus import HERE

ROOT = HERE.parents[1]
PRODUCT = ("dags", "hooks", "include", "operators", "plugins", "sensors", "triggers")
FILES = ("Makefile", "config/site.yaml", "docker/compose.yaml", "docker/make-env", "airflow.cfg")
PATTERNS = {
    "environment": re.compile(r"\bNIGHTSHIFT_[A-Z0-9_]*[A-Z0-9]\b"),
    "headers": re.compile(r"\bX-Nightshift-[A-Za-z-]*[a-z]\b"),
    "store keys": re.compile(r"\.nightshift/[a-z]+|\.cvmfs[a-z_]*(?:\.json)?"),
    "loggers and files on nodes": re.compile(r"\bnightshift\.[a-z]+\b"),
}


def all_names(site: Path) -> dict[str, list[str]]:
    """Each kind, sorted. `site`: the configuration that the DAGs are made of."""
    found = {
        **_texts(), **_settings(), **_commands(), **_connections(), **_gateway(), **_stored(), **of_dags(dags(site)),
    }  # fmt: skip
    return {kind: sorted(set(names)) for kind, names in found.items()}


def _texts() -> dict[str, list[str]]:
    """What stands in texts of the code, and in files beside it; the lab's variables are made of fields."""
    from include.lab.ports import Ports
    from include.lab.secrets import LabSecrets

    texts = [text for folder in PRODUCT for file in sorted((ROOT / folder).rglob("*.py")) for text in _literals(file)]
    texts += [(ROOT / file).read_text() for file in FILES]
    found = {kind: [name for text in texts for name in pattern.findall(text)] for kind, pattern in PATTERNS.items()}
    secrets = LabSecrets(*"123456789").format()
    found["environment"] += [*Ports().to_environment(), *PATTERNS["environment"].findall(secrets)]
    return found


def _literals(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body and isinstance(node.body[0], ast.Expr)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def _settings() -> dict[str, list[str]]:
    from include.settings.model import SiteSettings
    from include.settings.pools import BACKFILL, NIGHTLY

    return {"settings": list(_keys(SiteSettings, "")), "pools": [*NIGHTLY, BACKFILL]}


def _keys(model: type[BaseModel], above: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        for inner in _models(field.annotation):
            yield from _keys(inner, f"{above}{name}.")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)


def _commands() -> dict[str, list[str]]:
    from include.cli.main import COMMANDS, GROUPS, assemble

    found = []
    for name in (*GROUPS, *COMMANDS):
        command: Any = typer.main.get_command(assemble([name]))
        found += list(_options(command.commands[name], f"nightshift {name}"))
    return {"commands": found}


def _options(command: Any, words: str) -> Iterator[str]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _options(inner, f"{words} {name}")
    for place, parameter in enumerate(command.params):
        if parameter.param_type_name == "argument":
            yield f"{words} <{place}>"
        else:
            yield from (f"{words} {option}" for option in (*parameter.opts, *parameter.secondary_opts))


def _connections() -> dict[str, list[str]]:
    from hooks.provider import get_provider_info

    types = get_provider_info()["connection-types"]
    return {
        "connection types": [one["connection-type"] for one in types],
        "connection fields": [f"{one['connection-type']}.{name}" for one in types for name in one["conn-fields"]],
    }


def _gateway() -> dict[str, list[str]]:
    from include.gateway.service.commits.points import Point
    from include.gateway.service.commits.queue import REASONS
    from include.gateway.service.http.openapi import document
    from include.gateway.service.http.serving import OFFERS
    from include.gateway.service.metrics import Metrics

    metrics = Metrics()
    families = {family.name for family in metrics.registry.collect()}
    labels = [f"{one._name}{{{label}}}" for one in vars(metrics).values() for label in getattr(one, "_labelnames", ())]
    calls = [f"{method.upper()} {path}" for path, methods in document()["paths"].items() for method in methods]
    return {
        "metrics": [*families, *labels],
        "calls of the gateway": calls,
        "offers of the gateway": OFFERS.split(", "),
        "reasons of the gateway": [reason for _, reason in REASONS],
        "points of a commit": [point.value for point in Point],
    }


def _stored() -> dict[str, list[str]]:
    """Values that are in ledgers, documents, messages or XComs."""
    from include.care.notify.message import NotifyEvent
    from include.care.preflight.findings import Severity
    from include.care.provenance.document import ChangeKind
    from include.care.watch.summary import Fate
    from include.cvmfs.coordination.generation import CollectionPhase
    from include.nightlies.rules import approval, states
    from include.nightlies.rules.links import LinkState
    from include.nightlies.rules.passes import Turn
    from include.nightlies.undo.plan import Instead
    from include.site.stale_leases import Whose

    values: Mapping[str, type[enum.Enum]] = {
        "states": states.State, "phases": states.Phase, "answers": approval.Answer, "questions": approval.QuestionKind,
        "links": LinkState, "turns": Turn, "instead": Instead, "events": NotifyEvent, "severities": Severity,
        "kinds of provenance": ChangeKind, "fates": Fate, "phases of a collection": CollectionPhase,
    }  # fmt: skip
    return {kind: [str(one.value) for one in members] for kind, members in values.items()} | {
        "whose a lease is": [one.name for one in Whose]
    }


@cache
def serialized(site: Path) -> dict[str, str]:
    """The DAGs of a configuration as Airflow stores them."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_CONFIG", str(site))
        bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    return {dag_id: json.dumps(DagSerialization.to_dict(dag)) for dag_id, dag in sorted(bag.dags.items())}


def dags(site: Path) -> dict[str, dict[str, Any]]:
    """The same without places, prose and names of code."""
    return {dag_id: _stored_dag(json.loads(text)["dag"]) for dag_id, text in serialized(site).items()}


PROSE = (
    "doc_md", "description", "title", "tooltip", "ui_color", "ui_fgcolor", "values_display", "examples",
    "group_display_name",
)  # fmt: skip
PLACES = (
    "fileloc", "relative_fileloc", "_processor_dags_folder", "task_type", "_task_module", "_operator_extra_links",
    "weight_rule",
)  # fmt: skip
"""Of files and of code: what of it must stay is in `paths.py`."""


def _stored_dag(dag: dict[str, Any]) -> dict[str, Any]:
    tasks = [task["__var"] for task in dag.pop("tasks")]
    for task in tasks:
        task.get("partial_kwargs", {}).pop("params", None)
        task.pop("params", None)  # each task repeats those of its DAG
    params = dict(dag.get("params", ()))
    return dict(without_prose_and_places({**dag, "params": params, "tasks": {task["task_id"]: task for task in tasks}}))


def without_prose_and_places(value: Any) -> Any:
    """Also of what was recorded before one more name counted as prose."""
    if isinstance(value, dict):
        return {key: without_prose_and_places(one) for key, one in value.items() if key not in (*PROSE, *PLACES)}
    return [without_prose_and_places(one) for one in value] if isinstance(value, list | tuple) else value


def of_dags(stored: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Ids, pools and assets."""
    text = repr(stored)
    return {
        "dags": list(stored),
        "tasks": [f"{dag_id} {task_id}" for dag_id, dag in stored.items() for task_id in dag["tasks"]],
        "params": [f"{dag_id} {name}" for dag_id, dag in stored.items() for name in dag["params"]],
        "assets": re.findall(r"nightshift://[a-z]+/[a-z_]+", text),
        "asset names": re.findall(r"'name': '((?:nightlies|index|first|leases)[a-z_]*)'", text),
    }
