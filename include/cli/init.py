"""`nightshift init`: the first configuration of a site, of what people answer; it never replaces a file."""

from __future__ import annotations

import json
import os
import re
import secrets as random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from include.cli.main import typeable
from include.cli.repository.open import DryRun, refusing

if TYPE_CHECKING:
    from include.settings.model import SiteSettings
    from include.settings.secrets import Secrets

STORE, BUILDS, GATEWAY, GATEWAY_ADMIN = "store_cvmfs", "store_builds", "gateway", "gateway_admin"
"""Ids of connections; docker/compose.yaml defines them, too."""
ROLES = """\
    gateway_connection: "${NIGHTSHIFT_GATEWAY_STORE:-}"  # docs/operations.md, keys by role
    collector_connection: "${NIGHTSHIFT_COLLECTOR_STORE:-}"
"""
INDEX = "{slot}/{date}/index.json"
STOCK_KEYS = Path("/etc/cvmfs/keys")
TRIES_S = 5.0
TEMPLATE = """\
# The configuration of {fqrn}, made by `nightshift init`. Each key: docs/configuration.md.
# `nightshift settings check` reads it. Secrets are in connections ({connections}), never in this file.

ledger: "sqlite:///${{NIGHTSHIFT_VAR:-var}}/ledger.db"  # production: MariaDB, by NIGHTSHIFT_LEDGER_URL

paths:
  var: "${{NIGHTSHIFT_VAR:-var}}"

gateway:
  host: "${{NIGHTSHIFT_GATEWAY_HOST:-127.0.0.1}}"
  port: "${{NIGHTSHIFT_GATEWAY_PORT:-4929}}"
  insecure: "${{NIGHTSHIFT_GATEWAY_INSECURE:-false}}"
  state: "${{NIGHTSHIFT_VAR:-var}}/gateway/state.db"

# The lab sets these, docker/compose.yaml the first from docker/.env.
airflow_connection: "${{NIGHTSHIFT_AIRFLOW_CONNECTION:-}}"
metrics_connection: "${{NIGHTSHIFT_METRICS_CONNECTION:-}}"
consumer_timeout_hours: "${{NIGHTSHIFT_CONSUMER_TIMEOUT_HOURS:-}}"

# notify: {{apprise: {{connections: [mail]}}}}  # docs/operations.md, notifications

stores:
  cvmfs:  # what clients read
    url: {store}
{at_store}  builds:  # where the build system leaves archives and indices
    url: {builds}
{at_builds}
repositories:
  {fqrn}:
    store: cvmfs
    public_url: {public_url}
    public_key: {public_key}
    gateway: {gateway}
{admin}
slots:
  {slot}:
    repository: {fqrn}
    store: builds
    index: {index}
{schedule}    timezone: {timezone}
    start: {start}  # the first day of a run by schedule, or of a backfill
    links: {{latest: true, weekdays: true}}
    # retention: {{keep_last: 14}}  # docs/operations.md, retention; without it builds stay
"""


@dataclass(frozen=True, slots=True)
class InitAnswers:
    """Answers of a person, as options have them; empty: the default counts."""

    repository: str
    store: str
    index: str
    slot: str
    endpoint: str
    public_url: str
    public_key: str
    gateway: str
    gateway_key: Path | None
    schedule: str
    timezone: str
    config: Path | None


def init(
    repository: Annotated[str, typer.Option(help="The repository, as software.example.org.")] = "",
    store: Annotated[str, typer.Option(help="Where its objects are: a folder, or s3://bucket/prefix.")] = "",
    index: Annotated[
        str,
        typer.Option(
            help="Where builds are left: a folder or URL, or the URL of their index with {slot} and {date} in it."
        ),
    ] = "",
    slot: Annotated[str, typer.Option(help="Name of the series of builds.")] = "",
    endpoint: Annotated[str, typer.Option(help="S3: the address of the server; default: AWS.")] = "",
    public_url: Annotated[str, typer.Option(help="Address for readers; default: that of the store.")] = "",
    public_key: Annotated[
        str, typer.Option(help="File of the public key; default: made by `nightshift repo create`.")
    ] = "",
    gateway: Annotated[
        str, typer.Option(help="Address of a gateway that serves the repository; default: Nightshift's own.")
    ] = "",
    gateway_key: Annotated[
        Path | None, typer.Option(help="File with the key of that gateway: plain_text <id> <secret>.")
    ] = None,
    schedule: Annotated[str, typer.Option(help='Beginning of a night, as cron has it; "": by hand.')] = "30 1 * * *",
    timezone: Annotated[str, typer.Option(help="Time zone of the schedule and of build dates.")] = "UTC",
    config: Annotated[
        Path | None, typer.Option(help="The file to write, in the project's folder; default: config/REPOSITORY.yaml.")
    ] = None,
    make_buckets: Annotated[bool, typer.Option("--make-buckets", help="S3: make buckets that are not there.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Write the first configuration of a site and its connections, and print what to do next.

    Asks for the repository, the store, the index and the slot where no option gives them. The keys of S3 are taken
    from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or asked for. All is tried before a file is written; no file is
    replaced. Run again with the same answers it changes nothing.
    """
    with refusing():
        from include.settings.load import project_root
        from include.settings.text_types import Fqrn, Name

        repository = _answer("repository", repository, "Repository, as software.example.org", Fqrn)
        asks = not (store and index)
        store = _answer("store", store, "Store of its objects: a folder, or s3://bucket/prefix")
        index = _answer("index", index, "Where builds are left: a folder, a URL, or the URL of an index with {date}")
        if asks and not endpoint and (_is_s3(store) or _is_s3(index)):
            endpoint = _asked("Address of S3, as https://host; empty: AWS", default="", option="endpoint")
        slot = _answer("slot", slot, "Slot, the name of the series of builds", Name, default="main")
        answers = InitAnswers(
            repository, _url(store), _url(index), slot, endpoint, public_url, public_key, gateway, gateway_key,
            schedule, timezone, config,
        )  # fmt: skip
        root = project_root()
        path = root / (config or Path("config") / f"{repository}.yaml")
        text, settings = _settings(answers, path, root)
        file = settings.paths.var / f"{path.stem}.env"
        connections = _connections(answers, settings, file)
        planned = {file: _exports(file, path.relative_to(root) if path.is_relative_to(root) else path, connections)}
        planned[path] = text
        absent = [each for each, content in planned.items() if not _is_there(each, content)]
        missing_buckets = _try(settings, connections, make_buckets=make_buckets)
        if dry_run:
            typer.echo(text)
            typer.echo(f"# {file}, mode 600, would have {', '.join(connections)}. Nothing was written.")
            return
        for make in missing_buckets:
            make()
        for each in absent:
            _create(each, planned[each])
    for each in planned:
        typer.echo(f"{each}: {'written' if each in absent else 'unchanged'}")
    typer.echo("\nNext, in this shell (docs/production.md):")
    for line in _next(answers, file):
        typer.echo(f"  {typeable(line)}")


def _next(answers: InitAnswers, file: Path) -> Iterator[str]:
    here = os.path.relpath(file)
    yield f"set -a; . {shlex.quote(file.as_posix() if here.startswith('..') else f'./{here}')}; set +a"
    yield "nightshift lab up"
    yield "nightshift settings check" if answers.gateway else f"nightshift repo create {answers.repository}"


# -- answers


def _answer(option: str, given: str, question: str, kind: Any = None, *, default: str | None = None) -> str:
    """The value of an option, or what a person answers. Raises INIT_REFUSED for one that cannot be."""
    return _checked(option, given or _asked(question, default=default, option=option), kind)


def _asked(question: str, *, default: str | None = None, option: str = "", hidden: bool = False) -> str:
    from include.settings.errors import INIT_REFUSED

    try:
        return str(typer.prompt(question, default=default, hide_input=hidden)).strip()
    except typer.Abort:
        what = f"give --{option}" if option else "give it by its option or variable"
        raise INIT_REFUSED(f"no answer to: {question}; {what}, see: nightshift init --help") from None


def _checked(option: str, text: str, kind: Any) -> str:
    from pydantic import TypeAdapter, ValidationError

    from include.settings.errors import INIT_REFUSED

    if kind is None:
        return text
    try:
        return str(TypeAdapter(kind).validate_python(text))
    except ValidationError as invalid:
        fault = invalid.errors()[0]
        context = fault.get("ctx", {})
        what, cure = context.get("what", fault["msg"]), context.get("cure", "Correct it.")
        raise INIT_REFUSED(f"--{option}: {what}. {cure}") from None


def _url(text: str) -> str:
    """An answer as a URL; a path is of the folder where the command was typed."""
    if re.match(r"[a-z][a-z0-9+.-]*:", text):
        return text
    return f"file://{quote(str(Path(text).expanduser().absolute()), safe='/{}')}"


def _is_s3(url: str) -> bool:
    from include.storage.kinds import S3, SCHEMES

    return SCHEMES.get(url.partition(":")[0]) is S3


def _split_index(url: str) -> tuple[str, str]:
    """The URL of the store, and the index's key in it: it begins with the first component that has a field."""
    components = url.rstrip("/").split("/")
    fields = [number for number, component in enumerate(components) if "{" in component]
    first = fields[0] if fields else len(components) - 1 if url.endswith(".json") else len(components)
    return "/".join(components[:first]), "/".join(components[first:]) or INDEX


# -- the file


def _settings(answers: InitAnswers, path: Path, root: Path) -> tuple[str, SiteSettings]:
    """The text of the configuration, and how it is understood. Raises INIT_REFUSED."""
    from include.nightlies.rules.passes import today
    from include.settings.errors import INIT_REFUSED, InvalidSettings
    from include.settings.load import parse
    from include.settings.text_types import HttpUrl, IndexTemplate, PublicUrl, Schedule, StoreUrl, Zone

    builds, key = _split_index(answers.index)
    for option, text, kind in (
        ("store", answers.store, StoreUrl),
        ("index", key, IndexTemplate),
        ("index", builds, StoreUrl),
        ("endpoint", answers.endpoint, HttpUrl),
        ("public-url", answers.public_url, PublicUrl),
        ("gateway", answers.gateway, HttpUrl),
        ("schedule", answers.schedule, Schedule),
        ("timezone", answers.timezone, Zone),
    ):
        if text:
            _checked(option, text, kind)
    tomorrow = today(answers.timezone, datetime.now(UTC)) + timedelta(days=1)
    earlier = path.read_text(errors="replace") if path.is_file() else ""
    existing = re.search(r"^    start: (\d{4}-\d\d-\d\d)", earlier, re.MULTILINE)
    ids = {STORE: answers.store, BUILDS: builds}
    names = [name for name, url in ids.items() if _is_s3(url)]
    names += [GATEWAY] if answers.gateway else [GATEWAY, GATEWAY_ADMIN]
    text = TEMPLATE.format(
        fqrn=answers.repository,
        connections=", ".join(names),
        store=_scalar(answers.store),
        at_store=_at(answers, STORE, answers.store),
        builds=_scalar(builds),
        at_builds=_at(answers, BUILDS, builds),
        public_url=_scalar(answers.public_url or _public_url(answers)),
        public_key=_public_key(answers),
        gateway=GATEWAY,
        admin="" if answers.gateway else f"    gateway_admin: {GATEWAY_ADMIN}\n",
        slot=answers.slot,
        index=_scalar(key),
        schedule=f"    schedule: {_scalar(answers.schedule)}\n" if answers.schedule else "",
        timezone=_scalar(answers.timezone),
        start=existing[1] if existing else tomorrow,
    )
    try:
        return text, parse(text, file=str(path), root=root, environ=os.environ)
    except InvalidSettings as error:
        faults = "\n".join(f"{problem.key}: {problem.text}" for problem in error.problems)
        raise INIT_REFUSED(f"the answers make no configuration; nothing was written:\n{faults}") from None


def _scalar(text: str) -> str:
    """A text in YAML, as it is: the loader expands no variable in it."""
    return json.dumps(text.replace("${", "$${"), ensure_ascii=False)


def _at(answers: InitAnswers, connection: str, url: str) -> str:
    if not _is_s3(url):
        return ""
    where = f"    endpoint: {_scalar(answers.endpoint)}\n" if answers.endpoint else ""
    keys = ROLES if connection == STORE else ""
    return f"{where}    connection: {connection}\n{keys}"


def _public_url(answers: InitAnswers) -> str:
    place = answers.store.rstrip("/").partition("://")[2]
    if not _is_s3(answers.store):
        return f"{answers.store.rstrip('/')}/{answers.repository}"
    return f"{answers.endpoint.rstrip('/') or 'https://s3.amazonaws.com'}/{place}/{answers.repository}"


def _public_key(answers: InitAnswers) -> str:
    from include.settings.errors import INIT_REFUSED

    if answers.public_key or answers.gateway:
        path = Path(answers.public_key or STOCK_KEYS / f"{answers.repository}.pub").expanduser().absolute()
        if not path.is_file():
            cure = "Copy it from the gateway's machine, /etc/cvmfs/keys there, and give it by --public-key."
            raise INIT_REFUSED(f"--public-key: there is no file {path}. {cure}")
        return _scalar(str(path))
    return f'"${{NIGHTSHIFT_VAR:-var}}/keys/{answers.repository}.pub"'


# -- connections


def _connections(answers: InitAnswers, settings: SiteSettings, file: Path) -> dict[str, str]:
    """The connections that the configuration names, by their variables: of the environment, of the file, or new."""
    from include.settings.secrets import connection_variable

    earlier = _earlier(file)

    def of(connection: str) -> str:
        variable = connection_variable(connection)
        return os.environ.get(variable) or earlier.get(variable, "")

    made: dict[str, str] = {}
    for store, connection in ((settings.stores["cvmfs"], STORE), (settings.stores["builds"], BUILDS)):
        if store.connection:
            made[connection] = of(connection) or made.get(STORE) or of(STORE) or _s3_key()
    if answers.gateway:
        made[GATEWAY] = _gateway_key(answers)
    else:
        for connection in (GATEWAY, GATEWAY_ADMIN):
            login, password = f"nightshift-{random.token_hex(4)}", random.token_hex(32)
            made[connection] = of(connection) or _connection("cvmfs_gateway", login, password, host="127.0.0.1")
    return {connection_variable(connection): value for connection, value in made.items()}


def _connection(kind: str, login: str, password: str, **more: str) -> str:
    return json.dumps({"conn_type": kind, **more, "login": login, "password": password})


def _s3_key() -> str:
    key = os.environ.get("AWS_ACCESS_KEY_ID") or _asked("Access key of S3 (AWS_ACCESS_KEY_ID)")
    secret = os.environ.get("AWS_SECRET_ACCESS_KEY") or _asked("Secret key (AWS_SECRET_ACCESS_KEY)", hidden=True)
    return _connection("object_store", key, secret)


def _gateway_key(answers: InitAnswers) -> str:
    from include.cvmfs.format.keys import load_gateway_key
    from include.settings.errors import INIT_REFUSED

    path = answers.gateway_key or STOCK_KEYS / f"{answers.repository}.gw"
    if not path.is_file():
        cure = "Give the file with the key of that gateway by --gateway-key; its operator has it."
        raise INIT_REFUSED(f"--gateway-key: there is no file {path}. {cure}")
    key = load_gateway_key(path)
    return _connection("cvmfs_gateway", key.key_id, key.secret, host=answers.gateway)


def _earlier(file: Path) -> dict[str, str]:
    """The variables that an earlier run left in the file."""
    if not file.is_file():
        return {}
    try:
        words = shlex.split(file.read_text(errors="replace"), comments=True)
    except ValueError:
        return {}  # no file of ours, and it is not replaced
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _exports(file: Path, config: Path, connections: Mapping[str, str]) -> str:
    """The lines of the file of secrets, for a shell."""
    head = f"# Secrets. Into a shell by: set -a; . {shlex.quote(str(file))}; set +a\n"
    values = {"NIGHTSHIFT_CONFIG": str(config), **connections}
    return head + "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


# -- trials, and the files


def _try(settings: SiteSettings, connections: Mapping[str, str], *, make_buckets: bool) -> Sequence[Callable[[], bool]]:
    """See that the stores and the gateway are there; returns what makes the buckets that are not.

    Raises INIT_REFUSED: something is not there, or cannot be used; nothing was written then.
    """
    from include.settings.errors import INIT_REFUSED
    from include.settings.secrets import EnvSecrets
    from include.storage.kinds import kind_of

    secrets = EnvSecrets(connections)
    if not kind_of(settings.stores["cvmfs"].url).writable:
        raise INIT_REFUSED("--store: it can only be read. Give a folder, or s3://bucket/prefix.")
    missing = [*_try_store("store", settings, secrets), *_try_store("index", settings, secrets)]
    if missing and not make_buckets:
        names = " and ".join(name for name, _ in missing)
        raise INIT_REFUSED(f"--{names}. Make it, or give --make-buckets.")
    _try_gateway(settings, secrets)
    return [make for _, make in missing]


def _try_store(option: str, settings: SiteSettings, secrets: Secrets) -> Iterator[tuple[str, Callable[[], bool]]]:
    from include.nightlies.rules.passes import today
    from include.nightlies.steps.sources import index_place
    from include.settings.errors import INIT_REFUSED
    from include.site.site import credentials_of, options_of
    from include.storage.buckets import bucket_exists, ensure_bucket
    from include.storage.errors import StoreError
    from include.storage.file import FileStore
    from include.storage.open import open_store

    store, slot = settings.stores["cvmfs" if option == "store" else "builds"], next(iter(settings.slots.values()))
    credentials, quick = credentials_of(store, secrets), replace(options_of(store), retries=0, timeout_s=TRIES_S)
    try:
        opened = open_store(store.url, credentials=credentials, options=quick)
        if isinstance(opened, FileStore):
            _try_folder(option, opened.root)
        elif credentials and not bucket_exists(store.url, credentials, quick):
            what = f"{option}: there is no bucket for {store.url} at {store.endpoint or 'AWS'}"
            yield what, partial(ensure_bucket, store.url, credentials, quick)
        elif option == "index":
            opened.head(index_place(slot, today(slot.timezone, datetime.now(UTC))))
    except StoreError as error:
        raise INIT_REFUSED(f"--{option}: {store.url} cannot be used: {error}") from None


def _try_gateway(settings: SiteSettings, secrets: Secrets) -> None:
    from include.gateway.client.client import open_gateway
    from include.gateway.errors import GatewayError
    from include.settings.errors import INIT_REFUSED

    (repository,) = settings.repositories.values()
    if repository.gateway_admin is not None:
        return  # our own, which is not started yet
    try:
        connection = secrets.get(repository.gateway)
        with open_gateway(connection, port=settings.gateway.port, timeout_s=TRIES_S, retries=0) as client:
            served = [each.name for each in client.repositories()]
    except GatewayError as error:
        raise INIT_REFUSED(f"--gateway: {error}") from None
    if repository.fqrn not in served:
        cure = "Add the repository there first, or correct --repository."
        raise INIT_REFUSED(f"--gateway: it serves {', '.join(served) or 'no repository'}. {cure}")


def _try_folder(option: str, folder: Path) -> None:
    from include.settings.errors import INIT_REFUSED

    if option == "index":
        if not folder.is_dir():
            raise INIT_REFUSED(f"--index: there is no folder {folder}. Make it, or correct the answer.")
        return
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise INIT_REFUSED(f"--store: {nearest} is no folder that this user may write to. Give another one.")


def _is_there(path: Path, text: str) -> bool:
    """Tell whether a file has this very text. Raises INIT_REFUSED for another one, which stays."""
    from include.settings.errors import INIT_REFUSED

    if not os.path.lexists(path):
        return False
    if not path.is_file() or path.read_text(errors="replace") != text:
        cure = "Edit it (nightshift settings check reports mistakes), or give another file by --config."
        raise INIT_REFUSED(f"{path} exists and is not what these answers make; nothing was written. {cure}")
    return True


def _create(path: Path, text: str) -> None:
    from include.settings.errors import INIT_REFUSED

    mode = 0o600 if path.suffix == ".env" else 0o644
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
    except OSError as error:
        raise INIT_REFUSED(
            f"{path} cannot be written: {error.strerror}. Correct its folder and run it again."
        ) from None
