"""The quality gate of a night: its index before anything is published, its build before links move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from hooks.cause import PLAN, first_cause, reason_kept, why_no_build
from operators.base import NightshiftOperator, attempt_of
from operators.links import QualityLink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.sdk import Context

    from include.nightlies.records.quality import QualityRecord


class CheckIndexOperator(NightshiftOperator):
    """Judges the index of a night's build by the suite `index`; fails if the suite blocks and found something.

    Returns the verdict by suite; nothing where the slot has no such suite, and then nothing is imported for it.

    :param night: the night that `BuildSensor` found.
    """

    template_fields = ("night",)
    operator_extra_links = (QualityLink(),)
    ui_color = "#ede9fe"

    def __init__(self, *, night: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.night = night

    def execute(self, context: Context) -> dict[str, str]:
        from include.nightlies.steps.values import Night
        from include.quality.check import check_index

        night, site, attempt = Night.from_json(self.night), self.site(), attempt_of(context)
        with reason_kept(context):
            accepted = reason_given(context)
            return verdicts(self.outlasting(site, lambda: check_index(site, attempt, night, accepted=accepted)))


class CheckBuildOperator(NightshiftOperator):
    """Judges a night's build by the suites `published`, `night` and `growth`; fails if one blocks and found something.

    Skipped where there is nothing to judge: before the night's last pass, in a dry run, and where nothing was planned.

    :param night: the night that `BuildSensor` found.
    """

    template_fields = ("night",)
    operator_extra_links = (QualityLink(),)
    ui_color = "#ede9fe"

    def __init__(self, *, night: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.night = night

    def execute(self, context: Context) -> dict[str, str]:
        from include.nightlies.rules.begin import ELSEWHERE
        from include.nightlies.steps.values import Night
        from include.quality.check import check_build

        if self.night is None:
            raise AirflowSkipException(why_no_build(context))
        if ELSEWHERE in self.night:
            raise AirflowSkipException(f"the night goes on in run {self.night[ELSEWHERE]}")
        night = Night.from_json(self.night)
        if not night.last or night.dry_run:
            raise AirflowSkipException("dry run" if night.dry_run else "the night's last pass judges the build")
        if context["ti"].xcom_pull(task_ids=PLAN, key="return_value") is None:
            raise AirflowSkipException(first_cause(context) or "nothing was planned; the log of task plan says why")
        site, attempt = self.site(), attempt_of(context)
        accepted = reason_given(context)
        return verdicts(self.outlasting(site, lambda: check_build(site, attempt, night, accepted=accepted)))


def reason_given(context: Context) -> str:
    """Why a person accepts what suites find in this run; "" if nobody does."""
    return str(context["params"].get("accept_quality") or "").strip()


def verdicts(found: Iterable[QualityRecord]) -> dict[str, str]:
    """What a task returns: each suite, its verdict and its reason."""
    return {one.suite.value: f"{one.verdict.value}: {one.reason}" for one in found}
