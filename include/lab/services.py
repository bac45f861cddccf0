"""The embedded services of a lab: for each its command line, the ports it opens, and how it shows that it is ready."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

from include.gateway.protocol import API
from include.lab import components
from include.lab.components import Component
from include.lab.environment import Lab
from include.lab.ports import LOOPBACK, Ports
from include.lab.postgres import Postgres
from include.lab.readiness import airflow_answers, fts_answers, gateway_answers, weed_answers
from include.lab.servers.weed_command import WeedPorts, weed_command
from include.lab.supervise import Program

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
    return (*storage, postgres(lab), *airflow_services(lab)) if airflow else storage


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
    return Service(
        program,
        WEED_PORTS,
        lambda: weed_answers(lab.s3_url, lab.secrets.s3_access_key, lab.secrets.s3_secret_key),
        lab.s3_url,
    )


def weed_ports(ports: Ports) -> WeedPorts:
    """Those ports of a lab that SeaweedFS listens on."""
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
    return Service(program, ("postgres",), server.answer, f"{LOOPBACK}:{lab.ports.postgres}")


def postgres_server(lab: Lab) -> Postgres:
    """The cluster of a lab."""
    return Postgres(lab.place.postgres, lab.ports.postgres, lab.secrets.postgres_password, lab.place.log / "initdb.log")


def airflow_services(lab: Lab) -> tuple[Service, ...]:
    """Airflow's components. Only the API server listens; it knows the health of all."""
    expected = version("apache-airflow-core")
    return tuple(
        Service(
            Program(component.name, resolved(component)),
            ("airflow",) if component is components.API_SERVER else (),
            lambda: airflow_answers(lab.airflow_url, expected),
            lab.airflow_url if component is components.API_SERVER else "",
        )
        for component in components.AIRFLOW
    )


def resolved(component: Component) -> tuple[str, ...]:
    """A component's command line in the lab, with its program out of the environment that we run in."""
    return (_program(component.command[0]), *component.command[1:], *component.on_one_disk)


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)
