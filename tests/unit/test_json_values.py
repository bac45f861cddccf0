"""Every value that crosses XCom, a file or the ledger comes back as it was."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from include.json_values import JsonValue
from include.nightlies.removal.removal import Removal
from include.nightlies.removal.retention import RemovedBuilds
from include.nightlies.rules.index import Artifact
from include.nightlies.rules.passes import Pass
from include.nightlies.rules.publication import Publication
from include.nightlies.steps.values import Batch, Item, Night
from include.provenance.interventions import Intervention

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 11, 23, 6, tzinfo=UTC)
ARTIFACT = Artifact("A", "x86_64", "a.tar.gz", 7, "0" * 64, ("B",), 3)
FORMS = [
    (
        Night("n/1", "main", NOW.date(), "today", ("A",), number=2, earlier=("n/0",), last=False),
        {
            "run": "n/1", "slot": "main", "date": "2026-11-23", "reason": "today", "projects": ["A"], "platforms": [],
            "dry_run": False, "number": 2, "earlier": ["n/0"], "last": False,
        },
    ),
    (Pass("n", 2, until=NOW), {"first": "n", "number": 2, "until": "2026-11-23T06:00:00+00:00", "after": None}),
    (
        Batch("n/1", "r.example.org", (Item("A/x", "/a", "s3://b/a", size=7, needs=("B/x",)),), ("/n",)),
        {
            "run": "n/1", "repository": "r.example.org", "nested": ["/n"], "replace": True, "tag": None,
            "dry_run": False, "name": "A/x",
            "items": [
                {
                    "name": "A/x", "destination": "/a", "source": "s3://b/a", "sha256": None, "size": 7,
                    "needs": ["B/x"], "inherits": None, "linked": False, "store": None,
                }
            ],
        },
    ),
]  # fmt: skip


def values() -> list[type[JsonValue]]:
    """All classes of values but those that read a form of their own, which other tests read back."""
    for file in sorted((ROOT / "include").rglob("*.py")):
        if "JsonValue" in file.read_text():
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    # a dataclass with slots is a class made anew
    kinds = {getattr(sys.modules[kind.__module__], kind.__name__) for kind in JsonValue.__subclasses__()}
    return sorted(kinds - {Removal}, key=lambda kind: str(kind.__name__))


# no measured time is "not a number", which differs from itself
st.register_type_strategy(float, st.floats(allow_nan=False))
SOME: dict[type[JsonValue], st.SearchStrategy[JsonValue]] = {
    Artifact: st.just(ARTIFACT),
    RemovedBuilds: st.builds(RemovedBuilds, kept=st.dictionaries(st.text(), st.text())),
    Publication: st.builds(Publication, seconds=st.just({"commit": 0.5}), lease_held_s=st.just(0.5)),
}


@pytest.mark.parametrize("kind", values())
def test_a_value_comes_back_as_it_was(kind: type[JsonValue]) -> None:
    # a row of the ledger; its other form is for people
    @settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None)
    @given(SOME.get(kind, st.from_type(kind)))
    def comes_back(value: JsonValue) -> None:
        form = JsonValue.to_json(value) if kind is Intervention else value.to_json()
        assert kind.from_json(json.loads(json.dumps(form))) == value

    comes_back()


@pytest.mark.parametrize(("value", "form"), FORMS)
def test_the_form_of_a_value_stays(value: JsonValue, form: dict[str, object]) -> None:
    assert value.to_json() == form
    assert type(value).from_json(form) == value


def test_what_is_absent_has_its_default_and_what_is_unknown_is_ignored() -> None:
    night = {"run": "r", "slot": "s", "date": "2026-11-23", "reason": "", "later": 1}
    assert Night.from_json(night) == Night("r", "s", date(2026, 11, 23), "")
