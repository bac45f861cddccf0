"""A site of one repository below a folder. Nothing of it is opened before it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from include.settings.model import SiteSettings, Slot
from include.settings.secrets import EnvSecrets
from include.site.site import Site

FQRN = "nights.example.org"


def plain_site(folder: Path, **slot: Any) -> Site:
    """Its slot is `main`, with these settings."""
    return Site(SiteSettings.model_validate(_settings(folder, ["main"], slot, {})), EnvSecrets({}))


def plain_file(
    folder: Path, slots: Sequence[str] = ("main",), *, store: Mapping[str, Any] | None = None, **slot: Any
) -> Path:
    """The configuration file of such a site, replaced as a whole. `store`: other settings of the store `builds`."""
    file, new = folder / "site.yaml", folder / "site.new"
    new.write_text(json.dumps(_settings(folder, slots, slot, store or {})))
    return new.replace(file)


def slot(**fields: Any) -> Slot:
    """A slot in Zurich, with these settings."""
    return Slot.model_validate(
        {"name": "main", "repository": FQRN, "store": "builds", "timezone": "Europe/Zurich", **fields}
    )


def _settings(folder: Path, slots: Sequence[str], slot: Mapping[str, Any], store: Mapping[str, Any]) -> dict[str, Any]:
    repository = {
        "store": "builds", "public_url": "http://127.0.0.1:1", "public_key": f"{folder}/nights.pub",
        "gateway": "gateway",
    }  # fmt: skip
    return {
        "ledger": f"sqlite:///{folder}/ledger.db",
        "stores": {"builds": {"url": f"file://{folder}/builds", **store}},
        "repositories": {FQRN: repository},
        "slots": {name: {"repository": FQRN, "store": "builds", **slot} for name in slots},
    }
