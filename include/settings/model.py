"""The configuration as frozen models. Build them through `include.settings.load`, which also checks references.

Paths in a `Site` are absolute: a relative path in the file is relative to the project root (`NIGHTSHIFT_HOME`, else the
folder that holds `include/`), whatever the current directory is. This file imports nothing heavy: DAG files read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from enum import Enum
from typing import Annotated, Literal, TypeVar

from pydantic import Field, PrivateAttr, field_validator, model_validator

from include.settings.benchmarks import BenchmarkSettings
from include.settings.caches import CacheSettings
from include.settings.errors import SettingsError
from include.settings.prepare import ArtifactLimits, Block as _Block, Prepare, QualitySettings
from include.settings.retention import CollectionSettings, Retention, TagRule
from include.settings.services import BackupSettings, Gateway, NodeSettings, Notify, Paths, Replicas, keys_below_var
from include.settings.sites import CredentialSource, FederationSettings, RemoteSite, require_folders_below
from include.settings.stageout import CatalogueKind, StageoutSettings
from include.settings.text_types import (
    ConnectionId,
    Cutoff,
    DestinationTemplate,
    FolderTemplate,
    Fqrn,
    HttpUrl,
    IndexTemplate,
    LedgerUrl,
    Name,
    PublicUrl,
    Schedule,
    SitePath,
    StoreUrl,
    TagTemplate,
    TimeOfDay,
    Zone,
    fault,
    fields,
)


class PublisherKind(Enum):
    """The publisher of a repository: by Nightshift itself, or by `cvmfs_server` on a publisher node."""

    NATIVE = "native"
    CVMFS_SERVER = "cvmfs-server"


class GatewayKind(Enum):
    """The kind of a repository's gateway; `auto` finds out by asking it."""

    AUTO = "auto"
    EMBEDDED = "embedded"
    STOCK = "stock"


class Begins(Enum):
    """The beginning of a slot's night: its schedule, its first artifact, or whichever of the two comes first."""

    SCHEDULE = "schedule"
    ARTIFACT = "artifact"
    EITHER = "either"


class HashAlgorithm(Enum):
    """The hash of a repository's objects; SHA-1 is what every client of CernVM-FS reads."""

    SHA1 = "sha1"
    RMD160 = "rmd160"
    SHAKE128 = "shake128"


BlockT = TypeVar("BlockT", bound=_Block)


class Care(_Block):
    """Settings of the DAG `repository_care` for a repository."""

    whitelist_days: Annotated[int, Field(ge=0, le=365)] = 7
    """The run fails so many days before the whitelist ends, so that it is signed again in time."""
    tags: TagRule | None = None
    """Rule for tags that stay. None: no tag is removed."""
    protect_tags: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Patterns of tags that no rule takes away."""


class StoreSettings(_Block):
    """An object store: where it is and how it is spoken to (docs/operations.md, keys by role)."""

    name: str
    url: StoreUrl
    """`s3://bucket/prefix`, `file:folder`, or `http(s)://host/path` for a store that is only read."""
    endpoint: HttpUrl | None = None
    """S3: the address of the server. None: that of AWS in `region`."""
    region: str = "us-east-1"
    """S3: the region that requests are signed for."""
    addressing: Literal["path", "virtual"] = "path"
    """S3: whether the bucket is in the path of a request, or in the name of its host."""
    connection: ConnectionId | None = None
    """The connection with the publishers' access key and secret. None: requests are not signed."""
    gateway_connection: ConnectionId | None = None
    """The key of the gateway, which switches manifests. None, or empty: that of `connection`."""
    collector_connection: ConnectionId | None = None
    """The key of collections, which delete objects. None, or empty: that of `connection`."""
    connections: Annotated[int, Field(ge=1, le=1024)] = 64
    """Requests that one process has in flight at the same time."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Seconds until an answer begins, and between two pieces of its body."""
    retries: Annotated[int, Field(ge=0, le=50)] = 5
    """Number of repetitions of a request after a time-out, a dropped connection, HTTP 429 or 5xx."""
    acl: str | None = None
    """S3: the canned ACL that each PUT sends. None: none; the bucket's policy decides who may read."""
    fsync: Literal["always", "switch", "never"] = "switch"
    """Folders: when what is written is flushed to the disk (docs/operations.md, stores in folders)."""

    @field_validator("gateway_connection", "collector_connection", mode="before")
    @classmethod
    def _none_if_empty(cls, value: object) -> object:
        return value or None  # out of a variable that is not set


class Approval(_Block):
    """A user has to say yes before anything is published (docs/operations.md, approval).

    Its longest deadline leaves a changeset enough of its life for being prepared before, and published after it.
    """

    deadline_minutes: Annotated[int, Field(ge=1, le=720)] = 240
    """Time to wait for an answer; without one nothing is published, and a message is sent."""
    approvers: tuple[Annotated[str, Field(pattern=r"^\S(.{0,254}\S)?$")], ...] = ()
    """Ids of Airflow's users who may answer; empty: everyone who may act on the DAG."""


class RepositorySettings(_Block):
    """A CernVM-FS repository."""

    name: str
    store: str
    """The store, of `stores:`, that has its objects, below the repository's name."""
    public_url: PublicUrl
    """Public address: the folder of `.cvmfspublished`."""
    public_key: SitePath
    """The file of its public key, by which what readers see is verified."""
    gateway: ConnectionId
    """The connection of its gateway: the address, and the key that leases are taken with."""
    gateway_kind: GatewayKind = GatewayKind.AUTO
    gateway_admin: ConnectionId | None = None
    """The connection with an administrator's key of the gateway: it ends leases that were left behind, and collects
    garbage behind a stock gateway."""
    publisher: PublisherKind = PublisherKind.NATIVE
    server: NodeSettings | None = None
    """The node, for `publisher: cvmfs-server`."""
    allow_lossy: tuple[Literal["hard-links", "specials", "owners", "xattrs"], ...] = ()
    """Properties that may get lost where a stock receiver drops them; otherwise such trees are refused."""
    hash: HashAlgorithm = HashAlgorithm.SHA1
    """Hash algorithm of a new repository; an existing one keeps its own."""
    garbage_collectable: bool = True
    """Allows garbage collection; a new repository says so in its manifest."""
    collection: CollectionSettings = CollectionSettings()
    reflog_checksum: SitePath | None = None
    """`/var/spool/cvmfs/<fqrn>/reflog.chksum` where `cvmfs_server` works on it on the gateway's machine, too."""
    manifest_writers: Annotated[int, Field(ge=1)] = 1
    """Gateways that may switch this repository's manifest at once; more than one needs conditional replace."""
    limits: ArtifactLimits = ArtifactLimits()
    prepare: Prepare = Prepare()
    care: Care = Care()
    approval: Approval | None = None
    """None: what is planned is published without a question."""
    replicas: Replicas = ()
    """Stratum 1s and other copies that readers use."""

    @property
    def snapshot_grace(self) -> timedelta:
        """Time for which replicas may still need a superseded revision."""
        return max((replica.needs for replica in self.replicas), default=timedelta())

    @model_validator(mode="after")
    def _node_if_wanted(self) -> RepositorySettings:
        on_node = self.publisher is PublisherKind.CVMFS_SERVER
        if on_node and self.server is None:
            cure = "Add `server:` with host, user, known_hosts, behind, and key or agent (docs/publishers.md)."
            raise fault("publisher cvmfs-server without a node", cure)
        if self.server is not None and not on_node:
            raise fault("a node that nothing is published with", "Set `publisher: cvmfs-server`, or remove `server:`.")
        if self.server is not None:
            self._node_can(self.server)
        if self.prepare.mtime_ns and (on_node or self.gateway_kind is GatewayKind.STOCK):
            cure = "Remove `mtime_ns`, or publish with `publisher: native` through Nightshift's gateway."
            raise fault("nanoseconds, which stock publishers and receivers up to 2.11 do not write", cure)
        return self

    def _node_can(self, node: NodeSettings) -> None:
        options = self.prepare
        if options.dirtab or options.autocatalogs:
            cure = "Remove `dirtab` and `autocatalogs` here, and set them in the repository's server.conf on the node."
            raise fault("catalogs are cut by the node, not here", cure)
        if options.chunks != "stock" or options.compression != "stock":
            cure = "Remove `chunks` and `compression` here, and set CVMFS_MIN_CHUNK_SIZE and others on the node."
            raise fault("files are cut and compressed by the node, not here", cure)
        if (options.owner or options.uid_map or options.gid_map) and not node.keep_owners:
            raise fault("owners that the node does not keep", "Set `keep_owners: true` in `server:`, or remove them.")
        if options.xattrs and node.install == "ingest":
            raise fault("ingest takes no extended attributes", "Set `install: transaction`, or remove `xattrs`.")

    @property
    def fqrn(self) -> str:
        """The fully qualified repository name: the key of this block in the file."""
        return self.name


class Links(_Block):
    """Symbolic links to the builds of a slot that are whole: `latest`, and one for each day of the week."""

    folder: FolderTemplate = "/nightlies/{slot}"
    """The directory of the links; `{slot}` is filled in."""
    latest: bool = True
    """Lets `latest` lead to the newest build."""
    weekdays: bool = True
    """Lets `Mon` to `Sun` lead to the newest build of that day."""

    @model_validator(mode="after")
    def _some(self) -> Links:
        if not self.latest and not self.weekdays:
            raise fault("links of which none is wanted", "Set `latest: true` or `weekdays: true`, or remove `links:`.")
        return self


class Choice(_Block):
    """Some of a slot's artifacts: those of these projects, and those of these platforms."""

    projects: tuple[Name, ...] = ()
    """Names of projects; empty: none is named."""
    platforms: tuple[Name, ...] = ()
    """Names of platforms; empty: none is named."""


class IndexSignature(_Block):
    """Signatures that a slot requires of its indices; docs/formats.md, build index."""

    public_key: SitePath
    """Ed25519 or RSA, in PEM."""
    suffix: Annotated[str, Field(pattern=r"^\.[A-Za-z0-9._-]{1,32}$")] = ".sig"
    """Suffix of the signature's key, after the index's."""


class Slot(_Block):
    """A series of builds.

    What is listed or expected is required unless `optional` has its project or its platform, or `required` names
    projects or platforms and not its own.
    """

    name: str
    repository: str
    """The repository, of `repositories:`, that its builds are published to."""
    store: str
    """The store, of `stores:`, where the build system leaves archives and indices."""
    index: IndexTemplate = "{slot}/{date}/index.json"
    """The key of a build's index in that store (docs/formats.md, build index); `{slot}` and `{date}` are filled in."""
    schedule: Schedule | None = None
    """Schedule of its night, in `timezone`. None: a person or the first artifact begins it."""
    begins: Begins = Begins.SCHEDULE
    timezone: Zone = "UTC"
    """The time zone of its times and dates."""
    start: date | None = None
    """The first day, in `timezone`, that a run of its DAG may have. None: 2026-01-01 in UTC."""
    date_offset: Annotated[int, Field(ge=-31, le=31)] = 0
    """Days from the run's day, in the slot's time zone, to the date of the build that it installs."""
    projects: tuple[Name, ...] = ()
    """The projects that are installed; empty: all that the index lists."""
    platforms: tuple[Name, ...] = ()
    """The platforms that are installed; empty: all that the index lists."""
    destination: DestinationTemplate = "/nightlies/{slot}/{build_id}/{project}/{platform}"
    """The directory of an artifact; `{slot}`, `{build_id}`, `{date}`, `{project}` and `{platform}` are filled in."""
    priority: Annotated[int, Field(ge=1, le=1000)] = 10
    """Priority of its tasks in Airflow; the higher number goes first."""
    retries: Annotated[int, Field(ge=0, le=20)] = 2
    """Number of retries of a task by Airflow."""
    cutoff: Cutoff = "6h"
    """End of a scheduled night whose index is not complete: the next such time of day in the slot's time zone after
    its schedule, or so long after it."""
    gather_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Time that new artifacts of the index wait for more."""
    poll_s: Annotated[float, Field(ge=0.1, le=3600)] = 30.0
    """Longest time between two checks of the index while the night is open."""
    index_signature: IndexSignature | None = None
    """None: everyone who may write to the slot's store may write indices."""
    summary_at: TimeOfDay | None = None
    """Time of day, in the slot's time zone, at which the night's summary is made and sent; none without."""
    required: Choice = Choice()
    """Artifacts that a build must have; empty: all that is not optional."""
    optional: Choice = Choice()
    """Artifacts that a build may lack."""
    links: Links | None = None
    """Symbolic links to the slot's builds that are whole. None: none are set."""
    tag: TagTemplate | None = None
    """The name of the revision in which a build is whole, of `{slot}`, `{build_id}` and `{date}`. None: no tag."""
    partial: Literal["copy", "link"] = "copy"
    """Form of the artifacts that a partial build inherits: trees of its own that share all objects, or links."""
    retention: Retention | None = None
    """None: builds stay until a person removes them."""
    quality: QualitySettings | None = None
    """None: no suite judges the slot's builds."""
    demonstration: bool = False
    """Lets `nightshift nightly run` pack its builds; no build system may write to its store then."""
    _without: frozenset[str] = PrivateAttr(default=frozenset())

    def without(self, artifacts: Iterable[str]) -> Slot:
        """The slot as a run sees it that does without these artifacts, each `project/platform`."""
        copy = self.model_copy()
        copy._without = frozenset(artifacts)  # noqa: SLF001 - its own
        return copy

    def does_without(self, project: str, platform: str) -> bool:
        """Tell whether a run goes on without it."""
        return f"{project}/{platform}" in self._without

    @model_validator(mode="after")
    def _something_begins_it(self) -> Slot:
        if self.begins is Begins.ARTIFACT and self.schedule is not None:
            cure = "Set `begins: either`, or remove `schedule`."
            raise fault("a schedule of nights that begin with their first artifact", cure)
        if self.begins is Begins.EITHER and self.schedule is None:
            raise fault(
                "nights that begin by a schedule that there is not", "Add `schedule`, or set `begins: artifact`."
            )
        return self

    @model_validator(mode="after")
    def _choices_agree(self) -> Slot:
        for kind in ("projects", "platforms"):
            required, optional = set(getattr(self.required, kind)), set(getattr(self.optional, kind))
            both = ", ".join(sorted(required & optional))
            if both:
                raise fault(f"{kind} that are required and optional: {both}", "Keep each in one of the two.")
            taken = set(getattr(self, kind))
            strange = ", ".join(sorted((required | optional) - taken)) if taken else ""
            if strange:
                cure = f"Add them to `{kind}`, or remove them from `required` and `optional`."
                raise fault(f"{kind} that the slot does not take: {strange}", cure)
        return self

    @model_validator(mode="after")
    def _links_lead_to_one_build(self) -> Slot:
        shared: set[str] = set()
        for component in self.destination.split("/"):
            if fields(component) & {"project", "platform"}:
                break
            shared |= fields(component)
        links = self.links is not None or self.partial == "link"
        if (links or self.retention) and not shared & {"build_id", "date"}:
            which = "links" if links else "retention"
            cure = f"Put {{build_id}} or {{date}} before {{project}} and {{platform}}, or do without {which}."
            raise fault(f"{which} of builds that have no directory of their own", cure)
        return self


class SiteSettings(_Block):
    """The whole configuration of a deployment."""

    ledger: LedgerUrl = "sqlite:///var/ledger.db"
    """Nightshift's own database: `sqlite:///file`, or `mysql+pymysql://host:port/database?ssl_ca=<PEM file>`."""
    ledger_connection: ConnectionId | None = None
    """The connection with login and password of a MySQL ledger. None: what `ledger` says is all."""
    airflow_connection: ConnectionId | None = None
    """A user of Airflow's REST API, for looking at its pools (`nightshift preflight`); empty for none."""
    metrics_connection: ConnectionId | None = None
    """Its password is the token with which Prometheus reads `/nightshift/metrics`; empty: no one can read it."""
    outage_minutes: Annotated[int, Field(ge=0, le=720)] = 45
    """Time to wait for a store, gateway or publisher node that cannot be reached; 0: only its retries wait."""
    collection_schedule: Schedule | None = "0 12 * * *"
    """Schedule of the DAG `nightly_gc`, in UTC; None: by hand only."""
    consumer_timeout_hours: Annotated[float, Field(gt=0)] | None = None
    """RabbitMQ's `consumer_timeout`, for `nightshift preflight`; RabbitMQ does not tell its clients."""
    paths: Paths = Paths()
    gateway: Gateway = Gateway()
    notify: Notify = Notify()
    backup: BackupSettings = BackupSettings()
    stores: Mapping[Name, StoreSettings] = Field(default_factory=dict)
    repositories: Mapping[Fqrn, RepositorySettings] = Field(default_factory=dict)
    slots: Mapping[Name, Slot] = Field(default_factory=dict)
    sites: Mapping[Name, RemoteSite] = Field(default_factory=dict)
    federation: FederationSettings = FederationSettings()
    caches: Mapping[Name, CacheSettings] = Field(default_factory=dict)
    benchmarks: BenchmarkSettings = BenchmarkSettings()
    stageout: StageoutSettings = StageoutSettings()

    @model_validator(mode="before")
    @classmethod
    def _defaults_know_the_root(cls, value: object) -> object:
        # a default made at import time would miss the root of this very load
        return (
            keys_below_var({"gateway": {}, "paths": {}, "ledger": "sqlite:///var/ledger.db", **value})
            if isinstance(value, Mapping)
            else value
        )

    @model_validator(mode="before")
    @classmethod
    def _no_sites_without_stageout(cls, value: object) -> object:
        block = value.get("stageout") if isinstance(value, Mapping) else None
        off = isinstance(block, Mapping) and str(block.get("enabled")).lower() == "false"
        return {**value, "sites": {}} if off and isinstance(value, Mapping) else value

    @field_validator("airflow_connection", "metrics_connection", "consumer_timeout_hours", mode="before")
    @classmethod
    def _none_if_empty(cls, value: object) -> object:
        return value or None  # out of a variable that is not set

    @field_validator("stores", "repositories", "slots", "sites", "caches", mode="before")
    @classmethod
    def _blocks_know_their_names(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: {**block, "name": key} if isinstance(block, Mapping) else block for key, block in value.items()}

    def store(self, name: str) -> StoreSettings:
        """The store of that name; SettingsError names those that there are."""
        return _pick("store", self.stores, name)

    def repository(self, fqrn: str) -> RepositorySettings:
        """The repository of that name; SettingsError names those that there are."""
        return _pick("repository", self.repositories, fqrn)

    def slot(self, name: str) -> Slot:
        """The slot of that name; SettingsError names those that there are."""
        return _pick("slot", self.slots, name)

    def remote_site(self, name: str) -> RemoteSite:
        """The storage site of that name; SettingsError names those that there are."""
        return _pick("site", self.sites, name)

    def cache(self, name: str) -> CacheSettings:
        """The cache of that name; SettingsError names those that there are."""
        return _pick("cache", self.caches, name)

    @model_validator(mode="after")
    def _backups_have_a_store_of_their_own(self) -> SiteSettings:
        name = self.backup.store
        if name is not None and name not in self.stores:
            raise fault(f"backups go to a store that is not configured: {name}", "Add it below `stores:`.")
        for other in {repository.store for repository in self.repositories.values()} if name is not None else ():
            own, of_readers = (f"{self.stores[each].url.rstrip('/')}/" for each in (str(name), other))
            if own.startswith(of_readers) or of_readers.startswith(own):
                what = f"backups go to {name}, which readers of a repository may see: it overlaps the store {other}"
                raise fault(what, "Name a store of their own.")
        return self

    @model_validator(mode="after")
    def _caches_have_repositories(self) -> SiteSettings:
        for cache in self.caches.values():
            for fqrn in cache.repositories:
                if fqrn not in self.repositories:
                    cure = "Add it below `repositories:`, or take it out."
                    raise fault(f"cache {cache.name} has a repository that is not configured: {fqrn}", cure)
        return self

    @model_validator(mode="after")
    def _probes_have_credentials(self) -> SiteSettings:
        for site in self.sites.values():
            if site.probe and site.credential is not CredentialSource.SERVICE and self.federation.owner is None:
                what = f"site {site.name} is probed, and asks for the credential of a user"
                raise fault(what, "Add `federation.owner`, the user whose credential probes have.")
        return self

    @model_validator(mode="after")
    def _files_of_sites_are_ours(self) -> SiteSettings:
        require_folders_below(self.paths.var, self.sites.values())
        return self

    @model_validator(mode="after")
    def _sites_are_in_the_catalogue(self) -> SiteSettings:
        if self.stageout.catalogue.kind is CatalogueKind.RUCIO:
            for site in self.sites.values():
                if site.write and site.rse is None:
                    what = f"site {site.name}: files may go there, and it has no `rse` for the catalogue in Rucio"
                    raise fault(what, "Add `rse:`, the site's name in Rucio.")
        return self

    @model_validator(mode="after")
    def _temporary_files_are_apart(self) -> SiteSettings:
        for site in self.sites.values():
            if site.temporary is not None:
                self.stageout.require_apart(site.name, site.temporary)
        return self


def _pick(kind: str, blocks: Mapping[str, BlockT], name: str) -> BlockT:
    try:
        return blocks[name]
    except KeyError:
        listed = ", ".join(sorted(blocks)) or "none"
        cure = "Use one of these or add it there."
        raise SettingsError(f"unknown {kind} {name!r}; the configuration has: {listed}. {cure}") from None
