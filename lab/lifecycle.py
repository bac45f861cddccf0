"""Brings the embedded services up and down, and reports how they are.

`up` may be called at any time: what runs is left alone, what a crash left behind is cleared away first, and what does
not depend on each other starts at the same time.
"""

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from include.cvmfs.format.keys import KeyFile
from include.monitoring.findings import Finding, Severity
from include.monitoring.store_checks import room, written
from include.settings.load import load
from include.settings.model import SiteSettings
from include.settings.scheduling import Queue, pools
from include.settings.secrets import EnvSecrets, connection_variable
from include.site.bootstrap import found_stores
from include.site.caching import cache_of
from include.site.site import Site, options_of
from include.stageout.opening import SiteClients
from include.storage.buckets import PolicyServer, Role, allow_roles
from include.storage.kinds import Credentials
from lab import services as lab_services
from lab.cluster import Cluster
from lab.credentials import uses
from lab.environment import (
    ADMIN,
    DATABASE,
    KEEPER,
    LEDGER,
    OWNER,
    RESULTS,
    VIEWER,
    Lab,
    LabFolders,
    has_roles,
    without_adopted,
)
from lab.errors import LabError, ServiceFailed
from lab.ports import check_free
from lab.secrets import write_private
from lab.servers.weed import left_sockets
from lab.supervise import ProcessInfo, ProcessState, Supervisor, end_marked, marked_processes, wait_for_end

STORAGE_READY_S = 120.0  # seconds on an idle machine; a service that ends is reported at once
AIRFLOW_READY_S = 240.0  # the first start compiles all of Airflow, on whatever else the machine does
STOP_S = 45.0
PROBE = bytes(range(256)) * 256
"""The file by which the sites of the lab are probed; config/site.yaml has its size and checksum."""
POSTGRES_S = 15.0
_FOUNDATIONS = frozenset({"postgres", "weed", "s3", "ledger", "rabbitmq"})
_WITHOUT_AIRFLOW = frozenset({"weed", "gateway", "fts"})
STARTS = 3  # a service that ends as often before it is ready does not become so

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How one service is."""

    name: str
    state: ProcessState
    pid: int
    seconds: int
    where: str
    wrong: str | None  # None: it answers as itself

    @property
    def good(self) -> bool:
        return self.wrong is None


@dataclass(slots=True)
class Timings:
    """Seconds per step of a start."""

    steps: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def measure(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.steps[step] = round(time.monotonic() - began, 2)


def up(lab: Lab, *, airflow: bool, say: Say) -> Timings:
    """Starts what does not run yet, and returns when everything answers as itself.

    Raises LabError: a port is taken (nothing is started then), the lab runs with other settings, or another command is
    at it; ServiceFailed: a service ended or does not answer; what started stays, for its logs.
    """
    with _alone(lab):
        return _up(lab, airflow, say)


def _up(lab: Lab, airflow: bool, say: Say) -> Timings:
    timings = Timings()
    supervisor = Supervisor(lab.place)
    wanted = lab_services.services(lab, airflow=airflow)
    if not supervisor.running() and (marked_processes(lab.place) or lab_services.postgres_server(lab).server_pid()):
        say("ending services that an earlier start left behind")
        _end_leftovers(lab)
    programs = [one.program for one in lab_services.services(lab, airflow=True)]
    alive = supervisor.processes() if supervisor.running() else {}
    if alive and not supervisor.runs(programs):
        raise LabError(f"the services of {lab.place.var} run with other settings or ports: nightshift lab down first")
    absent = [one for one in wanted if one.name not in alive or not alive[one.name].state.alive]
    check_free(lab.ports, [name for service in absent for name in service.ports])
    if not alive:
        _record(lab)
        with timings.measure("process manager"):
            supervisor.start(programs, _hand_out(lab))
    elif older := _changed(lab, supervisor):
        say(f"what runs was started with other settings than now ({', '.join(older)}): run nightshift lab restart")
    lab.place.fts.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(lab.place.fts_tokens, f"{lab.secrets.fts_token} lab admin\n")
    by_name = {one.name: one for one in wanted}
    if lab.cluster:
        lab_services.ledger_server(lab).prepare(LEDGER)
        _start(supervisor, [by_name["ledger"]], STORAGE_READY_S, timings)

    def storage() -> None:
        for name in ("weed", "s3", "gateway"):
            if name in by_name:
                _start(supervisor, [by_name[name]], STORAGE_READY_S, timings)
            if name == "s3":
                _found_buckets(lab, say)

    with ThreadPoolExecutor(max_workers=3) as pool:
        chains = [pool.submit(storage), pool.submit(_start, supervisor, [by_name["fts"]], STORAGE_READY_S, timings)]
        if airflow:
            chains.append(pool.submit(_start_airflow, lab, supervisor, by_name, timings, say))
        failures = [error for chain in chains if (error := chain.exception())]
    if failures:
        raise failures[0]
    return timings


def _found_buckets(lab: Lab, say: Say) -> None:
    """Makes the buckets of the stores that the lab serves, with who may do what there, and the caches in its folder.

    The gateway starts after this: its key may do nothing before.
    """
    environment = _environment(lab)
    site = Site(load(environ=environment), EnvSecrets(environment))
    names = {
        store.name
        for store in site.settings.stores.values()
        if store.endpoint == lab.s3_url and store.connection and connection_variable(store.connection) in environment
    }
    found_stores(site, names, say=say)
    for name in names:
        if has_roles(site.settings.store(name)):
            _allow_roles(lab, site.settings, name)
    for cache in site.settings.caches.values():
        if cache.path.is_relative_to(lab.place.var):
            cache_of(cache).initialise()
    _leave_probes(site)


def _allow_roles(lab: Lab, settings: SiteSettings, name: str) -> None:
    """Give the users of a store's bucket what their roles need, in each repository."""
    store, owner = settings.store(name), Credentials(*lab.s3_keys(OWNER))
    repositories = [each.fqrn for each in settings.repositories.values() if each.store == name]
    roles = (Role.PUBLISHER, Role.GATEWAY, Role.COLLECTOR)
    principals = {role: PolicyServer.SEAWEEDFS.principal(f"nightshift-{role.value}") for role in roles}
    if repositories:
        allow_roles(store.url, owner, options_of(store), repositories=repositories, principals=principals)


def _leave_probes(site: Site) -> None:
    """Write the files by which the sites of the lab are probed; those that exist stay."""
    places = SiteClients(site)
    for remote in site.settings.sites.values():
        for folder in remote.folders:
            folder.mkdir(parents=True, exist_ok=True)
        if remote.probe is not None and remote.probe.size == len(PROBE):
            places.any_place(remote.name, "").write(remote.probe.file, PROBE)


def down(lab: Lab, *, say: Say) -> int:
    """Stops everything and proves it; returns how many services ran.

    Raises LabError: a process of the lab cannot be ended.
    """
    with _alone(lab):
        return _down(lab, say)


def restart(lab: Lab, *, say: Say) -> Timings:
    """Restarts Airflow, the gateway and FTS with the present code and settings.

    Stores and database stay up unless settings changed that reach programs by their environment, as connections do.
    A task that runs is ended, and its retry goes on from what is stored; what waits in the triggerer waits on.
    Raises as `up`.
    """
    with _alone(lab):
        supervisor = Supervisor(lab.place)
        airflow = True
        if supervisor.running():
            running = supervisor.alive()
            airflow = not running or not _WITHOUT_AIRFLOW.issuperset(running)
            programs = [service.program for service in lab_services.services(lab, airflow=True)]
            changed = _changed(lab, supervisor)
            if changed or not supervisor.runs(programs):
                say(f"settings changed ({', '.join(changed) or 'services'}): stores and databases are restarted, too")
                _down(lab, say)
            else:
                supervisor.stop_programs([name for name in running if name not in _FOUNDATIONS], timeout_s=STOP_S)
        return _up(lab, airflow, say)


def changed(lab: Lab) -> list[str]:
    """The variables that have another value now than what runs was started with; none if nothing runs."""
    supervisor = Supervisor(lab.place)
    return _changed(lab, supervisor) if supervisor.running() else []


def _changed(lab: Lab, supervisor: Supervisor) -> list[str]:
    ours = ("AIRFLOW", "NIGHTSHIFT_")
    running = supervisor.environment()
    now, credentials, users = split_environment(lab)
    differ = {name for name, value in now.items() if name.startswith(ours) and running.get(name) != value}
    for service in lab_services.services(lab, airflow=True):
        had, has = _read(lab.place.credentials / service.name), credentials.get(service.name, {})
        differ |= {name for name in had.keys() | has.keys() if had.get(name) != has.get(name)}
    if _text(lab.place.s3_users) != users:
        differ.add("buckets of stores")
    return sorted(differ)


def _environment(lab: Lab) -> dict[str, str]:
    own = {name: value for name, value in without_adopted(os.environ).items() if name.startswith("AIRFLOW_CONN_")}
    return lab.environment() | own


def split_environment(lab: Lab) -> tuple[dict[str, str], dict[str, dict[str, str]], str]:
    """Return the environment without credentials, the credentials of each service, and the users of the store."""
    environment = _environment(replace(lab, by_role=True))
    settings = load(environ=environment)
    common = {name: value for name, value in environment.items() if name not in uses(settings, environment)}
    return common, lab.credentials(environment), lab_services.s3_users(lab, settings)


def _hand_out(lab: Lab) -> dict[str, str]:
    """Write the credentials of each service into a file of its own; return the environment that all services share."""
    common, credentials, users = split_environment(lab)
    lab.place.credentials.mkdir(mode=0o700, exist_ok=True)
    for service in lab_services.services(lab, airflow=True):
        held = credentials.get(service.name, {})
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in held.items()]
        write_private(lab.place.credentials / service.name, "".join(lines))
    write_private(lab.place.s3_users, users)
    return common


def _read(path: Path) -> dict[str, str]:
    pairs = (word.partition("=") for word in shlex.split(_text(path)))
    return {name: value for name, _, value in pairs}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _down(lab: Lab, say: Say) -> int:
    supervisor = Supervisor(lab.place)
    stopped = 0
    if supervisor.running():
        running = supervisor.alive()
        stopped = len(running)
        # Airflow before its database and the stores that its tasks use.
        for last in (False, True):
            supervisor.stop_programs([one for one in running if (one in _FOUNDATIONS) is last], timeout_s=STOP_S)
        supervisor.shutdown(timeout_s=STOP_S)
    if left := _end_leftovers(lab):
        # of the scheduler's, or of a task; a worker that waits for work does not notice that the scheduler is gone
        say(f"stopped {left} idle worker {'process' if left == 1 else 'processes'}")
    if lab.cluster:
        lab.cluster.remove()
        lab.place.cluster.unlink(missing_ok=True)
    for path in (supervisor.socket, supervisor.pid_file, *left_sockets(lab_services.weed_ports(lab.ports))):
        path.unlink(missing_ok=True)
    return stopped


def status(lab: Lab) -> tuple[ServiceStatus, ...]:
    """Return how every service is."""
    supervisor = Supervisor(lab.place)
    infos = supervisor.processes() if supervisor.running() else {}
    result = []
    for service in lab_services.services(lab, airflow=True):
        info = infos.get(service.name) or ProcessInfo(service.name, ProcessState.STOPPED, 0, 0, "")
        # supervisord calls a program running after its first seconds; it may answer before.
        asked = info.state in {ProcessState.STARTING, ProcessState.RUNNING}
        wrong = service.answers() if asked else info.state.name.lower()
        result.append(ServiceStatus(service.name, info.state, info.pid, info.seconds, service.where, wrong))
    return tuple(result)


def disks(lab: Lab) -> list[Finding]:
    """The file systems of the lab on which little room is left."""
    environment = lab.environment()
    settings = load(environ=environment)
    folders = written(settings, settings.stores, lab.place.airflow_home / "logs")
    return [one for one in room(folders) if one.severity is not Severity.OK]


def _start(supervisor: Supervisor, group: list[lab_services.Service], timeout_s: float, timings: Timings) -> None:
    """Starts services that become ready together, and waits for that."""
    for service in group:
        supervisor.start_program(service.name)
    first = group[0]
    name = first.name if len(group) == 1 else "airflow"
    pids: dict[str, set[int]] = {}
    with timings.measure(name):
        try:
            lab_services.wait(first.answers, alive=lambda: _dead(supervisor, group, pids), timeout_s=timeout_s)
        except lab_services.ServiceNotReady as why:
            culprit = next((one for one in group if one.name in why.services), first)
            raise ServiceFailed(name, str(why), str(supervisor.place.log / f"{culprit.name}.log")) from None


def _start_airflow(
    lab: Lab, supervisor: Supervisor, by_name: Mapping[str, lab_services.Service], timings: Timings, say: Say
) -> None:
    server = lab_services.postgres_server(lab)
    if not supervisor.process("postgres").state.alive:
        with timings.measure("initdb"):
            server.prepare()
    _start(supervisor, [by_name["postgres"]], STORAGE_READY_S, timings)
    server.ensure_database(DATABASE, lab.secrets.airflow_database_password)
    if lab.cluster:
        server.ensure_database(RESULTS, lab.secrets.celery_password)
    secrets = lab.secrets
    passwords = {ADMIN: secrets.admin_password, KEEPER: secrets.keeper_password, VIEWER: secrets.viewer_password}
    write_private(lab.place.airflow_passwords, json.dumps(passwords))
    _migrate(lab, timings, say)
    parts = [
        service for service in lab_services.airflow_services(lab) if service.name != lab_services.EXECUTION_API.name
    ]
    if lab.cluster:
        lab_services.rabbitmq_server(lab).prepare()
        _start(supervisor, [by_name["rabbitmq"]], STORAGE_READY_S, timings)
        workers = [by_name[machine.name] for machine in lab.cluster.machines]
        for service in (*workers, execution := by_name[lab_services.EXECUTION_API.name]):
            supervisor.start_program(service.name)
    _start(supervisor, parts, AIRFLOW_READY_S, timings)
    if lab.cluster:
        for service in (execution, *workers):
            _start(supervisor, [service], AIRFLOW_READY_S, timings)
    with timings.measure("pools"):
        api = lab.administrator()
        for pool in pools(load(environ=lab.environment())):
            api.put_pool(asdict(pool))


def _dead(supervisor: Supervisor, group: list[lab_services.Service], pids: dict[str, set[int]]) -> str | None:
    """Return why a group cannot become ready any more; `pids` remembers what was seen of it."""
    infos = supervisor.processes()
    for service in group:
        info = infos[service.name]
        seen = pids.setdefault(service.name, set())
        if info.pid:
            seen.add(info.pid)
        if info.state in {ProcessState.FATAL, ProcessState.STOPPED} or len(seen) > STARTS:
            why = info.detail or info.state.name.lower()
            said = f"{service.name} ended {len(seen)} times: {why}; {_last_words(supervisor, service)}"
            return lab_services.NotReadyReason(said, service.name)
    return None


def _last_words(supervisor: Supervisor, service: lab_services.Service) -> str:
    try:
        lines = (supervisor.place.log / f"{service.name}.log").read_text(errors="replace").splitlines()
    except OSError:
        return "no log"
    said = [line.strip() for line in lines if line.strip()]
    return f"its last line: {said[-1][:300]}" if said else "it logged nothing"


def _migrate(lab: Lab, timings: Timings, say: Say) -> None:
    """Brings Airflow's tables to its version, unless they are known to be there: asking Airflow takes seconds."""
    server, record = lab_services.postgres_server(lab), lab.place.airflow_home / "migrated.json"
    installed = version("apache-airflow-core")
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(record.read_text())
        if known == {"airflow": installed, "schema": server.schema_version()}:
            return
    say("making Airflow's tables")
    log = lab.place.log / "migrate.log"
    with timings.measure("airflow db migrate"), log.open("w") as output:
        command = lab_services.resolved(lab_services.MIGRATE)
        result = subprocess.run(
            command, env=lab.environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd="/"
        )
    if result.returncode:
        raise ServiceFailed("airflow db migrate", f"exit code {result.returncode}", str(log))
    record.write_text(json.dumps({"airflow": installed, "schema": server.schema_version()}))


def _record(lab: Lab) -> None:
    """Makes the machines of the workers, and writes down which there are, for the commands to come."""
    before = Cluster.load(lab.place.cluster)
    if before and before != lab.cluster:
        before.remove()
        lab.place.cluster.unlink()
    if lab.cluster is None:
        return
    lab.cluster.save(lab.place.cluster)
    lab.cluster.make()
    settings = load(environ=lab.environment())
    for machine in lab.cluster.machines:
        place = lab.place.of(machine)
        place.make()
        _hand_out_keys(lab, settings, place, signs=Queue.GATEWAY_HOST.value in machine.queues)


def _hand_out_keys(lab: Lab, settings: SiteSettings, place: LabFolders, *, signs: bool) -> None:
    """Leads from a worker's folder to the public keys, as they will be when repositories are made.

    `signs`: to the keys that sign, too; never to the master key.
    """
    ours = settings.gateway.keys
    keys = place.var / "keys"
    if not ours.is_relative_to(lab.place.var):
        return
    if keys.is_symlink():  # of an older lab, to all keys
        keys.unlink()
    keys.mkdir(exist_ok=True)
    names = {entry.public_key.name for entry in settings.repositories.values() if entry.public_key.parent == ours}
    if signs:
        kinds = (KeyFile.REPOSITORY, KeyFile.CERTIFICATE)
        names |= {kind.path(ours, fqrn).name for fqrn in settings.repositories for kind in kinds}
    for name in names:
        link = keys / name
        link.unlink(missing_ok=True)
        link.symlink_to(ours / name)


def _end_leftovers(lab: Lab) -> int:
    """Return how many processes beside the services it ended."""
    left = marked_processes(lab.place)
    # PostgreSQL first: SIGTERM, which the others get, would make it wait for its clients.
    server = lab_services.postgres_server(lab)
    if pid := server.server_pid():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
            if not wait_for_end(pid, timeout_s=POSTGRES_S):
                os.kill(pid, signal.SIGKILL)
        if server.server_pid():
            raise LabError(f"PostgreSQL (pid {pid}) does not end: check {lab.place.log / 'postgres.log'}")
    end_marked(lab.place)
    return len(left)


@contextlib.contextmanager
def _alone(lab: Lab) -> Iterator[None]:
    """One command at a time changes what runs."""
    lab.place.make()
    with (lab.place.run / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(
                f"another command is starting or stopping the services of {lab.place.var}: wait for it"
            ) from None
        yield
