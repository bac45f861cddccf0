"""`storage_benchmark` and `federation_benchmark`: measure storage, and reading at a distance, against a baseline.

The file only declares. The two differ in their targets and presets.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule

from include.benchmarks.campaign.presets import PRESETS
from include.settings.benchmarks import BenchmarkSettings, TargetKind
from include.settings.load import load
from include.settings.scheduling import CAMPAIGN
from operators.base import NightshiftOperator
from operators.benchmark import (
    APPROVE_TASK,
    ApproveBenchmarkOperator,
    JudgeBenchmarkOperator,
    PlanBenchmarkOperator,
    RemoveBenchmarkDataOperator,
    StorageBenchmarkOperator,
)
from operators.params import choice
from operators.publishing import dag_defaults
from sensors.ceph import CephHealthSensor

RECOVERY_S = 2 * 3600.0
TASKS = """
| task | what it does |
|---|---|
| `plan` | plans a campaign within the limits and marks of its target, and changes nothing |
| `approve` | asks before a preset that fills a target, creates pools or stops servers; any other goes on at once |
| `healthy` | waits until the Ceph cluster of the target, if it has one, has recovered from all that happened to it |
| `measure` | runs the steps; cleared or tried again, it goes on with the first step that has no result |
| `recovered` | waits until the cluster has recovered from the campaign |
| `judge` | compares the campaign with its baseline and requirements, and writes its report |
| `remove_data` | starts what was stopped and removes what the plan lists, whatever became of the other tasks |
"""
DOC = f"""
### Measure storage
{TASKS}
`benchmarks:` of the configuration has the targets, with what campaigns may do to each. `nightly:` there begins one
campaign by itself. One campaign runs at a time (pool `benchmark`).

`judge` fails if a figure regressed, a requirement is missed or parts of the campaign are missing. Without a baseline,
and with too few rounds for the noise of the target, the verdict is `inconclusive`, and the run succeeds. A baseline is
accepted by `nightshift storage-benchmark accept`. More is in docs/storage-benchmarks.md.
"""
DISTANT_DOC = f"""
### Measure reading at a distance

As `storage_benchmark`, for targets of the kind `endpoint`: a file is read by tools and by our reader, against the round
trip. Where the target has a link whose delay can be set, the round trip is set and measured before each step.
{TASKS}
More is in docs/federation.md.
"""


def storage_benchmark(settings: BenchmarkSettings) -> DAG | None:
    """The DAG for the storage of a deployment; None if it has no target for it."""
    kinds = frozenset(TargetKind) - {TargetKind.ENDPOINT}
    return _dag(
        settings, kinds, dag_id="storage_benchmark", dag_display_name="Storage benchmark", doc_md=DOC,
        description="Measure storage and compare it with its baseline", preset="hlt2-uncontrolled", minutes=15,
    )  # fmt: skip


def federation_benchmark(settings: BenchmarkSettings) -> DAG | None:
    """The DAG for the endpoints of a deployment; None if it has none."""
    return _dag(
        settings, frozenset({TargetKind.ENDPOINT}), dag_id="federation_benchmark", doc_md=DISTANT_DOC,
        dag_display_name="Federation benchmark", preset="cms-transfer", minutes=60,
        description="Measure reading at a distance and compare it with its baseline",
    )  # fmt: skip


def _dag(
    settings: BenchmarkSettings, kinds: frozenset[TargetKind], *, preset: str, minutes: int, **named: Any
) -> DAG | None:
    targets = [name for name, target in settings.targets.items() if TargetKind(target.kind) in kinds]
    presets = {name: item for name, item in PRESETS.items() if item.targets & kinds}
    if not targets:
        return None
    nightly = settings.nightly if settings.nightly and settings.nightly.target in targets else None
    target = choice(targets, title="Target", description="A target of the configuration.")
    if nightly is not None:
        target = Param(
            nightly.target, title="Target", type="string", enum=sorted(targets),
            description="A target of the configuration.",
        )  # fmt: skip
    dag = DAG(
        **named,
        max_active_runs=4,
        dagrun_timeout=timedelta(hours=36),
        **dag_defaults(nightly.schedule if nightly else None, priority=1),
        params={
            "target": target,
            "preset": Param(
                nightly.preset if nightly else preset,
                title="Preset",
                type="string",
                enum=sorted(presets),
                values_display={name: f"{name}: {item.title}" for name, item in presets.items()},
                description="What is measured.",
            ),
            "scale": Param(
                nightly.scale if nightly else 0.01,
                title="Scale",
                type="number",
                exclusiveMinimum=0,
                maximum=1,
                description="One factor for streams and sizes; 1: those of the source, or at a distance all steps.",
            ),
            "rounds": Param(
                None,
                title="Rounds",
                type=["null", "integer"],
                minimum=1,
                maximum=50,
                description="How often each step is repeated. Empty: as the configuration says.",
            ),
            "most_rounds": Param(
                None,
                title="Rounds at most",
                type=["null", "integer"],
                minimum=1,
                maximum=50,
                description="Up to so many while the verdict is open. Empty: `rounds`, else as the configuration says.",
            ),
            "minutes": Param(
                nightly.minutes if nightly else minutes,
                title="Minutes",
                type="integer",
                minimum=1,
                maximum=1440,
                description="For all steps together; the target's own limit holds as well.",
            ),
            "budget_gb": Param(
                None,
                title="Budget (GB)",
                type=["null", "number"],
                exclusiveMinimum=0,
                description="To write at most in all steps together. Empty: the target's limit.",
            ),
        },
        tags=["benchmarks"],
    )
    with dag:
        plan = PlanBenchmarkOperator(
            task_id="plan",
            task_display_name="Plan the campaign",
            doc_md="Plans the steps within limits and marks; the target is not changed.",
        )
        approve = _task(
            ApproveBenchmarkOperator,
            plan,
            APPROVE_TASK,
            "Wait for approval",
            "Asks before presets with marks of their own; any other goes on at once.",
        )
        healthy = CephHealthSensor(
            task_id="healthy",
            task_display_name="Wait for a healthy cluster",
            target="{{ params.target }}",
            timeout=RECOVERY_S,
            doc_md="Waits until all placement groups are active and clean, where there is a cluster.",
        )
        measure = _task(
            StorageBenchmarkOperator,
            plan,
            "measure",
            "Run the steps",
            "Runs the steps that have no result yet.",
            pool="benchmark",
            execution_timeout=CAMPAIGN,
        )
        recovered = CephHealthSensor(
            task_id="recovered",
            task_display_name="Wait for the recovery",
            target="{{ params.target }}",
            timeout=RECOVERY_S,
            trigger_rule=TriggerRule.ALL_DONE,
            doc_md="As before the campaign; servers that it has stopped start by themselves if it was killed.",
        )
        judge = _task(
            JudgeBenchmarkOperator,
            plan,
            "judge",
            "Judge and report",
            "Compares the figures with the baseline and writes the report.",
        )
        remove_data = _task(
            RemoveBenchmarkDataOperator, plan, "remove_data", "Remove the data",
            "Starts what was stopped and removes what the plan lists, also after failed tasks.",
            execution_timeout=timedelta(hours=2),
        )  # fmt: skip
        approve >> healthy >> measure >> recovered >> judge
        measure >> remove_data.as_teardown()
    return dag


def _task(
    operator: type[NightshiftOperator], plan: PlanBenchmarkOperator, task_id: str, title: str, doc: str, **more: Any
) -> NightshiftOperator:
    """A task on the planned campaign."""
    return operator(task_id=task_id, task_display_name=title, doc_md=doc, campaign=plan.output, **more)


_settings = load().benchmarks
storage_benchmark_dag, federation_benchmark_dag = storage_benchmark(_settings), federation_benchmark(_settings)
