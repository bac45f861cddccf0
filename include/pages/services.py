"""Answers of gateways and stores, asked for beside the pages: no page waits for a service that is down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from include.errors import NightshiftError

T = TypeVar("T")

FRESH_S = 4.0
"""Seconds after which the service is asked again."""
PATIENCE_S = 0.1
"""Seconds that a page waits for a service."""
OLD_S = 60.0
"""Seconds after which an answer is not shown any more, if its service hangs."""


@dataclass(frozen=True, slots=True)
class ServiceAnswer(Generic[T]):
    """The answer of a service and its time; or the reason of its absence."""

    at: datetime | None = None
    value: T | None = None
    fault: str | None = None


NOT_YET: ServiceAnswer[object] = ServiceAnswer(fault="no answer yet")


class Services:
    """Answers by question. Each question is asked by one thread at a time, and its last answer is kept."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="nightshift-pages")
        self._lock = threading.Lock()
        self._asked: dict[str, Future[None]] = {}
        self._answers: dict[str, ServiceAnswer[object]] = {}

    def ask(self, question: str, work: Callable[[], T]) -> ServiceAnswer[T]:
        """The answer to a question, at most a few seconds old unless the service is slow.

        Args:
            question: Names what is asked.
            work: Asks the service; runs in another thread.
        """
        with self._lock:
            known = self._answers.get(question, NOT_YET)
            age = None if known.at is None else (self._clock() - known.at).total_seconds()
            running = self._asked.get(question)
            if running is None and (age is None or age >= FRESH_S):
                running = self._asked[question] = self._pool.submit(self._work, question, work)
        if running is not None:
            wait([running], timeout=PATIENCE_S)
        with self._lock:
            answer = self._answers.get(question, NOT_YET)
        if answer.at is not None and (self._clock() - answer.at).total_seconds() >= OLD_S:
            return ServiceAnswer(answer.at, fault=f"no answer since {answer.at:%Y-%m-%d %H:%M:%S} UTC")
        return answer  # type: ignore[return-value]

    def _work(self, question: str, work: Callable[[], object]) -> None:
        try:
            answer = ServiceAnswer(self._clock(), work())
        except (NightshiftError, OSError) as error:
            answer = ServiceAnswer(self._clock(), fault=str(error))
        except Exception:
            answer = ServiceAnswer(self._clock(), fault="it cannot be read; see the log of Airflow's API server")
            raise
        finally:
            with self._lock:
                self._answers[question] = answer
                del self._asked[question]
