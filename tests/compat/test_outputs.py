"""What commands print with `--json`, and what tasks leave behind, has every member that it had, of the same kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compat.commands import outputs
from tests.compat.corpus import folders, same_json
from tests.compat.sites import running


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Of today."""
    with running(tmp_path_factory.mktemp("outputs") / "site") as site:
        return outputs(site)


@pytest.mark.parametrize("kind", ["tasks", "commands"])
@pytest.mark.parametrize("folder", folders("outputs"), ids=lambda folder: folder.name)
def test_no_member_is_gone_and_none_is_of_another_kind(
    folder: Path, kind: str, shown: dict[str, dict[str, Any]]
) -> None:
    recorded = json.loads((folder / "outputs" / f"{kind}.json").read_text())
    assert len(recorded) > 20
    assert same_json(shown[kind], recorded) == []
