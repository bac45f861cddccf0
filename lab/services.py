"""The embedded services of a lab: for each its command line, the ports it opens, and how it shows that it is ready."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path

from include.gateway.protocol import API
from include.monitoring.airflow_checks import consumers
from lab import components
from lab.cluster import Machine, find
from lab.components import Component
from lab.environment import Lab
from lab.errors import LabError
from lab.ports import LOOPBACK, Ports
from lab.postgres import Postgres, reachable
from lab.readiness import airflow_answers, execution_answers, fts_answers, gateway_answers, weed_answers
from lab.servers.mariadb import MariaDbServer
from lab.servers.rabbitmq import RabbitServer
from lab.servers.weed_command import WeedPorts, weed_command
from lab.supervise import Program

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
    storage = (weed(lab), gateway(lab), fts(lab))
    if not airflow:
        return storage
    if lab.cluster is None:
        return (*storage, postgres(lab), *airflow_services(lab))
    foundations = (s3(lab), ledger(lab), postgres(lab), rabbitmq(lab))
    workers = (worker(lab, machine) for machine in lab.cluster.machines)
    return (*storage, *foundations, *airflow_services(lab), *workers)


def weed(lab: Lab) -> Service:
    """SeaweedFS, all in one process, with its S3 interface on loopback."""
    ports, place = lab.ports, lab.place
    command = weed_command(
        _program("weed"),
        place.weed,
        weed_ports(ports),
        sockets=(place.socket("filer.sock"), place.socket("s3.sock")),
    )
    program = Program(
        "weed",
        command,
        environment={
            "AWS_ACCESS_KEY_ID": "%(ENV_NIGHTSHIFT_S3_ACCESS_KEY)s",
            "AWS_SECRET_ACCESS_KEY": "%(ENV_NIGHTSHIFT_S3_SECRET_KEY)s",
        },
    )
    return _s3_service(lab, program, WEED_PORTS, LOOPBACK)


def weed_ports(ports: Ports) -> WeedPorts:
    """Return those ports of a lab that SeaweedFS listens on."""
    return WeedPorts(**{name.removeprefix("weed_"): getattr(ports, name) for name in WEED_PORTS})


def gateway(lab: Lab) -> Service:
    """The repository gateway."""
    program = Program(components.GATEWAY.name, resolved(components.GATEWAY))
    return Service(program, ("gateway",), lambda: gateway_answers(lab.gateway_url), f"{lab.gateway_url}{API}")


def fts(lab: Lab) -> Service:
    """The embedded FTS, whose caller is the lab's user."""
    program = Program(
        components.FTS.name,
        (*resolved(components.FTS), "--folder", str(lab.place.sites)),
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
    return _s3_service(lab, Program("s3", (str(find("socat")), *ways)), (), lab.address)


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
    command = lab.cluster.inside(machine, resolved(components.WORKER))
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

    def service(component: Component) -> Service:
        program = Program(component.name, resolved(component))
        if component is components.EXECUTION_API:
            url = f"http://{lab.address}:{lab.ports.execution}"
            # the last one counts
            program = replace(program, command=(*program.command, "--port", str(lab.ports.execution)))
            return Service(program, ("execution",), lambda: execution_answers(url), url)
        listens = component.name == components.API_SERVER.name
        return Service(
            program,
            ("airflow",) if listens else (),
            lambda: airflow_answers(lab.airflow_url, expected),
            lab.airflow_url if listens else "",
        )

    return tuple(map(service, components.AIRFLOW_WITH_CELERY if lab.cluster else components.AIRFLOW))


def resolved(component: Component) -> tuple[str, ...]:
    """A component's command line in the lab, with its program out of the environment that we run in."""
    return (_program(component.command[0]), *component.command[1:], *component.on_one_disk)


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)
