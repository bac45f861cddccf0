"""The first and the last step of a run: what there is to publish, and whether all of it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowSkipException

from hooks.site import run_name
from operators.base import NightshiftOperator, clock

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.nightlies.steps.gate import Passed


class NightPlanOperator(NightshiftOperator):
    """Reads a build's index, records it in the ledger and hands on the batches to publish, in their order.

    :param night: the night that `BuildSensor` found.
    """

    template_fields = ("night",)
    ui_color = "#e0e7ff"

    def __init__(self, *, night: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.night = night

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.plan import plan_night
        from include.nightlies.steps.values import Night

        night = Night.from_json(self.night)
        plan = plan_night(self.connections(), night, try_number=context["ti"].try_number, clock=clock)
        return [batch.to_json() for batch in plan.batches]


class PublicationPlanOperator(NightshiftOperator):
    """Plans one tree or tarball from the run's parameters: repository, path, source, tag, mode, dry run."""

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.plan import plan_publication

        params = context["params"]
        plan = plan_publication(
            self.connections(),
            run=run_name(context),
            repository=params["repository"],
            path=params["path"],
            source=params["source"],
            try_number=context["ti"].try_number,
            clock=clock,
            sha256=params.get("sha256"),
            tag=params.get("tag"),
            overwrite=params["mode"] == "replace",
            dry_run=bool(params["dry_run"]),
        )
        return [batch.to_json() for batch in plan.batches]


class GateOperator(NightshiftOperator):
    """Fails the run if the ledger misses anything that the run had to publish; the last task, whatever came before.

    :param night: the night of the run, if it was one; then what its slot requires counts too. A run that passes emits
        its `outlets`; a dry run is skipped here, so that it emits nothing.
    """

    template_fields = ("night",)
    ui_color = "#fee2e2"

    def __init__(self, *, night: Any = None, of_night: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.night = night
        self.of_night = of_night

    def execute(self, context: Context) -> dict[str, Any]:
        from include.nightlies.steps.errors import GateClosed
        from include.nightlies.steps.gate import gate
        from include.nightlies.steps.values import Night

        run = run_name(context)
        if self.of_night and self.night is None:
            raise GateClosed(run, ["no build was found; see the task that looks for it"])
        night = Night.from_json(self.night) if self.night is not None else None
        passed = gate(self.connections(), run, night=night, dry_run=bool(context["params"].get("dry_run")))
        self.log.info("passed: %s", passed.to_json())
        if passed.dry_run:
            raise AirflowSkipException("dry run: nothing was published, and nobody is told")
        self._tell(context, passed, night.slot if night is not None else None)
        return passed.to_json()

    def _tell(self, context: Context, passed: Passed, slot: str | None) -> None:
        events = context["outlet_events"]
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                events[outlet].extra = passed.to_json()
            elif isinstance(outlet, AssetAlias) and slot is not None:
                events[outlet].add(slot_asset(slot), extra=passed.to_json())


def slot_asset(slot: str) -> Asset:
    """What a published build of a slot is called among Airflow's assets."""
    return Asset(name=f"nightlies_{slot}", uri=f"nightshift://slots/{slot}", group="nightlies")
