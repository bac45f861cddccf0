"""A program `ceph` whose three OSDs are files of a test: `down-0`, `noout-0`, `checks` for their health, `counts`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from include.benchmarks.campaign.folder import CampaignFolder
from include.benchmarks.campaign.outages import CampaignOutage
from include.benchmarks.measure.ceph import ClusterClient
from include.benchmarks.measure.osds import open_servers
from include.settings.benchmarks import ClusterBlock
from include.settings.secrets import EnvSecrets

_CEPH = """#!/bin/sh
cd '{folder}' || exit 1
while [ "${{1#--}}" != "$1" ]; do shift 2; done
echo "$*" >> calls
down=$(ls | grep -c '^down-')
case "$1 $2" in
"status "*)
  state=active+clean; [ "$down" = 0 ] || state=active+undersized+degraded
  printf '{{"health": {{"checks": %s}}, "osdmap": {{"num_osds": 3, "num_up_osds": %s}},' "$(cat checks)" $((3 - down))
  printf '"pgmap": {{"pgs_by_state": [{{"state_name": "%s", "count": 8}}], "degraded_ratio": 0.1}}}}' "$state" ;;
"osd dump")
  for osd in 0 1 2; do [ -e down-$osd ]; echo "{{\\"osd\\": $osd, \\"up\\": $?}}"; done | paste -sd, |
    sed 's/.*/{{"osds": [&]}}/' ;;
"osd set-group") shift 3; for osd; do touch "noout-${{osd#osd.}}"; done ;;
"osd ok-to-stop") [ ! -e unsafe ] || {{ cat unsafe >&2; exit 16; }} ;;
"osd df") echo '{{"nodes": [{{"type": "osd", "kb": 1000, "utilization": 10.0}}]}}' ;;
"df "*) echo '{{"stats": {{"total_bytes": 300000000000, "total_avail_bytes": 300000000000}}, "pools": []}}' ;;
"tell mon.*") cat deletable ;;
"tell osd.*") cat counts; [ "$down" = 0 ] || exit 6 ;;
"osd perf") echo '{{"osd_perf_infos": []}}' ;;
esac
"""


class FileCluster:
    """The cluster in a folder; its programs are before those of the machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "cluster"
        (self.folder / "bin").mkdir(parents=True)
        program = self.folder / "bin" / "ceph"
        program.write_text(_CEPH.format(folder=self.folder))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/sbin:/usr/bin:/sbin:/bin")
        self.report()
        (self.folder / "deletable").write_text('mon.a: {"mon_allow_pool_delete": "true"}')

    def report(self, **checks: str) -> None:
        """Let `ceph status` have these health checks."""
        found = {name: {"summary": {"message": message}} for name, message in checks.items()}
        (self.folder / "checks").write_text(json.dumps(found))

    def settings(self, **server: Any) -> ClusterBlock:
        """One server with OSDs 0 and 1, this machine."""
        commands = {
            "stop": ["touch", f"{self.folder}/down-{{osd}}"],
            "start": ["rm", "-f", f"{self.folder}/down-{{osd}}"],
            "unset": ["rm", "-f", f"{self.folder}/noout-{{osd}}"],
        }
        server = {"osds": [0, 1], "folder": str(self.folder), **commands, **server}
        return ClusterBlock.model_validate({"pool": "p", "clean_s": 10, "servers": {"s1": server}})

    def outage(self, folder: CampaignFolder, **server: Any) -> CampaignOutage:
        """What a campaign may stop of it."""
        settings = self.settings(**server)
        return CampaignOutage(folder, ClusterClient(settings, "t"), open_servers(settings, EnvSecrets({})))

    def files(self, *prefixes: str) -> list[str]:
        """Which OSDs are down or have noout, and the timers."""
        found = prefixes or ("down-", "noout-", "nightshift-outage-")
        return sorted(path.name for path in self.folder.iterdir() if path.name.startswith(found))
