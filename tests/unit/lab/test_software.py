"""Compiled code of a build is kept, and made again where it was lost."""

from __future__ import annotations

import marshal
from pathlib import Path

from lab.software import _CodeCache


def test_what_is_compiled_is_in_the_file_beside_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "code"
    for modules in (("one",), ("one", "two")):
        cache = _CodeCache(file)
        for name in modules:
            assert cache.compiled(f"{name} = 1".encode(), name, 0) is not None
        cache.save()
        assert len(marshal.loads(file.read_bytes())) == len(modules)
    written = file.stat().st_mtime_ns
    again = _CodeCache(file)
    for name in ("one", "two"):
        again.compiled(f"{name} = 1".encode(), name, 0)
    again.save()
    assert file.stat().st_mtime_ns == written, "nothing new: it stays"


def test_a_file_that_a_crash_cut_short_is_written_again(tmp_path: Path) -> None:
    file = tmp_path / "code"
    for _ in range(2):
        cache = _CodeCache(file)
        cache.compiled(b"one = 1", "one", 0)
        cache.save()
        assert len(marshal.loads(file.read_bytes())) == 1
        file.write_bytes(file.read_bytes()[:10])
