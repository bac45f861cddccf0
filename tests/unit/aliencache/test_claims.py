"""Claims are held by those who live."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time

import pytest

from include.aliencache.cache import CLAIMS, AlienCache
from include.aliencache.claims import Claims


def test_a_claim_is_held_by_one_and_given_back(cache: AlienCache) -> None:
    with Claims(cache, "trim") as one, Claims(cache, "trim") as other, Claims(cache, "warm") as warm:
        assert one.take("00")
        assert not other.take("00")
        assert warm.take("00")
        one.release("00")
        assert other.take("00")
    assert list((cache.path / CLAIMS).iterdir()) == []


def test_the_claim_of_a_process_that_was_killed_is_taken_at_once(cache: AlienCache) -> None:
    program = (
        "import os, sys; from pathlib import Path; from include.aliencache.cache import AlienCache\n"
        "from include.aliencache.claims import Claims\n"
        "claims = Claims(AlienCache(Path(sys.argv[1])), 'trim').__enter__()\n"
        "assert claims.take('00'); print('taken', flush=True); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, cache.path], check=False, capture_output=True)
    with Claims(cache, "trim") as claims:
        assert claims.take("00")


def test_a_process_that_is_killed_while_it_claims_leaves_no_claim_without_its_name(cache: AlienCache) -> None:
    program = (
        "import os, sys; from pathlib import Path; from include.aliencache.cache import AlienCache\n"
        "from include.aliencache.claims import Claims\n"
        "claims = Claims(AlienCache(Path(sys.argv[1])), 'trim').__enter__()\n"
        "os.write = lambda *_: os.kill(os.getpid(), 9)\n"
        "claims.take('00'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, cache.path], check=False, capture_output=True)
    assert (cache.path / CLAIMS / "trim.00").exists()
    with Claims(cache, "trim") as claims:
        assert claims.take("00")


def test_claims_without_hard_links_are_held_by_one(cache: AlienCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", none)
    with Claims(cache, "trim") as holder, Claims(cache, "trim") as other:
        assert holder.take("00")
        assert not other.take("00")
        holder.release("00")
        assert other.take("00")
    assert list((cache.path / CLAIMS).iterdir()) == list((cache.path / "txn").iterdir()) == []


def test_the_claim_of_a_machine_that_vanished_is_taken_when_it_is_stale(cache: AlienCache) -> None:
    claim = cache.path / CLAIMS / "trim.00"
    with Claims(cache, "trim", stale_s=60) as claims:
        claim.write_text("another-machine 1 2")
        assert not claims.take("00")
        os.utime(claim, (time.time() - 61,) * 2)
        assert claims.take("00")


def test_a_claim_that_another_one_took_meanwhile_is_not_given_away(cache: AlienCache) -> None:
    claim = cache.path / CLAIMS / "trim.00"
    with Claims(cache, "trim", stale_s=60) as slow:
        assert slow.take("00")
        claim.unlink()
        claim.write_text("another-machine 1 2")
        slow.release("00")
        assert claim.exists()
        claim.unlink()
