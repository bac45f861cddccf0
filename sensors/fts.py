"""Wait for jobs of an FTS server; the waiting is done by the triggerer, which asks for all of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from include.fts.errors import FTS_JOB_FAILED, JobUnknown
from sensors.base import WaitSensor
from triggers.checks import Observation

__all__ = ["FtsJobSensor"]


class FtsJobSensor(WaitSensor):
    """Succeeds once all jobs have ended, each with all its files copied. Returns their states by id.

    It cancels nothing. A job that FTS has moved to its archive is found there.

    Args:
        job_ids: The ids of the jobs: one, or a list.
        fts_conn_id: A connection of type `fts`.
        allow_failed: Whether to succeed whatever became of the jobs; otherwise the task fails if one failed.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.

    Raises:
        FtsError: A job failed, was canceled, or is not known.
    """

    template_fields: Sequence[str] = ("job_ids", "fts_conn_id")
    check = "fts-jobs"

    def __init__(
        self,
        *,
        job_ids: Any,
        fts_conn_id: str = "fts_default",
        allow_failed: bool = False,
        timeout: float = 12 * 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.job_ids = job_ids
        self.fts_conn_id = fts_conn_id
        self.allow_failed = allow_failed

    def arguments(self) -> dict[str, Any]:
        job_ids = [self.job_ids] if isinstance(self.job_ids, str) else list(self.job_ids)
        return {"fts_conn_id": self.fts_conn_id, "job_ids": job_ids}

    def _look(self) -> Observation:
        answer = super()._look()
        if answer.ready:
            self._require_finished(answer.result)
        return answer

    def _require_finished(self, states: Mapping[str, str | None]) -> None:
        from include.fts.states import JobState

        for job_id, state in states.items():
            if state is None:
                raise JobUnknown(f"FTS job {job_id}: the server and its archive do not know it", job_id=job_id)
            if state != JobState.FINISHED.value and not self.allow_failed:
                raise FTS_JOB_FAILED(f"FTS job {job_id} is {state}; {FTS_JOB_FAILED.hint}", job_id=job_id)
