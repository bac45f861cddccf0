"""Stage-out from nothing: services, users' files with faults, the DAGs under the real scheduler, the account."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy import Engine

from include.airflow_api import AirflowApi
from include.monitoring.airflow_checks import needed
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets
from include.site.bootstrap import found_stores
from include.site.site import Site
from include.stageout.blocks import close_workflow
from include.stageout.files import check_request
from include.stageout.requests import record_request
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.status import TransferFilter, TransferStatus, count_archived, count_transfers, list_transfers
from lab import lifecycle
from lab.environment import ADMIN, Lab
from lab.errors import NOT_THE_DEMONSTRATIONS, LabError
from lab.stageout.account import StageoutAccount, account_of
from lab.stageout.files import LINKS, USERS, LabFile, LabPlaces, planned, requests_of

DAG_APPEARS_S = 120.0
LONGEST_S = 1800.0
POLL_S = 2.0
PAGE = 1000
_VERIFIED = TRANSFER_ENDED | {TransferState.DONE, TransferState.REGISTERED, TransferState.CLEANING}

Say = Callable[[str], None]


def run_stageout(lab: Lab, settings: SiteSettings, secrets: Secrets, *, files: int, say: Say) -> StageoutAccount:
    """Transfer so many files of the lab's users, and check what became of each. The services stay up.

    Raises:
        LabError: The configuration lacks the sites of the lab, or the files have not ended in time.
    """
    absent = sorted({name for link in LINKS for name in link} - settings.sites.keys())
    if absent:
        cure = "It transfers files between the sites of config/site.yaml only: unset NIGHTSHIFT_CONFIG."
        raise NOT_THE_DEMONSTRATIONS(f"the configuration lacks the demonstration's sites {', '.join(absent)}. {cure}")
    lifecycle.up(lab, airflow=True, say=say)
    site = Site(settings, secrets)
    found_stores(site, {one.store for one in settings.sites.values() if one.store}, say=say)
    now = datetime.now(UTC)
    workflow = f"lab-{now:%Y%m%d-%H%M%S}"
    wanted = planned(settings, workflow, files, seed=int(now.timestamp()))
    places = LabPlaces(site)
    for file in wanted:
        places.put(file)
    faults = sum(file.fault is not None for file in wanted)
    say(f"{files} files at their sites, {faults} of them with a fault; workflow {workflow}")
    began = time.monotonic()
    _request(site.ledger, settings, workflow, wanted)
    with _unpaused(AirflowApi(lab.airflow_url, ADMIN, lab.secrets.admin_password), settings, say):
        _follow(site.ledger, workflow, files, say)
    wall_s = time.monotonic() - began
    return account_of(workflow, wanted, list(_transfers(site.ledger, workflow)), places, wall_s=wall_s)


def _request(ledger: Engine, settings: SiteSettings, workflow: str, files: tuple[LabFile, ...]) -> None:
    for request in requests_of(workflow, files):
        check_request(request, settings.sites)
        record_request(ledger, request, now=datetime.now(UTC))


@contextmanager
def _unpaused(api: AirflowApi, settings: SiteSettings, say: Say) -> Iterator[None]:
    """The DAGs of stage-out run meanwhile; those that were paused are paused again."""
    dags = [name for name in needed(settings) if name.startswith("stage_out_")]
    for name in dags:
        api.wait_for_dag(name, timeout_s=DAG_APPEARS_S)
    paused = [name for name, is_paused in api.paused().items() if is_paused and name in dags]
    for name in paused:
        api.unpause(name)
    say(f"unpaused {', '.join(paused)}: a pass of each begins every minute" if paused else "the DAGs are unpaused")
    try:
        yield
    finally:
        for name in paused:
            api.pause(name)
        if paused:
            say("paused them again")


def _follow(ledger: Engine, workflow: str, files: int, say: Say) -> None:
    deadline = time.monotonic() + LONGEST_S
    told: Mapping[TransferState, int] = {}
    while True:
        states = _states(ledger, workflow)
        if sum(count for state, count in states.items() if state in _VERIFIED) >= files and states != told:
            # or their last blocks would wait for further files; again, since files come into blocks meanwhile
            for owner in USERS:
                close_workflow(ledger, owner, workflow, now=datetime.now(UTC))
        if states != told:
            say(", ".join(f"{state.value} {count}" for state, count in states.items()))
            told = states
        if sum(count for state, count in states.items() if state in TRANSFER_ENDED) >= files:
            return
        if time.monotonic() > deadline:
            raise LabError(f"the files of {workflow} did not end within {LONGEST_S:.0f} s: check their reasons")
        time.sleep(POLL_S)


def _states(ledger: Engine, workflow: str) -> dict[TransferState, int]:
    wanted = TransferFilter(workflow=workflow)
    found: dict[TransferState, int] = {}
    for count in (*count_transfers(ledger, wanted), *count_archived(ledger, wanted)):
        found[count.state] = found.get(count.state, 0) + count.files
    return {state: found[state] for state in TransferState if state in found}


def _transfers(ledger: Engine, workflow: str) -> Iterator[TransferStatus]:
    after: int | None = None
    while True:
        page = list_transfers(ledger, TransferFilter(workflow=workflow), after=after, limit=PAGE)
        yield from page.rows
        if page.after is None:
            return
        after = page.after
