"""The log of a check is about the build; warnings of Great Expectations are still in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fakes.airflowhome import ROOT


@pytest.mark.slow
def test_the_import_logs_nothing_of_its_documentation_and_warnings_are_kept() -> None:
    program = (
        "import logging\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "import include.quality.validate\n"
        "logging.getLogger('great_expectations._docs_decorators').warning('a real warning')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "Skipping registering" not in done.stderr
    assert "a real warning" in done.stderr
