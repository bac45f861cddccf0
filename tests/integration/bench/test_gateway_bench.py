"""The benchmark of the gateway runs as it is described, and ends in the line that others read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.commit.commit import switch
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key

ROOT = Path(__file__).parents[3]
WANTED = [
    "commits_per_s", "commit_p50_ms", "commit_p95_ms", "lease_p95_ms", "lease_pairs_per_s", "single_commit_p50_ms",
    "merge_commits_per_s", "merge_entries_per_s", "revisions_per_s", "floor_transactions_per_s",
    "floor_revisions_per_s", "silent_acquire_p50_ms", "silent_acquire_p99_ms", "silent_commit_p99_ms",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.thorough
def test_it_ends_in_one_line_of_json(tmp_path: Path) -> None:
    load = ["--publishers", "2", "--slots", "2", "--processes", "1", "--seconds", "0.5"]
    others = ["--turns", "2", "--merges", "2", "--entries", "50", "--past-share", "0.02"]
    places = ["--store", (tmp_path / "store").as_uri(), "--results", str(tmp_path / "results")]
    done = subprocess.run(
        [sys.executable, ROOT / "bench/gateway.py", *load, *others, *places],
        capture_output=True, text=True, timeout=250, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert all(result[key] > 0 for key in WANTED), result
    assert result["merge_entries"] == 50
    assert result["faults"] == 0
    assert list(result["single_commit_p50_ms_at"]) == ["0", "20", "200"]
    assert [row["publishers"] for row in result["curve"]] == [1, 2]
    assert json.loads((tmp_path / "results/gateway.json").read_text()) == result
    for name in ("commits", "latency"):
        assert ET.parse(tmp_path / f"results/gateway-{name}.svg").getroot().tag.endswith("svg")
    assert not list((tmp_path / "store").glob("*"))


def test_an_acknowledgement_that_does_not_stand_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from gatewaying.changes import prepared
    from gatewaying.standing import faults
    from publishing.places import Place
    from publishing.repositories import FQRN, TOP

    master, signer, now = generate_master(), generate_repository_key(FQRN, datetime.now(UTC)), int(time.time())
    public_key = tmp_path / "key.pub"
    public_key.write_bytes(format_public_key(master.public_key()))
    place = Place((tmp_path / "store").as_uri())
    store = place.open()
    head = create_repository(store, FQRN, master=master, signer=signer, now=datetime.now(UTC))
    [work] = prepared(place, 1, 1)
    for tree in (None, 0, 1):
        edit = Edit(CatalogCache(store), head.manifest.root)
        if tree is None:
            for path in (TOP, f"{TOP}/slot00", work.destination):
                edit.make_nested(path, Dirent("", 0o40755, size=4096, linkcount=2))
        else:
            changeset = work.changesets[tree]
            edit.hang(changeset.reference, changeset.root_entry, changeset.statistics.total)
        head = switch(store, head, edit.finish(now), signer=signer, now=now)
    told = [
        {"destination": work.destination, "root": changeset.root.text, "revision": 2 + tree}
        for tree, changeset in enumerate(work.changesets)
    ]

    assert faults(place, public_key, told, 1) == []
    assert any("nobody was told of revision 2" in fault for fault in faults(place, public_key, told[1:], 1))
    assert any("holds" in fault for fault in faults(place, public_key, [told[0], {**told[0], "revision": 3}], 1))
    lost = faults(place, public_key, [*told, {**told[0], "revision": 4}], 1)
    assert any("is at revision 3, not 4" in fault for fault in lost)
    assert any("revision 4 was acknowledged and is none" in fault for fault in lost)
