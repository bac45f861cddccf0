"""Bad input to whole runs: the run fails, says why in its logs, and publishes nothing.

What is wrong with single artifacts is tested on the steps: tests/integration/nightlies/test_bad_input.py.
"""

from __future__ import annotations

import re

import pytest
from airflow.sdk.exceptions import ParamValidationError

from include.settings.errors import SettingsError
from tests.dags.conftest import FQRN, MiniSite
from tests.fakes.refused import refused

pytestmark = pytest.mark.server("weed")


def test_an_index_that_cannot_be_used_fails_the_run_and_publishes_nothing(
    site: MiniSite, capfd: pytest.CaptureFixture[str]
) -> None:
    site.opened.store("builds").put("main/2026-10-04/index.json", b"{not json")
    before = site.revision()
    run = site.run("nightly_install_main", build_date="2026-10-04")
    assert (run.state, run.tasks["gate"]) == ("failed", "failed")
    assert run.publications == {}
    assert site.revision() == before
    assert re.search(r"index s3://builds/main/2026-10-04/index\.json: .*JSON", capfd.readouterr().out)


def test_an_unknown_slot_or_repository_is_refused_by_name(site: MiniSite) -> None:
    slots = r"\['linked', 'main', 'required'\]"
    with pytest.raises(ParamValidationError, match=f"param slot: 'weekly' is not one of {slots}"):
        site.run("nightly_install", slot="weekly", build_date="2026-10-05")
    with pytest.raises(ParamValidationError, match=rf"param repository: 'none' is not one of \['{FQRN}'\]"):
        site.run("publication", repository="none", path="/a", source="s3://builds/a.tar.gz")
    with pytest.raises(
        SettingsError, match=r"unknown slot 'weekly'; .* has: linked, main, required\. Use one of these"
    ):
        site.opened.settings.slot("weekly")
    with refused(SettingsError):
        site.opened.repository("none")
