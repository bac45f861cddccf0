"""Where the embedded services keep their state, and the environment that every program of the lab is started with."""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from include.settings.load import load, project_root
from include.settings.scheduling import BROKER_URL, consumer_timeout
from include.settings.secrets import LEDGER_URL_VARIABLE, connection_variable
from lab.cluster import Cluster, Machine
from lab.credentials import COLLECTOR_STORE, DATABASE_URL, GATEWAY_STORE, RESULTS_URL, held, uses
from lab.errors import LabError
from lab.ports import LOOPBACK, Ports
from lab.secrets import LabSecrets, load_or_create

if TYPE_CHECKING:
    from include.airflow_api import AirflowApi
    from include.settings.model import SiteSettings, StoreSettings

ROOT = Path(__file__).resolve().parents[1]
MARK = "NIGHTSHIFT_LAB"  # carried by every process of a lab: its state folder
ADOPTED = "NIGHTSHIFT_ADOPTED"  # the variables that a command has of the lab, and not of its caller
ADMIN = "admin"
VIEWER = "viewer"  # whom `nightshift preflight` asks as: it may see everything, and change nothing
AIRFLOW_CONNECTION = "airflow_api"
METRICS_CONNECTION = "metrics"
KEEPER = "keeper"  # deletes old runs of the DAGs that run every minute
RUNS_CONNECTION = "airflow_runs"
FTS_CONNECTION = "fts_default"
LEDGER = "nightshift"  # a database
EXECUTOR, CELERY = "AIRFLOW__CORE__EXECUTOR", "CeleryExecutor"
DATABASE, RESULTS = "airflow", "celery"  # databases, and the roles that own them
DATABASE_USER = "nightshift"
# Users of the lab's store. The one of files has builds and sites of stage-out; the next three have what a policy gives.
OWNER, FILES, PUBLISHER, GATEWAY, COLLECTOR = "owner", "files", "publisher", "gateway", "collector"
_CVMFS = "store_cvmfs"
ROLES = {GATEWAY_STORE: f"{_CVMFS}_{GATEWAY}", COLLECTOR_STORE: f"{_CVMFS}_{COLLECTOR}"}
NOT_FOR_A_SHELL = frozenset({"AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", RESULTS_URL})
WORKER_LOGS = 8793  # each on its own address
SLOTS = 20  # tasks of all workers together: what airflow.cfg has as `parallelism`
NOBODY = 1  # a port that only root may take, and that nothing uses
SOCKET_PATH_LIMIT = 107 - len(".4194304")  # bytes, sockaddr_un; supervisord first adds its pid to the name
LONGEST_SOCKET = "supervisor.sock"
# Plain HTTP, which does not leave this machine; and no stage-out, whose sites are folders of one machine.
_ON_A_NETWORK = {"NIGHTSHIFT_GATEWAY_INSECURE": "true", "NIGHTSHIFT_STAGEOUT": "false"}


class Below:
    """A path below a lab's folder."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, place: "LabFolders", _: object = None) -> Path:
        return place.var / self._path


@dataclass(frozen=True, slots=True)
class LabFolders:
    """The folders of one lab; `var` is absolute."""

    var: Path
    log, run, weed, fts = Below("log"), Below("run"), Below("weed"), Below("fts")
    postgres, ledger, rabbitmq = Below("postgres"), Below("ledger"), Below("rabbitmq")
    credentials, s3_users = Below("run/credentials"), Below("run/s3-users.json")
    secrets, fts_tokens = Below("secrets.env"), Below("fts/tokens")
    airflow_home, airflow_passwords = Below("airflow"), Below("airflow/passwords.json")
    cluster = Below("run/cluster.json")  # which workers there are; absent while tasks run on this machine alone
    sites = Below("sites")  # whose folders are sites of stage-out

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """`NIGHTSHIFT_VAR`, or `var/`; a relative one is below the project's root."""
        return cls((project_root(environment) / environment.get("NIGHTSHIFT_VAR", "var")).resolve())

    def of(self, machine: Machine) -> "LabFolders":
        """The folders of a worker."""
        return LabFolders(self.var / "workers" / machine.name)

    @property
    def sockets(self) -> Path:
        """The folder of unix sockets: the run folder, or a private temporary one if that is too deep for the kernel."""
        if len(os.fsencode(self.run / LONGEST_SOCKET)) < SOCKET_PATH_LIMIT:
            return self.run
        # The same for every command that speaks about this state folder.
        tag = f"{os.getuid()}-{int.from_bytes(str(self.var).encode(), 'big') % 0xFFFFFFFB:x}"
        return Path(tempfile.gettempdir()) / f"nightshift-{tag}"

    def make(self) -> None:
        """Makes the folders; the one with control sockets is private."""
        for folder in (self.var, self.log, self.airflow_home):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in {self.run, self.sockets}:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to another user: remove it, or set TMPDIR")
            folder.chmod(0o700)


@dataclass(frozen=True, slots=True)
class Lab:
    """One set of embedded services: where, on which ports, with which secrets.

    `cluster`: the workers, if Celery runs its tasks; they reach the services on `address`. `by_role`: connections to
    its store have the keys of the services' roles, in place of the owner's, which commands of this checkout use.
    """

    place: LabFolders
    ports: Ports
    secrets: LabSecrets
    cluster: Cluster | None = field(default=None, kw_only=True)
    by_role: bool = field(default=False, kw_only=True)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The lab that the environment describes; its secrets are made if absent."""
        environment = os.environ if environment is None else environment
        place = LabFolders.from_environment(environment)
        ports, secrets = Ports.from_environment(environment), load_or_create(place.secrets)
        return cls(place, ports, secrets, cluster=Cluster.load(place.cluster))

    @classmethod
    def made(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The lab that was made here, whose secrets this user may read; None without one."""
        readable = os.access(LabFolders.from_environment(environment).secrets, os.R_OK)
        return cls.from_environment(environment) if readable else None

    @property
    def address(self) -> str:
        """Return where the services listen."""
        return self.cluster.address if self.cluster else LOOPBACK

    @property
    def broker_url(self) -> str:
        """RabbitMQ, with the password."""
        return f"amqp://{DATABASE_USER}:{self.secrets.broker_password}@{self.address}:{self.ports.rabbitmq}//"

    @property
    def airflow_url(self) -> str:
        return f"http://{self.address}:{self.ports.airflow}"

    @property
    def s3_url(self) -> str:
        return f"http://{self.address}:{self.ports.s3}"

    @property
    def gateway_url(self) -> str:
        return f"http://{self.address}:{self.ports.gateway}"

    @property
    def fts_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.fts}"

    def administrator(self) -> "AirflowApi":
        """Airflow, as its administrator."""
        from include.airflow_api import AirflowApi

        return AirflowApi(self.airflow_url, ADMIN, self.secrets.admin_password)

    def connections(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The connections of these services, as Airflow reads them: `store_<name>`, `gateway_<name>`, `gateway_admin`,
        `fts_default`.

        `store`, `gateway` and ids that the file names more than once are made too; any other may be mistyped. Those
        that the environment defines itself, for real services, are left to it; what `adopt` put there does not count.
        """
        environment = without_adopted(environment)
        settings = load(environ={**environment, **self.places(), **self.roles(environment)})
        secrets, ports = self.secrets, self.ports

        def at(kind: str, port: int, **login: str) -> dict[str, object]:
            return {"conn_type": kind, "host": self.address, "port": port, "schema": "http", **login}

        key, kind = secrets.gateway_key_id, "cvmfs_gateway"
        gateway = at(kind, ports.gateway, login=key, password=secrets.gateway_key_secret)

        def store(user: str) -> dict[str, object]:
            access, secret = self.s3_keys(user)
            return at("object_store", ports.s3, login=access, password=secret)

        ours = self.stores(settings)
        users_of = dict.fromkeys(_meant("store", {name: one.connection for name, one in ours.items()}), FILES)
        for each in filter(has_roles, ours.values()):
            users = {each.connection: PUBLISHER, each.gateway_connection: GATEWAY, each.collector_connection: COLLECTOR}
            users_of |= {name: user for name, user in users.items() if name in {*users_of, *ROLES.values()}}
        found = {name: store(user if self.by_role else OWNER) for name, user in users_of.items()}
        gateways = {one.fqrn.partition(".")[0].replace("-", "_"): one.gateway for one in settings.repositories.values()}
        found |= dict.fromkeys(_meant("gateway", gateways), gateway)
        if any(one.gateway_admin for one in settings.repositories.values()):
            password = secrets.gateway_admin_secret
            found["gateway_admin"] = at(kind, ports.gateway, login=f"{key}-admin", password=password)
        found[FTS_CONNECTION] = at("fts", ports.fts, password=secrets.fts_token) | {"host": LOOPBACK}
        if name := settings.airflow_connection:
            found[name] = at("http", ports.airflow, login=VIEWER, password=secrets.viewer_password)
        if name := settings.stageout.runs_connection:
            found[name] = at("http", ports.airflow, login=KEEPER, password=secrets.keeper_password)
        if name := settings.metrics_connection:
            found[name] = {"conn_type": "generic", "password": secrets.metrics_token}
        named = {connection_variable(name): json.dumps(value) for name, value in found.items()}
        return {key: value for key, value in named.items() if key not in environment}

    def s3_keys(self, user: str) -> tuple[str, str]:
        """The access key and the secret key of a user of the lab's store."""
        if user == OWNER:
            return self.secrets.s3_access_key, self.secrets.s3_secret_key
        secret: str = getattr(self.secrets, f"{user}_secret_key")
        return f"nightshift-{user}", secret

    def stores(self, settings: "SiteSettings") -> "dict[str, StoreSettings]":
        """Return those stores of a configuration that are in the lab's own."""
        return {name: one for name, one in settings.stores.items() if one.connection and one.endpoint == self.s3_url}

    def roles(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The connections of the gateway and of collections to the store `cvmfs`, if it is in the lab's own."""
        environment = without_adopted(environment)
        store = self.stores(load(environ={**environment, **self.places()})).get("cvmfs")
        ours = store and store.connection == _CVMFS and connection_variable(_CVMFS) not in environment
        return {name: environment.get(name) or role for name, role in ROLES.items()} if ours else {}

    def credentials(self, environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Return the credentials in the environment of the services, for each service those that it holds."""
        used = uses(load(environ=environment), environment)
        services = {
            service: {name: environment[name] for name, what in used.items() if what & own}
            for service, own in held(self.cluster).items()
        }
        access, secret = self.s3_keys(FILES)
        return {**services, "fts": {"NIGHTSHIFT_S3_ACCESS_KEY": access, "NIGHTSHIFT_S3_SECRET_KEY": secret}}

    def places(self) -> dict[str, str]:
        """Return where the state is, and where its services listen: on loopback, or on the bridge to the workers."""
        return {
            "NIGHTSHIFT_VAR": str(self.place.var),
            "NIGHTSHIFT_GATEWAY_HOST": self.address,
            **(_ON_A_NETWORK | {"NIGHTSHIFT_S3_HOST": self.address} if self.cluster else {}),
            "NIGHTSHIFT_AIRFLOW_CONNECTION": AIRFLOW_CONNECTION,
            "NIGHTSHIFT_METRICS_CONNECTION": METRICS_CONNECTION,
            "NIGHTSHIFT_RUNS_CONNECTION": RUNS_CONNECTION,
            **self.ports.to_environment(),
        }

    def settings(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return what a command outside of the lab needs to work with its services: places, ports, connections."""
        ledger = f"{DATABASE_USER}:{self.secrets.ledger_password}@{self.address}:{self.ports.ledger}/{LEDGER}"
        found = {**self.places(), **self.roles(environment), **self.connections(environment)}
        if self.cluster:
            hours = self.consumer_timeout(environment) / timedelta(hours=1)
            found |= {
                LEDGER_URL_VARIABLE: f"mysql+pymysql://{ledger}?ssl_disabled=true",
                "NIGHTSHIFT_CONSUMER_TIMEOUT_HOURS": f"{hours:g}",
                EXECUTOR: CELERY,
                BROKER_URL: self.broker_url,
            }
        return found

    def consumer_timeout(self, environment: Mapping[str, str]) -> timedelta:
        """Return how long RabbitMQ waits for a task."""
        return consumer_timeout(load(environ={**environment, **self.places()}))

    def airflow_settings(self) -> dict[str, str]:
        """Return what differs between installations in Airflow's configuration; the rest is in airflow.cfg."""
        place, ports, secrets = self.place, self.ports, self.secrets
        server = f"@{self.address}:{ports.postgres}"
        settings = {
            "AIRFLOW_HOME": str(place.airflow_home),
            "AIRFLOW_CONFIG": str(ROOT / "airflow.cfg"),
            "PYTHONPATH": str(ROOT),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__CORE__FERNET_KEY": secrets.fernet_key,
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN}:admin,{KEEPER}:user,{VIEWER}:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(place.airflow_passwords),
            DATABASE_URL: f"postgresql+psycopg2://{DATABASE}:{secrets.airflow_database_password}{server}/{DATABASE}",
            "AIRFLOW__API__PORT": str(ports.airflow),
            "AIRFLOW__API__BASE_URL": self.airflow_url,
            # Its default is port 8080 whatever the port is.
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.airflow_url}/execution/",
            "AIRFLOW__API__SECRET_KEY": secrets.api_secret_key,
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.jwt_secret,
            # No component serves logs here; the default ports may be those of another Airflow.
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(NOBODY),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(NOBODY),
        }
        if self.cluster is None:
            return settings | {"AIRFLOW__LOGGING__LOGGING_CONFIG_CLASS": "hooks.one_disk_logs.LOGGING_CONFIG"}
        return settings | {
            EXECUTOR: CELERY,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{self.address}:{ports.execution}/execution/",
            "AIRFLOW__API__HOST": self.address,
            RESULTS_URL: f"db+postgresql+psycopg2://{RESULTS}:{secrets.celery_password}{server}/{RESULTS}",
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": str(-(-SLOTS // self.cluster.workers)),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(WORKER_LOGS),
        }

    def of_worker(self, machine: Machine) -> dict[str, str]:
        """Return what differs in the environment of a worker: the folders of its machine, and its queues."""
        place = self.place.of(machine)
        return {
            "NIGHTSHIFT_VAR": str(place.var),
            "AIRFLOW_HOME": str(place.airflow_home),
            "NIGHTSHIFT_QUEUES": ",".join(machine.queues),
        }

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of all that the lab has, as its commands need it; nothing of it appears on a command line.

        Each service gets its own `credentials` of it alone.
        """
        base = without_adopted(os.environ if base is None else base)
        binaries = str(Path(sys.executable).parent)
        machines = self.cluster.machines if self.cluster else ()
        direct = [*dict.fromkeys((LOOPBACK, "localhost", self.address, *(machine.address for machine in machines)))]
        return {
            # Airflow settings of the caller's shell belong to another installation.
            **{key: value for key, value in base.items() if not key.startswith(("AIRFLOW__", "AWS_"))},
            **self.settings(base),
            **self.airflow_settings(),
            **own_dags(base),
            MARK: str(self.place.var),
            "PATH": f"{binaries}{os.pathsep}{base.get('PATH', os.defpath)}",
            "NO_PROXY": ",".join(filter(None, (base.get("NO_PROXY"), *direct))),
            "no_proxy": ",".join(filter(None, (base.get("no_proxy"), *direct))),
            "PYTHONUNBUFFERED": "1",
            "SPT_NOENV": "1",  # or Airflow's process titles would overwrite the mark
        }

    def shell(self) -> dict[str, str]:
        """Return what a shell needs for Airflow's commands: places, ports, and of the secrets the database's password
        and the key of what is encrypted there. Keys of stores, gateways and of Airflow's API are not among them.
        """
        settings = {name: value for name, value in self.airflow_settings().items() if name not in NOT_FOR_A_SHELL}
        return {**self.places(), **settings, **own_dags(os.environ)}


def own_dags(environment: Mapping[str, str]) -> dict[str, str]:
    """Airflow's setting for a folder of DAGs beside Nightshift's own, if `NIGHTSHIFT_DAGS` names one."""
    folder = environment.get("NIGHTSHIFT_DAGS")
    if not folder:
        return {}
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [
        {"name": "dags-folder", "classpath": local, "kwargs": {}},
        {"name": "own", "classpath": local, "kwargs": {"path": str(project_root(environment) / folder)}},
    ]
    return {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles)}


def adopt(environment: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Gives a command the settings of the lab that was made here, where its environment has none of its own."""
    if MARK not in environment and (lab := Lab.made(environment)):
        adopted = {key: value for key, value in lab.settings(environment).items() if key not in environment}
        environment |= adopted | {ADOPTED: ",".join(filter(None, (environment.get(ADOPTED), *adopted)))}


def without_adopted(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the caller's environment had before `adopt`: a lab that is started is not told what it gives."""
    adopted = {ADOPTED, *environment.get(ADOPTED, "").split(",")}
    return {key: value for key, value in environment.items() if key not in adopted}


def of_a_lab(environment: Mapping[str, str] = os.environ) -> Lab:
    """The lab that was made here; raises LabError where there is none."""
    if (lab := Lab.made(environment)) is None:
        var = LabFolders.from_environment(environment).var
        raise LabError(f"no lab was made in {var}: run `make up`, or set NIGHTSHIFT_VAR to its folder")
    return lab


def has_roles(store: "StoreSettings") -> bool:
    """Tell whether the gateway and collections have keys of their own at a store."""
    own = {store.connection, store.gateway_connection, store.collector_connection}
    return None not in own and len(own) == 3


def _meant(kind: str, named: Mapping[str, str | None]) -> set[str]:
    """The ids that the lab defines for things of a kind: its own ones, and those that are hardly mistyped."""
    used = Counter(one for one in named.values() if one)
    twice = {name for name, times in used.items() if times > 1 or name == kind}
    return {f"{kind}_{name}" for name in named} | twice
