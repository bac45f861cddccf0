"""Storage benchmarks as tasks: a campaign is planned, approved where it has to be, run, judged and cleaned up."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from hooks.task import default_deferrable
from include.benchmarks.errors import AREA_FOREIGN, CAMPAIGN_FAILED, PLAN_REFUSED, TARGET_BUSY, BenchmarkError
from operators.approve import APPROVE, REJECT
from operators.base import NightshiftOperator, clock
from operators.links import BenchmarkDocsLink, BenchmarkReportLink
from triggers.poll import PollTrigger

if TYPE_CHECKING:
    from include.benchmarks.campaign.folder import StepRecord

GB = 10**9
BUSY_PAUSE = timedelta(minutes=1)
ANSWER_WITHIN = timedelta(hours=4)
APPROVE_TASK, REFUSED = "approve", "refused"
"""The task that asks for approval, and the key under which it leaves why there is none."""
BY_HAND = "manual"


class PlanBenchmarkOperator(NightshiftOperator):
    """Plans a campaign by the parameters of the run, within limits and marks; the target is not changed.

    Data of campaigns that were left for a day are removed before. Returns the id of the campaign.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> str:
        from include.benchmarks.campaign.campaigns import begin_campaign, clean_up_forgotten
        from include.benchmarks.campaign.plan import CampaignWish, find_preset, shown_bytes, shown_time

        params, site = context["params"], self.site()
        run_type = context["dag_run"].run_type
        if str(getattr(run_type, "value", run_type)) != BY_HAND and find_preset(params["preset"]).marks:
            raise PLAN_REFUSED(params["preset"], "it needs its own mark, and runs by hand only")
        budget = params.get("budget_gb")
        rounds, most = site.settings.benchmarks.rounds_of(params.get("rounds"), params.get("most_rounds"))
        wish = CampaignWish(
            target=params["target"],
            preset=params["preset"],
            scale=float(params["scale"]),
            rounds=rounds,
            most_rounds=most,
            minutes=int(params["minutes"]),
            budget_bytes=None if budget is None else int(budget * GB),
        )
        try:
            for campaign in clean_up_forgotten(site, wish.target, now=clock()):
                self.log.warning("data of campaign %s were left on the target and are removed now", campaign)
        except BenchmarkError as error:
            if error.code != TARGET_BUSY.code:
                raise
            self.log.info("%s", error)
        folder = begin_campaign(site, wish, now=clock())
        plan = folder.record().plan
        for step in plan.steps:
            self.log.info("step %d: %s, round %d", step.number, step.load.name, step.round)
        self.log.info("at most: %s written, %s", shown_bytes(plan.bytes), shown_time(plan))
        return folder.id


class CampaignOperator(NightshiftOperator):
    """Base of the tasks of a campaign.

    Args:
        campaign: The id of the campaign, as `PlanBenchmarkOperator` returned it.
        **kwargs: Those of every operator.
    """

    template_fields: Collection[str] = ("campaign",)

    def __init__(self, *, campaign: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.campaign = campaign


class ApproveBenchmarkOperator(CampaignOperator, HITLOperator):
    """Asks a person before a preset that fills a target, creates pools or stops servers; any other goes on at once.

    Without a yes within four hours it is skipped, with what follows.

    Args:
        **kwargs: `campaign`, and those of every operator.
    """

    ui_color = "#ffedd5"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            subject="Run the benchmark?", options=[APPROVE, REJECT], response_timeout=ANSWER_WITHIN, **kwargs
        )  # fmt: skip

    def execute(self, context: Context) -> Any:
        from include.benchmarks.campaign.campaigns import find_campaign
        from include.benchmarks.campaign.plan import find_preset, shown_bytes, shown_time

        plan = find_campaign(self.site(), self.campaign).record().plan
        preset = find_preset(plan.wish.preset)
        if not preset.marks:
            return None
        self.subject = f"Run {preset.name} on {plan.wish.target}?"
        self.body = (
            f"{preset.title}. It needs the marks {', '.join(preset.marks)}. At most it writes "
            f"{shown_bytes(plan.bytes)} and takes {shown_time(plan)}."
        )
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Airflow hands over the answer, or reports that there was none by the deadline."""
        refused = None
        if "error" in event:
            if event["error_type"] != "timeout":
                self.process_trigger_event_error(event)
            refused = f"no answer within {ANSWER_WITHIN}"
        else:
            chosen = list(event["chosen_options"])
            self.validate_chosen_options(chosen)
            refused = None if chosen == [APPROVE] else "the answer is no"
        if refused is not None:
            context["ti"].xcom_push(key=REFUSED, value=refused)
            raise AirflowSkipException(refused)


class StorageBenchmarkOperator(CampaignOperator):
    """Runs what is left of a campaign. A further try goes on with the first step that has no result.

    While another campaign measures the target it waits in the triggerer. Programs that it started die with it. Data of
    the campaign stay on the target until `RemoveBenchmarkDataOperator` removes them. Returns how many steps have ended.

    Args:
        wait_limit_s: Seconds to wait for other campaigns in total.
        deferrable: Whether to wait in the triggerer; by default `default_deferrable` of Airflow's section
            `[operators]`.
        **kwargs: `campaign`, and those of every operator.
    """

    ui_color = "#fef3c7"

    def __init__(self, *, wait_limit_s: float = 6 * 3600.0, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wait_limit_s = wait_limit_s
        self.deferrable = default_deferrable() if deferrable is None else deferrable

    def execute(self, context: Context) -> int:  # noqa: ARG002 - Airflow's signature
        return self._measure(clock())

    def resume(self, context: Context, event: dict[str, Any]) -> int:  # noqa: ARG002 - Airflow's signature
        """The pause is over; whether the other campaign is, the next look finds out."""
        self.log.info("back from waiting: %s", event["reason"])
        return self._measure(datetime.fromisoformat(event["since"]))

    def _measure(self, since: datetime) -> int:
        from include.benchmarks.campaign.campaigns import find_campaign, measure

        site = self.site()
        folder = find_campaign(site, self.campaign)
        while True:
            try:
                measure(site, folder, each=self._log)
                return sum(1 for _ in folder.steps())
            except BenchmarkError as error:
                if error.code != TARGET_BUSY.code or clock() - since > timedelta(seconds=self.wait_limit_s):
                    raise
                self._wait(str(error), since)

    def _wait(self, why: str, since: datetime) -> None:
        self.log.info("%s Waiting for %s", why, BUSY_PAUSE)
        if self.deferrable:
            trigger = PollTrigger("pause", {}, (clock() + BUSY_PAUSE).isoformat(), since=since.isoformat())
            self.defer(trigger=trigger, method_name="resume")
        time.sleep(BUSY_PAUSE.total_seconds())

    def _log(self, ended: StepRecord) -> None:
        from include.benchmarks.campaign.plan import shown_bytes

        name = f"step {ended.step.number}, {ended.step.load.name}"
        if ended.result is None:
            self.log.warning("%s: %s", name, ended.error)
            return
        for load in ended.result.loads:
            speed = f"{shown_bytes(load.throughput)}/s, {load.rate:,.0f} operations/s"
            self.log.info("%s: %s %s, %d failed", name, load.access.value, speed, load.failed)


class JudgeBenchmarkOperator(CampaignOperator):
    """Judges a campaign as far as it got, checks its figures by Great Expectations, and writes report and Data Docs.

    Fails if it regressed, misses a requirement, or parts of it are missing. Skipped if approval was refused.

    Args:
        **kwargs: `campaign`, and those of every operator.
    """

    operator_extra_links = (BenchmarkReportLink(), BenchmarkDocsLink())
    ui_color = "#e0e7ff"

    def __init__(self, **kwargs: Any) -> None:
        # it is the leaf that decides on the run: it runs whatever became of the tasks before
        super().__init__(trigger_rule=TriggerRule.ALL_DONE, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        from include.benchmarks.campaign.campaigns import conclude, find_campaign
        from include.benchmarks.judge.judge import check_figures, fails

        if not self.campaign:
            raise CAMPAIGN_FAILED(str(context["run_id"]), "no campaign was planned")
        refused = context["ti"].xcom_pull(task_ids=APPROVE_TASK, key=REFUSED)
        if refused:
            raise AirflowSkipException(f"the campaign was not approved: {refused}")
        site = self.site()
        folder = find_campaign(site, self.campaign)
        concluded = conclude(site, folder)
        judged = concluded.judged
        for fault in check_figures(site.ledger, folder, judged, site.settings.benchmarks):
            self.log.warning("suite figures: %s", fault)
        told = {"campaign": judged.id, "verdict": judged.verdict.value, "reason": judged.reason}
        self.log.info("%s: %s; report %s", told["verdict"], told["reason"], concluded.report)
        for part in judged.missing:
            self.log.warning("missing: %s", part)
        for check in judged.requirements:
            self.log.info("requirement %s: %s: %s", check.step, check.text, "met" if check.met else "not met")
        if fails(judged) or judged.missing:
            unmet = [f"{check.step} {check.text}" for check in judged.requirements if not check.met]
            what = "; ".join([f"{judged.verdict.value}: {judged.reason}", *unmet, *judged.missing[:3]])
            raise CAMPAIGN_FAILED(judged.id, what)
        return {**told, "report": str(concluded.report)}


class RemoveBenchmarkDataOperator(CampaignOperator):
    """Removes what the campaign's plan lists from the target. What is not listed is left, and fails the task."""

    ui_color = "#fee2e2"

    def execute(self, context: Context) -> int:  # noqa: ARG002 - Airflow's signature
        from include.benchmarks.campaign.campaigns import clean_up, find_campaign

        if not self.campaign:
            raise AirflowSkipException("no campaign was planned")
        site = self.site()
        removal = clean_up(site, find_campaign(site, self.campaign))
        if removal.left:
            names = ", ".join(removal.left[:5])
            raise AREA_FOREIGN(self.campaign, f"it has {len(removal.left)} files that the plan does not list: {names}")
        return removal.removed
