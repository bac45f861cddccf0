"""The benchmark of very many entries runs as it is described, and its stream is a sound archive."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_stream_is_an_archive_of_as_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from million import stream

    with tarfile.open(fileobj=io.BytesIO(b"".join(stream(2345)))) as archive:
        names = archive.getnames()
    assert len(names) == len(set(names)) == 2345
    assert sum(name.endswith("/.cvmfscatalog") for name in names) == 3


@pytest.mark.slow
def test_it_ends_in_one_line_of_json(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "bench/million.py", "--entries", "1500", "--check"]
    done = subprocess.run(
        [*command, "--store", (tmp_path / "store").as_uri()],
        capture_output=True, text=True, timeout=200, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["entries"], result["problems"], result["catalogs"]) == (1500, 0, 3)
    assert result["rss_mb"] < 400
