"""Jobs that begin in one moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def together(jobs: Iterable[Callable[[], Any]], timeout_s: float = 120) -> list[Any]:
    """Run each in a thread; returns their results in order, or raises the error of one once all have ended."""
    todo = list(jobs)
    start = threading.Barrier(len(todo))

    def run(job: Callable[[], Any]) -> Any:
        start.wait(20)
        return job()

    with ThreadPoolExecutor(len(todo)) as pool:
        return [future.result(timeout_s) for future in [pool.submit(run, job) for job in todo]]
