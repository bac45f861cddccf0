"""Begin the next pass of a night that is still open, as a run of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowSkipException, DagRunTriggerException

from hooks.cause import why_no_build
from include.dag_runs import PASS
from operators.base import NightshiftOperator, clock

if TYPE_CHECKING:
    from airflow.sdk import Context


class StartNextPassOperator(NightshiftOperator):
    """Starts the run of the next pass of the night, unless this was the last one, or that run is there already.

    The next run's id follows from the night alone, so that a retry or a cleared task starts it once. It gets the time
    when the night ends, and waits for some minutes first if this run made no plan. Skipped where the night ends.

    Args:
        night: What `BuildSensor` returned; None: it found no night.
        plan: The id of the task that planned this pass.
        **kwargs: Those of every operator.
    """

    template_fields = ("night",)
    ui_color = "#e6f1f2"

    def __init__(self, *, night: Any, plan: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.night = night
        self.plan = plan

    def execute(self, context: Context) -> NoReturn:
        from include.nightlies.rules.passes import ELSEWHERE, Pass
        from include.nightlies.steps.values import Night

        if self.night is None:
            raise AirflowSkipException(why_no_build(context))
        if ELSEWHERE in self.night:
            raise AirflowSkipException(f"the night goes on in run {self.night[ELSEWHERE]}")
        night = Night.from_json(self.night)
        if night.last:
            raise AirflowSkipException("the night ends with this pass")
        turn = Pass.from_json(self.night["pass"])
        planned = context["ti"].xcom_pull(task_ids=self.plan, key="return_value") is not None
        following = turn.following(planned=planned, now=clock())
        given = {name: value for name, value in dict(context["params"]).items() if value is not None}
        until = turn.until.isoformat(" ", "minutes") if turn.until else "now"
        start_once(
            context["dag"].dag_id,
            following.run_id(night.date),
            conf={**given, "build_date": night.date.isoformat(), PASS: following.to_json()},
            note=f"Pass {following.number} of the night of {night.date}, slot {night.slot}, after {context['run_id']}: "
            f"waits for what is new in the index, until {until} at most.",
        )


def start_once(dag_id: str, run_id: str, *, conf: Mapping[str, Any], note: str) -> NoReturn:
    """End the task that calls this by having Airflow start the run; skipped if a run of that id is there already.

    No task waits for the run.

    Args:
        dag_id: The DAG of the run.
        run_id: The id of the run.
        conf: The parameters of the run, as JSON.
        note: What people read on the run's page.

    Raises:
        DagRunTriggerException: Always; Airflow starts the run by it.
    """
    raise DagRunTriggerException(
        trigger_dag_id=dag_id,
        dag_run_id=run_id,
        conf=dict(conf),
        reset_dag_run=False,
        skip_when_already_exists=True,
        wait_for_completion=False,
        allowed_states=[],
        failed_states=[],
        poke_interval=0,
        deferrable=False,
        note=note,
    )
