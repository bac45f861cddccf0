"""Looks at stores: one at a time for each repository, and a silent one delays no other."""

from __future__ import annotations

import asyncio
import threading

import pytest

from include.gateway.service import freezes
from include.gateway.service.freezes import StoreCheckCache


def test_a_silent_store_holds_one_thread_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    began = []

    def silent() -> str:
        began.append(threading.current_thread())
        threading.Event().wait()
        return "never"

    async def ask() -> None:
        found = StoreCheckCache[str]()
        monkeypatch.setattr(freezes, "PATIENCE_S", 0.0)
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await found.look("silent", silent)
        assert len(began) == 1
        monkeypatch.setattr(freezes, "PATIENCE_S", 60.0)
        assert await found.look("other", lambda: "ok") == "ok"

    asyncio.run(ask())


def test_those_who_ask_together_share_a_look_and_the_next_one_begins_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezes, "PATIENCE_S", 60.0)
    go_on, count = threading.Event(), iter(range(9))

    def look() -> int:
        go_on.wait()
        return next(count)

    async def ask() -> None:
        found = StoreCheckCache[int]()
        together = [asyncio.ensure_future(found.look("one", look)) for _ in range(3)]
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*together) == [0, 0, 0]
        assert await found.look("one", look) == 1
        with pytest.raises(KeyError):
            await found.look("one", lambda: dict[str, int]()["nothing"])

    asyncio.run(ask())
