"""DAGs that are paused and should not be: Airflow is silent about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from include.airflow_api import site_api
from include.care.preflight.findings import Finding, Severity
from include.care.preflight.stores import TIMEOUT_S
from include.dag_runs import UNPAUSE
from include.nightlies.rules.begin import by_artifact
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets


def needed(settings: SiteSettings, slots: Iterable[str] | None = None) -> dict[str, str]:
    """The DAGs that have to be unpaused, with what does not happen while they are not; of these slots only."""
    found = {}
    for name in sorted(settings.slots if slots is None else slots):
        slot = settings.slot(name)
        if slot.schedule:
            found[f"nightly_install_{name}"] = f"no night of slot {name} begins"
        if by_artifact(slot):
            found[f"nightly_install_{name}"] = f"no night of slot {name} begins"
            found[f"index_events_{name}"] = f"no artifact begins a night of slot {name}"
    if settings.slots:
        found["night_watch"] = "no alert is sent for a night that is late or did not start"
        found["preflight"] = "no check before a night whether it could run"
    if settings.collection_schedule and any(
        repository.garbage_collectable for repository in settings.repositories.values()
    ):
        found["nightly_gc"] = "no build expires and no garbage is collected"
    if settings.repositories:
        found["leases"] = "leases of dead tasks are not ended"
        found["repository_care"] = "no alert is sent for damage or for a whitelist that ends"
    if settings.sites:
        found["stage_out_submit"] = "no file is handed to FTS"
        found["stage_out_monitor"] = "no transfer is verified or tried again"
        found["stage_out_read_back"] = "no large copy of a site without checksums is verified"
        found["stage_out_finish"] = "no file is registered and no source is removed"
        found["stage_out_census"] = "nothing finds what is stuck, and runs of every minute stay"
        found["stage_out_analytics"] = "no figures of transfers are kept"
    return found


def started_by_hand(settings: SiteSettings) -> dict[str, str]:
    """The DAGs that people and pages start, with what does not happen while they are paused."""
    found = {
        f"nightly_install_{name}": f"a run of slot {name} that is started by hand stays queued"
        for name, slot in settings.slots.items()
        if not slot.schedule and not by_artifact(slot)
    }
    if settings.slots:
        found["nightly_install"] = "a night that is installed again by the page stays queued"
        found["undo_build"] = "a build that is undone by the page stays"
    if settings.repositories:
        found["intervene"] = "a freeze, thaw or redo by the page changes nothing"
        found["publication"] = "what is published by hand stays queued"
        found["rollback"] = "a rollback that is started stays queued"
    return found


def look_at_paused(settings: SiteSettings, secrets: Secrets, slots: Iterable[str] | None = None) -> Iterator[Finding]:
    """Compare what has to be unpaused with Airflow. Where it cannot be asked, the check of pools reports that."""
    if settings.airflow_connection is None:
        return
    paused = site_api(settings, secrets, timeout_s=TIMEOUT_S).paused()
    by_hand = {dag_id: what for dag_id, what in started_by_hand(settings).items() if paused.get(dag_id)}
    yield from judged_paused(needed(settings, slots) | by_hand, paused)


def judged_paused(wanted: Mapping[str, str], paused: Mapping[str, bool]) -> Iterator[Finding]:
    """What is paused. A DAG that Airflow has not read yet is paused once it has."""
    for dag_id, what in wanted.items():
        if paused.get(dag_id, True):
            yield Finding("dag", dag_id, Severity.WARNING, f"is paused: {what}", f"Run: {UNPAUSE} {dag_id}")
        else:
            yield Finding("dag", dag_id, Severity.OK, "is not paused")
