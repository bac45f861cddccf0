"""Services of a lab: which there are, how each is started, and when it is ready."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Self

from include.cli.gateway import is_here
from include.cvmfs.format.keys import KeyFile
from include.errors import NightshiftError
from include.gateway.protocol import API
from include.monitoring.airflow_checks import consumers
from include.settings.errors import SettingsError
from include.settings.load import load
from include.settings.model import RepositorySettings, SiteSettings
from include.settings.scheduling import Queue
from include.settings.secrets import EnvSecrets
from include.storage.kinds import Credentials
from include.storage.open import split_s3_url
from lab.cluster import Machine
from lab.environment import COLLECTOR, FILES, GATEWAY as GATEWAY_USER, OWNER, PUBLISHER, Lab, has_roles
from lab.errors import LabError
from lab.ports import LOOPBACK, Ports
from lab.postgres import Postgres, reachable
from lab.servers.mariadb import MariaDbServer
from lab.servers.process import find_program
from lab.servers.rabbitmq import RabbitServer
from lab.servers.weed import WeedPorts, identities, weed_command
from lab.supervise import Program

if TYPE_CHECKING:
    import requests


Question = Callable[[], str | None]

AIRFLOW_COMPONENTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
TIMEOUT_S = 3.0
POLL_S = 0.15


class NotReadyReason(str):
    """Reason why a service is not ready. `services`: those of a group that it is about; empty: not known which."""

    services: tuple[str, ...]

    def __new__(cls, text: str, *services: str) -> Self:
        """The words, and what they are about."""
        wrong = super().__new__(cls, text)
        wrong.services = services
        return wrong


class ServiceNotReady(NightshiftError):
    """A service did not become ready; the message has the reason. `services`: as in `NotReadyReason`."""

    code = "lab-service-not-ready"

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.services = why.services if isinstance(why, NotReadyReason) else ()


def wait(question: Question, *, alive: Question, timeout_s: float) -> float:
    """Ask until the answer becomes None; return the seconds that took.

    Raises ServiceNotReady: the process is gone for good (`alive` returns why), or the time is over.
    """
    began = time.monotonic()
    while True:
        why = question()
        now = time.monotonic()
        if why is None:
            return now - began
        if dead := alive():
            raise ServiceNotReady(dead, dead)
        if now - began > timeout_s:
            raise ServiceNotReady(f"not ready after {timeout_s:.0f} s: {why}", why)
        # There is no event for the answer of another program.
        time.sleep(POLL_S)


def weed_answers(url: str, access_key: str, secret_key: str) -> str | None:
    """SeaweedFS lists buckets for these keys."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("GET", f"{url}/", headers={"x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    SigV4Auth(Credentials(access_key, secret_key), "s3", "us-east-1").add_auth(request)
    answer = _get(f"{url}/", headers=dict(request.headers.items()))
    if isinstance(answer, str):
        return answer
    server = answer.headers.get("Server", "")
    if "SeaweedFS" not in server:
        return f"another server answers: {server or 'nameless'}"
    if answer.status_code == 403:
        return "it refuses the keys of secrets.env: its state was made with others"
    good = answer.status_code == 200 and "ListAllMyBucketsResult" in answer.text
    return None if good else f"HTTP {answer.status_code}"


def gateway_answers(url: str) -> str | None:
    """The gateway service welcomes, and is healthy."""
    for path, key, value in ((API, "welcome", None), ("/health", "service", "nightshift-gateway")):
        answer = _get(url + path)
        if isinstance(answer, str):
            return answer
        try:
            found = answer.json()[key]
        except (ValueError, TypeError, KeyError):
            return f"another server answers: {answer.text[:40]!r}"
        if not answer.ok or (value is not None and found != value):
            return f"not well: HTTP {answer.status_code} {answer.text[:80]}"
    return None


def fts_answers(url: str) -> str | None:
    """Return why the embedded FTS does not answer; None if it does."""
    answer = _get(f"{url}/")
    if isinstance(answer, str):
        return answer
    try:
        service = answer.json().get("service")
    except (ValueError, AttributeError):
        service = None
    return None if answer.ok and service == "nightshift-fts" else f"another server answers: {answer.text[:40]!r}"


def execution_answers(url: str) -> str | None:
    """Airflow's API server for tasks."""
    answer = _get(f"{url}/execution/health")
    if isinstance(answer, str):
        return answer
    return None if answer.ok and "healthy" in answer.text else f"another server answers: {answer.text[:80]!r}"


def airflow_answers(url: str, version: str) -> str | None:
    """Airflow of this version, with all four components healthy."""
    answer = _get(f"{url}/api/v2/monitor/health")
    if isinstance(answer, str):
        return answer
    try:
        health = answer.json()
        ill = [name for name in AIRFLOW_COMPONENTS if (health.get(name) or {}).get("status") != "healthy"]
    except (ValueError, AttributeError):
        return f"another server answers: {answer.text[:80]!r}"
    if ill:
        return NotReadyReason(f"not healthy yet: {', '.join(ill)}", *(name.replace("_", "-") for name in ill))
    seen = _get(f"{url}/api/v2/version")
    if isinstance(seen, str):
        return seen
    found = seen.json().get("version")
    return None if found == version else f"Airflow {found} answers, expected {version}"


def _get(url: str, headers: dict[str, str] | None = None) -> requests.Response | str:
    import requests

    session = requests.Session()
    session.trust_env = False  # loopback, whatever proxy the environment names
    try:
        with session:
            return session.get(url, headers=headers, timeout=TIMEOUT_S)
    except requests.ConnectionError:
        return "no answer"
    except requests.RequestException as error:
        return type(error).__name__


@dataclass(frozen=True, slots=True)
class Component:
    """A part that runs for ever, and the command line that starts it; its first word is a program on the path.

    Where all parts are on one machine and see the same files, as in the lab, `on_one_disk` follows.
    """

    name: str
    command: tuple[str, ...]
    on_one_disk: tuple[str, ...] = ()


API_SERVER = Component("api-server", ("airflow", "api-server"))
# Log servers listen on every interface, whatever is configured; on one disk, logs are read from their files.
SCHEDULER = Component("scheduler", ("airflow", "scheduler"), on_one_disk=("--skip-serve-logs",))
DAG_PROCESSOR = Component("dag-processor", ("airflow", "dag-processor"))
TRIGGERER = Component("triggerer", ("airflow", "triggerer"), on_one_disk=("--skip-serve-logs",))
GATEWAY = Component("gateway", ("nightshift", "gateway", "serve"))
FTS = Component("fts", ("nightshift", "fts", "serve"))

AIRFLOW = (API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER)

# With Celery: what people ask does not slow the heartbeats of tasks.
CORE_API = Component("api-server", ("airflow", "api-server", "--apps", "core"))
EXECUTION_API = Component("execution-api", ("airflow", "api-server", "--apps", "execution", "--port", "8081"))
AIRFLOW_WITH_CELERY = (CORE_API, EXECUTION_API, SCHEDULER, DAG_PROCESSOR, TRIGGERER)
WORKER = Component("worker", ("airflow", "celery", "worker", "--queues", ",".join(queue.value for queue in Queue)))

# Runs once before the others of Airflow.
MIGRATE = Component("migrate", ("airflow", "db", "migrate"))


WEED_PORTS = tuple(one.name for one in fields(Ports) if one.name.startswith(("s3", "weed_")))


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the lab."""

    program: Program
    ports: tuple[str, ...]
    answers: Callable[[], str | None]
    where: str

    @property
    def name(self) -> str:
        return self.program.name


def services(lab: Lab, *, airflow: bool) -> tuple[Service, ...]:
    """The services of a lab, in the order in which they are listed; Airflow brings its database."""
    chosen = [weed(lab), *([gateway(lab)] if has_gateway(lab) else []), fts(lab)]
    if airflow and lab.cluster is None:
        chosen += [postgres(lab), *airflow_services(lab)]
    elif airflow and lab.cluster:
        chosen += [s3(lab), ledger(lab), postgres(lab), rabbitmq(lab), *airflow_services(lab)]
        chosen += [worker(lab, machine) for machine in lab.cluster.machines]
    files = lab.place.credentials
    return tuple(replace(each, program=replace(each.program, credentials=files / each.name)) for each in chosen)


def weed(lab: Lab) -> Service:
    """SeaweedFS, all in one process, with its S3 interface on loopback."""
    ports, place = lab.ports, lab.place
    sockets = (place.sockets / "filer.sock", place.sockets / "s3.sock")
    command = weed_command(_program("weed"), place.weed, weed_ports(ports), users=place.s3_users, sockets=sockets)
    return _s3_service(lab, Program("weed", command), WEED_PORTS, LOOPBACK)


def s3_users(lab: Lab, settings: SiteSettings) -> str:
    """The file of SeaweedFS's users: those of roles have what policies of buckets give, FILES the other buckets."""
    keys = {name: Credentials(*lab.s3_keys(name)) for name in (OWNER, PUBLISHER, GATEWAY_USER, COLLECTOR, FILES)}
    plain = sorted({split_s3_url(store.url)[0] for store in lab.stores(settings).values() if not has_roles(store)})
    actions = [f"{action}:{bucket}" for bucket in plain for action in ("Read", "List", "Write")]
    document = identities(keys.pop(OWNER), {f"nightshift-{name}": key for name, key in keys.items()})
    document["identities"][-1]["actions"] = actions
    return json.dumps(document)


def weed_ports(ports: Ports) -> WeedPorts:
    """Return those ports of a lab that SeaweedFS listens on."""
    return WeedPorts(**{name.removeprefix("weed_"): getattr(ports, name) for name in WEED_PORTS})


def gateway(lab: Lab) -> Service:
    """The repository gateway."""
    program = Program(GATEWAY.name, resolved(GATEWAY))
    return Service(program, ("gateway",), lambda: gateway_answers(lab.gateway_url), f"{lab.gateway_url}{API}")


def has_gateway(lab: Lab) -> bool:
    """Tell whether a repository needs the lab's gateway: not if each is behind one that exists elsewhere."""
    environment = lab.environment()
    settings, secrets = load(environ=environment), EnvSecrets(environment)

    def needs(repository: RepositorySettings) -> bool:
        try:
            here = is_here(settings, secrets.get(repository.gateway))
        except SettingsError:
            return True  # the gateway reports it
        return here or KeyFile.GATEWAY.path(settings.gateway.keys, repository.fqrn).exists()

    return not settings.repositories or any(map(needs, settings.repositories.values()))


def fts(lab: Lab) -> Service:
    """The embedded FTS, whose caller is the lab's user."""
    program = Program(
        FTS.name,
        (*resolved(FTS), "--folder", str(lab.place.sites)),
        environment={"NIGHTSHIFT_FTS_TOKENS": str(lab.place.fts_tokens), "NIGHTSHIFT_FTS_S3_ENDPOINT": lab.s3_url},
    )
    return Service(program, ("fts",), lambda: fts_answers(lab.fts_url), lab.fts_url)


def postgres(lab: Lab) -> Service:
    """Airflow's own database."""
    server = postgres_server(lab)
    # SIGINT ends PostgreSQL quickly and cleanly, and is for the first process only.
    program = Program("postgres", server.command(), stop_signal="INT", stop_as_group=False)
    return Service(program, ("postgres",), server.answer, f"{lab.address}:{lab.ports.postgres}")


def postgres_server(lab: Lab) -> Postgres:
    """The cluster of a lab."""
    log, clients = lab.place.log / "initdb.log", lab.cluster.network if lab.cluster else ""
    password = lab.secrets.postgres_password
    return Postgres(lab.place.postgres, lab.ports.postgres, password, log, lab.address, clients)


def s3(lab: Lab) -> Service:
    """The way from the workers to SeaweedFS: of its ports only that of S3 asks for a login, and all are on loopback."""
    ways = (
        f"TCP-LISTEN:{lab.ports.s3},bind={lab.address},reuseaddr,fork,nodelay",
        f"TCP:{LOOPBACK}:{lab.ports.s3},nodelay",
    )
    return _s3_service(lab, Program("s3", (str(find_program("socat")), *ways)), (), lab.address)


def _s3_service(lab: Lab, program: Program, ports: tuple[str, ...], host: str) -> Service:
    url, secrets = f"http://{host}:{lab.ports.s3}", lab.secrets
    return Service(program, ports, lambda: weed_answers(url, secrets.s3_access_key, secrets.s3_secret_key), url)


def ledger(lab: Lab) -> Service:
    """Nightshift's own database, for workers on more than one machine."""
    server = ledger_server(lab)
    program = Program("ledger", tuple(server.command()))
    where = f"{lab.address}:{lab.ports.ledger}"
    return Service(program, ("ledger",), lambda: None if server.ready() else "no answer", where)


def ledger_server(lab: Lab) -> MariaDbServer:
    """The server with the ledger of a lab."""
    place, account = lab.place.ledger, "mysql" if reachable(lab.place.ledger) else "root"
    password = lab.secrets.ledger_password
    return MariaDbServer(place, host=lab.address, port=lab.ports.ledger, password=password, account=account)


def rabbitmq(lab: Lab) -> Service:
    """The broker of Celery."""
    server = rabbitmq_server(lab)
    program = Program("rabbitmq", server.command(), environment=server.environment(), stop_as_group=False)
    ports = ("rabbitmq", "rabbitmq_node", "rabbitmq_names")
    return Service(program, ports, lambda: _served(lab, ()), f"{lab.address}:{lab.ports.rabbitmq}")


def rabbitmq_server(lab: Lab) -> RabbitServer:
    """The broker of a lab; it waits for the longest task."""
    ports, waits = lab.ports, lab.consumer_timeout(lab.environment())
    return RabbitServer(
        lab.place.rabbitmq, lab.address, ports.rabbitmq, ports.rabbitmq_node, ports.rabbitmq_names,
        lab.secrets.broker_password, waits,
    )  # fmt: skip


def worker(lab: Lab, machine: Machine) -> Service:
    """A Celery worker on its machine; nothing but its environment and the machine's names differ from the others."""
    if lab.cluster is None:
        raise LabError(f"{machine.name} is no machine of this lab: nightshift lab up --executor celery")
    # the last --queues counts, which is that of the environment
    command = lab.cluster.inside(machine, resolved(WORKER))
    program = Program(machine.name, command, environment=lab.of_worker(machine))
    mailbox = f"celery@{machine.address}.celery.pidbox"
    where = f"{machine.address}, queues {', '.join(machine.queues)}"
    return Service(program, (), lambda: _served(lab, (mailbox,)), where)


def _served(lab: Lab, queues: tuple[str, ...]) -> str | None:
    """Tell whether the broker answers, and something takes from these queues."""
    try:
        found = consumers(lab.broker_url, queues)
    except OSError as error:
        return str(error) or type(error).__name__
    idle = [name for name in queues if not found[name]]
    return f"nothing takes from {', '.join(idle)}" if idle else None


def airflow_services(lab: Lab) -> tuple[Service, ...]:
    """Airflow's components. Only API servers listen; that of people knows the health of all but the other one."""
    expected = version("apache-airflow-core")

    def answers() -> str | None:
        # Its first call for tasks keeps an API server busy for seconds, in which it answers nothing else.
        return airflow_answers(lab.airflow_url, expected) or (
            None if lab.cluster else execution_answers(lab.airflow_url)
        )

    def service(component: Component) -> Service:
        program = Program(component.name, resolved(component))
        if component is EXECUTION_API:
            url = f"http://{lab.address}:{lab.ports.execution}"
            # the last one counts
            program = replace(program, command=(*program.command, "--port", str(lab.ports.execution)))
            return Service(program, ("execution",), lambda: execution_answers(url), url)
        listens = component.name == API_SERVER.name
        return Service(program, ("airflow",) if listens else (), answers, lab.airflow_url if listens else "")

    return tuple(map(service, AIRFLOW_WITH_CELERY if lab.cluster else AIRFLOW))


def resolved(component: Component) -> tuple[str, ...]:
    """A component's command line in the lab, with its program out of the environment that we run in."""
    return (_program(component.command[0]), *component.command[1:], *component.on_one_disk)


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
