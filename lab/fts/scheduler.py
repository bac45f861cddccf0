"""Which waiting file is copied next: for each link by priority, then by age, up to a fixed number of active files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush

from include.fts.states import FileState
from lab.fts.records import FileRecord, Link


class Scheduler:
    """Queues of waiting files. Entries are dropped when they come up and their file no longer waits.

    Args:
        active_per_link: How many files of a link are copied at the same time.
    """

    def __init__(self, active_per_link: int) -> None:
        self.active_per_link = active_per_link
        self.active: Counter[Link] = Counter()
        self._waiting: dict[Link, list[tuple[int, int, FileRecord]]] = {}
        self._later: list[tuple[float, int, FileRecord]] = []
        self._deadlines: list[tuple[float, int, FileRecord]] = []

    def add(self, file: FileRecord, now: float) -> None:
        """Queue a file that waits: also one that waits again, or has another priority than before."""
        ends = file.job.options.queue_ends
        if ends is not None:
            heappush(self._deadlines, (ends, file.file_id, file))
        if file.due > now:
            heappush(self._later, (file.due, file.file_id, file))
        else:
            heappush(self._waiting.setdefault(file.link, []), (-file.job.priority, file.file_id, file))

    def startable(self, now: float) -> Iterator[FileRecord]:
        """Files to start now; each counts as active from here on, until `release`."""
        while self._later and self._later[0][0] <= now:
            file = heappop(self._later)[2]
            heappush(self._waiting.setdefault(file.link, []), (-file.job.priority, file.file_id, file))
        for link, queue in list(self._waiting.items()):
            while queue and self.active[link] < self.active_per_link:
                priority, _, file = heappop(queue)
                # an entry of an earlier priority, or from before a retry or cancel
                if file.state is FileState.SUBMITTED and file.due <= now and -priority == file.job.priority:
                    self.active[link] += 1
                    yield file
            if not queue:
                del self._waiting[link]

    def release(self, file: FileRecord) -> None:
        """A file's copy has ended."""
        self.active[file.link] -= 1
        if not self.active[file.link]:
            del self.active[file.link]

    def overdue(self, now: float) -> Iterator[FileRecord]:
        """Files that have waited for longer than their job allows."""
        while self._deadlines and self._deadlines[0][0] <= now:
            file = heappop(self._deadlines)[2]
            if file.state in (FileState.SUBMITTED, FileState.ON_HOLD):
                yield file

    def links(self) -> dict[Link, tuple[int, int]]:
        """Of each link with files: how many are active, how many wait."""
        waiting = Counter(
            {
                link: sum(file.state is FileState.SUBMITTED for _, _, file in queue)
                for link, queue in self._waiting.items()
            }
        )
        waiting.update(file.link for _, _, file in self._later if file.state is FileState.SUBMITTED)
        return {link: (self.active[link], waiting[link]) for link in {*self.active, *waiting}}
