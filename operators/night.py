"""The steps of a night: its begin by an event or a pass, its plan, the check of what was published, and its event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Asset, AssetAlias, AssetWatcher, Context
from airflow.sdk.exceptions import AirflowSkipException, DagRunTriggerException

from hooks.task import PLAN, first_cause, reason_kept, run_name, why_no_build
from include.cvmfs.errors import CollectionRunning
from include.dag_runs import PASS
from include.gateway.errors import PathBusy
from include.nightlies.errors import GateClosed
from include.nightlies.rules.passes import ELSEWHERE, Pass, by_artifact, dates, first_pass, tick_of
from include.nightlies.steps.values import Night, PublicationRequest
from include.settings.model import Slot
from operators.base import NightshiftOperator, attempt_of, clock
from operators.lease_task import Done, LeaseTaskOperator, Waiting
from operators.links import NightLink, QualityLink
from triggers.night import FirstArtifactTrigger

if TYPE_CHECKING:
    from include.nightlies.records.quality import QualityRecord
    from include.site.site import Site


INHERITED = "inherited"
"""The key under which a plan hands on what a partial build takes from another one."""


class NightOperator(NightshiftOperator):
    """Base of the tasks of a night.

    Args:
        night: What `BuildSensor` returned, a night as a mapping; None: it found none.
        **kwargs: Those of every operator.
    """

    template_fields: Sequence[str] = ("night",)

    def __init__(self, *, night: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.night = night

    def night_here(self, context: Context) -> Night:
        """Return the night of this run.

        Args:
            context: The context of the task.

        Returns:
            The night.

        Raises:
            AirflowSkipException: The sensor found no night, or the night goes on in another run.
        """
        if self.night is None:
            raise AirflowSkipException(why_no_build(context))
        if ELSEWHERE in self.night:
            raise AirflowSkipException(f"the night goes on in run {self.night[ELSEWHERE]}")
        return Night.from_json(self.night)


class PlanNightOperator(NightOperator):
    """Reads a build's index, records it in the ledger and hands on the batches to publish, in their order.

    What a partial build takes from another one is handed on under the key `inherited`, for `InheritArtifactsOperator`.
    """

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.plan import plan_night

        night = Night.from_json(self.night)
        with reason_kept(context):
            site, this_try = self.site(), attempt_of(context)
            plan = self.outlasting(site, lambda: plan_night(site, this_try, night))
        context["ti"].xcom_push(key=INHERITED, value=plan.inherited.to_json() if plan.inherited else {})
        return [batch.to_json() for batch in plan.batches]


class PlanPublicationOperator(NightshiftOperator):
    """Plans one tree or tarball from the run's parameters: repository, path, source, tag, mode, dry run."""

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.plan import plan_publication

        params = context["params"]
        with reason_kept(context):
            site, this_try = self.site(), attempt_of(context)
            request = PublicationRequest(
                params["repository"],
                params["path"],
                params["source"],
                sha256=params.get("sha256"),
                tag=params.get("tag"),
                overwrite=params["mode"] == "replace",
                dry_run=bool(params["dry_run"]),
            )
            plan = self.outlasting(site, lambda: plan_publication(site, this_try, request))
        return [batch.to_json() for batch in plan.batches]


class CheckCompletenessOperator(NightOperator):
    """Fails the run if the ledger misses anything that the run had to publish; whatever came before.

    Of a night that goes on only what this very pass took is checked. With a night, what its slot requires counts too,
    and the reason why the slot's links stay is recorded. A dry run is skipped here, so that nothing after it happens.

    Args:
        of_night: Whether the run is one of a night, which fails without `night`.
        **kwargs: `night`, and those of every operator.
    """

    operator_extra_links = (NightLink(),)
    ui_color = "#fee2e2"

    def __init__(self, *, of_night: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.of_night = of_night

    def execute(self, context: Context) -> dict[str, Any]:
        from include.nightlies.steps.gate import gate, gate_of_pass

        run = run_name(context)
        if self.of_night and self.night is None:
            raise GateClosed(run, [why_no_build(context)])
        night = self.night_here(context) if self.night is not None else None
        if night is not None and not night.last:
            planned = context["ti"].xcom_pull(task_ids=PLAN, key="return_value") is not None
            site = self.site()
            slot = site.settings.slot(night.slot)
            gate_of_pass(site.ledger, run, slot, planned=planned, cause=first_cause(context))
            raise AirflowSkipException(f"the night goes on after pass {night.number}; its last pass checks all of it")
        dry_run = bool(context["params"].get("dry_run"))
        cause = first_cause(context)
        passed = gate(self.site(), attempt_of(context), night=night, dry_run=dry_run, cause=cause)
        self.log.info("passed: %s", passed.to_json())
        if passed.dry_run:
            raise AirflowSkipException("dry run: nothing was published, and no message is sent")
        return passed.to_json()


class CheckIndexOperator(NightOperator):
    """Judges the index of a night's build by the suite `index`; fails if the suite blocks and found something.

    Returns the verdict by suite; nothing where the slot has no such suite, and then nothing is imported for it.
    """

    operator_extra_links = (QualityLink(),)
    ui_color = "#ede9fe"

    def execute(self, context: Context) -> dict[str, str]:
        from include.quality.check import check_index

        night, site, this_try = Night.from_json(self.night), self.site(), attempt_of(context)
        with reason_kept(context):
            accepted = reason_given(context)
            return verdicts(self.outlasting(site, lambda: check_index(site, this_try, night, accepted=accepted)))


class CheckBuildOperator(NightOperator):
    """Judges a night's build by the suites `published`, `night` and `growth`; fails if one blocks and found something.

    Skipped where there is nothing to judge: before the night's last pass, in a dry run, and where nothing was planned.
    """

    operator_extra_links = (QualityLink(),)
    ui_color = "#ede9fe"

    def execute(self, context: Context) -> dict[str, str]:
        from include.quality.check import check_build

        night = self.night_here(context)
        if not night.last or night.dry_run:
            raise AirflowSkipException("dry run" if night.dry_run else "the night's last pass judges the build")
        if context["ti"].xcom_pull(task_ids=PLAN, key="return_value") is None:
            raise AirflowSkipException(first_cause(context) or "nothing was planned; see the log of task plan")
        site, this_try = self.site(), attempt_of(context)
        accepted = reason_given(context)
        return verdicts(self.outlasting(site, lambda: check_build(site, this_try, night, accepted=accepted)))


class SetLinksOperator(LeaseTaskOperator, NightOperator):
    """Lets the slot's links lead to the build and gives its revision its name; forward only, to what is whole only.

    Waits for busy paths in the triggerer. Returns what became of each link, with its reason.
    """

    operator_extra_links = (NightLink(),)
    ui_color = "#fef9c3"

    def attempt(self, context: Context, site: Site) -> Done | Waiting:
        from include.nightlies.steps.links import build_of_night, keep_links, link_night

        if self.night is None:
            raise AirflowSkipException(f"no link is moved: {why_no_build(context)}")
        night = Night.from_json(self.night)
        build = build_of_night(site.ledger, night)
        attempt = attempt_of(context)
        try:
            linked = link_night(site, attempt, night, build)
        except (PathBusy, CollectionRunning) as busy:
            keep = partial(keep_links, site, attempt, night, build)
            return Waiting({"links": busy}, lambda _, why: keep(why))
        return Done(linked.to_json())


class AnnounceBuildOperator(NightOperator):
    """Notifies those that wait for the slot's builds, as an event of its asset; the last task, after the links.

    Args:
        passed: What `CheckCompletenessOperator` returned; None: it failed or was skipped.
        linked: What `SetLinksOperator` returned; None: it was skipped.
        **kwargs: `night`, and those of every operator.
    """

    template_fields = ("night", "passed", "linked")
    operator_extra_links = (NightLink(),)
    ui_color = "#dcfce7"

    def __init__(self, *, passed: Any, linked: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.passed = passed
        self.linked = linked

    def execute(self, context: Context) -> dict[str, Any]:
        if self.night is None or self.passed is None:
            marked = "task gate did not pass the run itself; clear it with downstream"
            why = marked if self.night else why_no_build(context)
            raise AirflowSkipException(f"no event is sent: {why}")
        told = {**self.passed, **(self.linked or {"links": {}})}
        if told["revision"] is None or (self.passed["revision"] or 0) > told["revision"]:
            told["revision"] = self.passed["revision"]
        events, slot = context["outlet_events"], Night.from_json(self.night).slot
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                events[outlet].extra = told
            elif isinstance(outlet, AssetAlias):
                events[outlet].add(slot_asset(slot), extra=told)
        self.log.info("event emitted: %s", told)
        return told


def reason_given(context: Context) -> str:
    """Return a person's reason to accept the findings of suites in this run; "" if none is given."""
    return str(context["params"].get("accept_quality") or "").strip()


def verdicts(records: Iterable[QualityRecord]) -> dict[str, str]:
    """Return the result of a task: each suite, its verdict and its reason."""
    return {record.suite.value: f"{record.verdict.value}: {record.reason}" for record in records}


def slot_asset(slot: str) -> Asset:
    """Return the asset of a slot's published builds."""
    return Asset(name=f"nightlies_{slot}", uri=f"nightshift://slots/{slot}", group="nightlies")


class StartNextPassOperator(NightOperator):
    """Starts the run of the next pass of the night, unless this was the last one, or that run is there already.

    The next run's id follows from the night alone, so that a retry or a cleared task starts it once. It gets the time
    when the night ends, and waits for some minutes first if this run made no plan. Skipped where the night ends.

    Args:
        plan: The id of the task that planned this pass.
        **kwargs: `night`, and those of every operator.
    """

    ui_color = "#e6f1f2"

    def __init__(self, *, plan: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> NoReturn:
        night = self.night_here(context)
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


def index_asset(slot: Slot) -> Asset:
    """A slot's indices as an asset of Airflow; a program that writes one may report so (docs/formats.md)."""
    watcher = AssetWatcher(name=f"first_{slot.name}", trigger=FirstArtifactTrigger(slot.name, slot.poll_s))
    return Asset(
        name=f"index_{slot.name}",
        uri=f"nightshift://indices/{slot.name}",
        group="indices",
        watchers=[watcher] if by_artifact(slot) else [],
    )


class ReadIndexEventsOperator(NightshiftOperator):
    """Hands on the build dates whose night the run's events begin; none where the slot begins by its schedule.

    An event names its build date in `extra`, as `{"date": "2026-11-21"}`; without one this day's is meant. The passes
    of a night that wait already have seen this run, and check the index in this moment.

    Args:
        slot: The slot's name in the site configuration.
        **kwargs: Those of every operator.
    """

    ui_color = "#e6f1f2"

    def __init__(self, *, slot: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slot = slot

    def execute(self, context: Context) -> list[str]:
        slot, now = self.site().settings.slot(self.slot), clock()
        if not by_artifact(slot):
            self.log.info("nights of slot %s begin by their schedule; what waits looks now", slot.name)
            return []
        today, tomorrow = dates(slot, now)
        begun = []
        for day in sorted(self._dates(context["triggering_asset_events"], today)):
            tick = tick_of(slot, day)
            if not today - timedelta(days=1) <= day <= tomorrow:
                self.log.warning("%s is not tonight; to install it, run nightly_install_%s by hand", day, slot.name)
            elif tick is not None and self._is_there(context, tick):
                self.log.info("the night of %s has begun by its schedule", day)
            else:
                begun.append(day.isoformat())
        return begun

    def _dates(self, events: Mapping[Any, Iterable[Any]], today: date) -> set[date]:
        running = set()
        for event in (asset_event for of_asset in events.values() for asset_event in of_asset):
            extra = dict(event.extra or {})
            given = extra.get("date") or dict(extra.get("payload") or {}).get("date")
            try:
                running.add(date.fromisoformat(given) if given else today)
            except (TypeError, ValueError):
                self.log.warning("an event has an invalid date %r; write YYYY-MM-DD", given)
        return running

    def _is_there(self, context: Context, tick: Any) -> bool:
        ti: Any = context["ti"]
        return bool(ti.get_dr_count(dag_id=f"nightly_install_{self.slot}", logical_dates=[tick]))


class BeginNightOperator(NightshiftOperator):
    """Starts the first run of a night, with the cut-off that it has; skipped if that run is there already.

    Args:
        slot: The slot's name in the site configuration.
        day: The build date, as `YYYY-MM-DD`; empty: the task is skipped.
        **kwargs: Those of every operator.
    """

    template_fields = ("day",)
    ui_color = "#e6f1f2"

    def __init__(self, *, slot: str, day: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slot = slot
        self.day = day

    def execute(self, context: Context) -> NoReturn:  # noqa: ARG002
        if not self.day:
            raise AirflowSkipException("nothing to begin")
        day = date.fromisoformat(self.day)
        turn = first_pass(self.site().settings.slot(self.slot), day, clock())
        start_once(
            f"nightly_install_{self.slot}",
            turn.first,
            conf={"build_date": self.day, PASS: turn.to_json()},
            note=f"The night of {day}, slot {self.slot}, began with its first artifact; it ends at {turn.until}.",
        )
