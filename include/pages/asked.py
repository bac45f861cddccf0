"""Requests of pages: who asks, for what, and what the application gives them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from include.dag_runs import DagState
from include.errors import NightshiftError
from include.settings.load import settings_path
from include.site.site import Site
from include.stageout.rest.questions import StageoutUser
from include.stageout.rest.remembered import RememberedCounts

T = TypeVar("T")

FRESH_S = 4.0
"""Seconds after which the service is asked again."""
PATIENCE_S = 0.1
"""Seconds that a page waits for a service."""
SHARE = 20.0
"""A count that took long is fresh for so many times as long."""
MOST = 1024
"""Questions whose answers are kept."""
OLD_S = 60.0
"""Seconds after which an answer is not shown any more, if its service hangs; one that is fresh for long: twice that."""


@dataclass(frozen=True, slots=True)
class ServiceAnswer(Generic[T]):
    """The answer of a service and its time; or the reason of its absence."""

    at: datetime | None = None
    value: T | None = None
    fault: str | None = None
    took_s: float = 0.0
    fresh_s: float = FRESH_S

    def is_late(self, now: datetime) -> bool:
        """Tell whether it is still to come; a fault is an answer."""
        return self.value is None and (self.at is None or self.is_old(now))

    def is_old(self, now: datetime) -> bool:
        """Tell whether it is not shown any more."""
        return self.at is not None and (now - self.at).total_seconds() >= max(OLD_S, 2 * self.fresh_s)


NOT_YET: ServiceAnswer[object] = ServiceAnswer(fault="no answer yet")


class Answers:
    """Answers by question. Each question is asked by one thread at a time, and its last answer is kept.

    Args:
        clock: Tells the time.
        workers: How many questions are asked at once.
        share: An answer is fresh for so many times as long as it took.
    """

    def __init__(
        self, clock: Callable[[], datetime] = lambda: datetime.now(UTC), *, workers: int = 8, share: float = 0.0
    ) -> None:
        self._clock, self._share = clock, share
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="nightshift-pages")
        self._lock = threading.Lock()
        self._asked: dict[Hashable, Future[None]] = {}
        self._answers: dict[Hashable, ServiceAnswer[object]] = {}

    def ask(self, question: Hashable, work: Callable[[], T], *, fresh_s: float = FRESH_S) -> ServiceAnswer[T]:
        """The answer to a question, at most a few seconds old unless the service is slow.

        Args:
            question: Names what is asked.
            work: Asks the service; runs in another thread.
            fresh_s: For how long the answer is not asked for again.
        """
        return self.ask_all({question: work}, fresh_s=fresh_s)[0]

    def ask_all(
        self, works: Mapping[Hashable, Callable[[], object]], *, fresh_s: float = FRESH_S
    ) -> list[ServiceAnswer[Any]]:
        """The same of several questions, which are waited for together."""
        with self._lock:
            running = [
                future for name, work in works.items() if (future := self._running(name, work, fresh_s)) is not None
            ]
        if running:
            wait(running, timeout=PATIENCE_S)
        with self._lock:
            answers = [self._answers.get(question, NOT_YET) for question in works]
        return [self._shown(answer) for answer in answers]

    def _running(self, question: Hashable, work: Callable[[], object], fresh_s: float) -> Future[None] | None:
        """Return what asks a question now and is worth a wait; None: its answer is fresh, or takes longer."""
        kept, now = self._answers.get(question, NOT_YET), self._clock()
        if question not in self._asked and (kept.at is None or (now - kept.at).total_seconds() >= kept.fresh_s):
            self._asked[question] = self._pool.submit(self._work, question, work, fresh_s)
        if kept.value is not None and kept.took_s > PATIENCE_S and not kept.is_old(now):
            return None
        return self._asked.get(question)

    def _shown(self, answer: ServiceAnswer[object]) -> ServiceAnswer[object]:
        if answer.at is not None and answer.is_old(self._clock()):
            return replace(answer, value=None, fault=f"no answer since {answer.at:%Y-%m-%d %H:%M:%S} UTC")
        return answer

    def _work(self, question: Hashable, work: Callable[[], object], fresh_s: float) -> None:
        began = self._clock()
        try:
            value = work()
            at = self._clock()
            took_s = (at - began).total_seconds()
            answer = ServiceAnswer(at, value, took_s=took_s, fresh_s=max(fresh_s, self._share * took_s))
        except (NightshiftError, OSError) as error:
            answer = ServiceAnswer(self._clock(), fault=str(error))
        except Exception:
            answer = ServiceAnswer(self._clock(), fault="it cannot be read; see the log of Airflow's API server")
            raise
        finally:
            with self._lock:
                self._answers.pop(question, None)
                self._answers[question] = answer
                while len(self._answers) > MOST:  # a person chooses what is asked
                    del self._answers[next(iter(self._answers))]
                del self._asked[question]


class BadPageQuery(NightshiftError):
    """A parameter of a page's URL has a value that it cannot have."""

    code = "page-query-invalid"
    hint = "Open the page from Airflow's navigation and choose there."

    def __init__(self, name: str, detail: str) -> None:
        self.name = name
        super().__init__(f"parameter {name}: {detail}. {self.hint}")


class PageForOperators(NightshiftError):
    """A user who is no operator asked for a page that only operators see."""

    code = "page-for-operators"
    hint = "Ask an administrator of Airflow for the role Op, or for a role that may edit pools."

    def __init__(self, page: str) -> None:
        super().__init__(f"The page {page} is for operators. {self.hint}")


LONGEST = 1024
AskDag = Callable[[str], DagState]
"""Tells of a DAG by its id."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. Parameters come from people and from links: each is checked when it is read."""

    site: Site
    services: Answers
    counts: Answers
    """From the ledger, one at a time: each takes a core, and pages need the other."""
    remembered: RememberedCounts
    user: StageoutUser
    now: datetime
    query: Mapping[str, str]
    dag: AskDag

    def text(self, name: str, *, longest: int = LONGEST) -> str | None:
        """A parameter; None if it is absent or empty. Raises BadPageQuery if it is too long."""
        value = self.query.get(name, "").strip()
        if len(value) > longest:
            raise BadPageQuery(name, f"longer than {longest} characters")
        return value or None

    def day(self, name: str) -> date | None:
        """A date as YYYY-MM-DD; None if it is absent. Raises BadPageQuery."""
        value = self.text(name)
        try:
            return None if value is None else date.fromisoformat(value)
        except ValueError:
            raise BadPageQuery(name, "not a date like 2026-11-23") from None

    def whole(self, name: str, default: int | None = None, *, least: int = 0, most: int = 2**62) -> int | None:
        """A whole number; the default if it is absent. Raises BadPageQuery."""
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and len(value) <= 19 and least <= int(value) <= most):
            raise BadPageQuery(name, f"not a whole number from {least} to {most}")
        return int(value)

    def choice(self, name: str, choices: Mapping[str, object]) -> str | None:
        """Return the parameter as one of these names; None if it is absent. Raises BadPageQuery."""
        value = self.text(name)
        if value is not None and value not in choices:
            raise BadPageQuery(name, f"{value!r} is not configured; known: {', '.join(sorted(choices)) or 'none'}")
        return value


class OpenSite:
    """Gives the deployment: opened once, and again when the file of its settings changes.

    Raises what opening it raises; the next call tries again.
    """

    def __init__(self, open_site: Callable[[], Site], path: Callable[[], Path] = settings_path) -> None:
        self._open = open_site
        self._path = path
        self._lock = threading.Lock()
        self._site: Site | None = None
        self._mark: tuple[int, int] | None = None

    def __call__(self) -> Site:
        with self._lock:
            mark = self._changed()
            if self._site is None or mark != self._mark:
                self._site, self._mark = self._open(), mark
            return self._site

    def _changed(self) -> tuple[int, int] | None:
        try:
            stat = self._path().stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size
