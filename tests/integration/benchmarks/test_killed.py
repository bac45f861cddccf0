"""A campaign whose process is killed goes on, and leaves nothing on the target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from include.benchmarks.campaign import plan
from include.benchmarks.campaign.campaigns import open_target, remove_data, run_campaign
from include.benchmarks.campaign.folder import CampaignFolder
from tests.fakes.benchmarking import begin_campaign, benchmark_site, campaigns_of, ticking

RUN = """\
import sys
from pathlib import Path
from include.benchmarks.campaign.campaigns import run_campaign
from include.benchmarks.campaign.folder import CampaignFolder
from include.benchmarks.campaign import plan
from include.benchmarks.campaign.campaigns import open_target
from tests.fakes.benchmarking import benchmark_site, campaigns_of, ticking

site = benchmark_site(Path(sys.argv[1]))
folder = CampaignFolder(campaigns_of(site), sys.argv[2])
target = open_target(site, folder.record().plan.wish.target)
run_campaign(folder, target, clock=ticking(), each=lambda ended: print(ended.step.number, flush=True))
"""


@pytest.mark.server("fio")
@pytest.mark.parametrize("target", ["scratch", "objects"])
def test_a_killed_campaign_goes_on_and_leaves_nothing(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "LOAD_SHARE", 0.01)  # steps of a second
    site = benchmark_site(tmp_path)
    begun = begin_campaign(site, "hlt2-mixed", target, minutes=1)
    with subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path), begun.id], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.kill()
    kept = list(begun.steps())
    assert len(kept) < len(begun.record().plan.steps)
    campaign = CampaignFolder(campaigns_of(site), begun.id)
    run_campaign(campaign, open_target(site, target), clock=ticking())
    steps = list(campaign.steps())
    assert steps[: len(kept)] == kept
    assert [ended.error for ended in steps] == [None] * 3
    assert remove_data(campaign, open_target(site, target)).left == ()
    assert [path for path in tmp_path.glob("target/**/*") if path.is_file()] == []
    assert [path for path in tmp_path.glob("store/**/*") if path.is_file() and ".lock" not in path.parts] == []
