"""The rule of the house that what we import is asked for by name, not left to whoever brings it along."""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions

from tests.fakes.airflowhome import ROOT
from tests.unit.house.conftest import FOLDERS

OURS = {*FOLDERS, *(path.stem for folder in FOLDERS for path in (ROOT / folder).iterdir())}
NAME = re.compile(r"[\w.-]+")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_package_that_we_import_is_named_in_requirements_in(imports: dict[str, list[str]]) -> None:
    lines = (ROOT / "requirements.in").read_text().splitlines()
    named = {normal(found.group()) for line in lines if (found := NAME.match(line))}
    distributions = packages_distributions()
    missing = {}
    for file, modules in imports.items():
        for package in {one.partition(".")[0] for one in modules} - sys.stdlib_module_names - OURS:
            if not {normal(one) for one in distributions.get(package, [package])} & named:
                missing.setdefault(package, file)
    assert missing == {}
