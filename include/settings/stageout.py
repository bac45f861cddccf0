"""Settings of stage-out: FTS servers, identities, name spaces, limits and times (config/site.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from include.settings.prepare import Block
from include.settings.text_types import ConnectionId, Name, fault, fields, fill, is_below, logical_name_fault

_USER = "{user}"
PASS_S = 50
"""Seconds that one run of a component may take."""


def _name_space(text: str) -> str:
    wrong = logical_name_fault(text.replace(_USER, "user"))
    if wrong or _USER not in text.split("/"):
        what = wrong or "does not have {user} as one of its folders"
        raise fault(f"the name space {text!r} {what}", 'Write it from the root on, as "/store/user/{user}".')
    return text


NameSpace = Annotated[str, AfterValidator(_name_space)]


class GridIdentity(Block):
    """Identity of an Airflow user at the sites, where that differs from the user's name."""

    name: str
    user: Name | None = None
    """The user's name in name spaces; None: the same as in Airflow."""
    subject: str | None = None
    """The subject of the user's certificate or token, for people; it is checked where a credential is opened."""


class LinkLimit(Block):
    """The limit of one link: transfers from one site to another."""

    source: Name
    """The site, of `sites:`, that files are read from."""
    destination: Name
    """The site that they go to."""
    most_queued: Annotated[int, Field(ge=0, le=1_000_000)]
    """Files that FTS may have of it; 0 holds the link back."""


class CatalogueKind(Enum):
    """The catalogue in which files of data sets are registered."""

    LEDGER = "ledger"
    """A table of the ledger."""
    RUCIO = "rucio"
    """A Rucio server, through `rucio-clients`."""


def _registered_name(template: str) -> str:
    try:
        unknown = fields(template) - _REGISTERED.keys()
    except ValueError as error:
        raise fault(f"the name {template!r} is no template: {error}", "Write each field as {field}.") from None
    if unknown:
        every = ", ".join(f"{{{name}}}" for name in _REGISTERED)
        raise fault(f"the name {template!r} has the field {{{min(unknown)}}}", f"Use {every}.")
    return template


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise fault(
            f"`names` is no regular expression: {error}", "Leave it out for Rucio's schema `generic`."
        ) from None
    return text


_REGISTERED: Mapping[str, str] = {"user": "u", "workflow": "w", "dataset": "d", "block": "0" * 32}
RegisteredName = Annotated[str, Field(min_length=1, max_length=250), AfterValidator(_registered_name)]


class CatalogueSettings(Block):
    """The catalogue of files of data sets.

    In names of Rucio `{user}` is the user in name spaces, `{workflow}` and `{dataset}` are those of the request, and
    `{block}` is of the files that are registered together: with it each block is a data set, and closed at once.
    """

    kind: CatalogueKind = CatalogueKind.LEDGER
    connection: ConnectionId | None = None
    """The connection of the Rucio server: its account in the extra, `account`, else its login."""
    scope: RegisteredName = "user.{user}"
    """The scope of a user's files and data sets; an account of Rucio makes it."""
    dataset: RegisteredName = "{dataset}"
    """The name of the data set that a file is attached to."""
    container: RegisteredName | None = None
    """The container that data sets are attached to; None: none."""
    names: Annotated[str, AfterValidator(_pattern)] = r"[/A-Za-z0-9][/A-Za-z0-9.\-_]*"
    """Names that the server takes, whole, as a regular expression: its schema, `generic` by default."""
    longest_name: Annotated[int, Field(ge=1, le=500)] = 250
    """Characters of its longest name."""
    longest_scope: Annotated[int, Field(ge=1, le=100)] = 25
    """Characters of its longest scope."""

    def filled(self, template: str, user: str, workflow: str, dataset: str, block: str) -> str:
        """A name of these templates. `block`: 32 hexadecimal digits."""
        return fill(template, {"user": user, "workflow": workflow, "dataset": dataset, "block": block})

    def name_fault(self, name: str) -> str | None:
        """Return the fault of the name of a file, data set or container at the catalogue; it reads on after it."""
        if self.kind is CatalogueKind.LEDGER:
            return None
        if len(name) > self.longest_name:
            return f"is longer than the {self.longest_name} characters that the catalogue takes"
        if not re.fullmatch(self.names, name):
            return "has characters that the catalogue does not take"
        return None

    def scope_fault(self, scope: str) -> str | None:
        """Return the fault of a scope."""
        if self.kind is CatalogueKind.LEDGER:
            return None
        if len(scope) > self.longest_scope:
            return f"is longer than the {self.longest_scope} characters that the catalogue takes"
        return None if re.fullmatch(r"[A-Za-z0-9_.-]+", scope) else "has characters that the catalogue does not take"

    @model_validator(mode="after")
    def _whole(self) -> CatalogueSettings:
        if self.kind is CatalogueKind.RUCIO and self.connection is None:
            raise fault("a catalogue of kind rucio without `connection`", "Name the connection of the Rucio server.")
        if self.container is not None and "{block}" not in self.dataset:
            hint = 'Write `dataset: "{dataset}.{block}"`, or leave `container` out.'
            raise fault("`container` without {block} in `dataset`", hint)
        if self.container is not None and "{block}" in self.container:
            raise fault("`container` with {block}", "Leave {block} to `dataset`.")
        return self


class StageoutSettings(Block):
    """Stage-out of users' files."""

    enabled: bool = True
    """False: `sites:` counts as empty, so there are no DAGs, pools and checks of stage-out."""
    fts: Annotated[tuple[ConnectionId, ...], Field(min_length=1, max_length=16)] = ("fts_default",)
    """The connections of the FTS servers. Each link has one of them."""
    proxies: str | None = None
    """A folder with one X.509 proxy a user, `<user>.pem`; what renews them is not ours."""
    tokens: ConnectionId | None = None
    """The token issuer of sites with `credential: token`."""
    name_space: NameSpace = "/store/user/{user}"
    """Folder for a user's files."""
    temporary_name_space: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._{}-]+)+$")] = "/user/{user}"
    """User folder in the temporary area of a site. Only files in it are deleted."""
    identities: Mapping[Name, GridIdentity] = Field(default_factory=dict)
    """Users whose identity is not their Airflow name."""
    files_per_job: Annotated[int, Field(ge=1, le=1000)] = 100
    """Files that one job of FTS has at most."""
    most_queued: Annotated[int, Field(ge=1, le=1_000_000)] = 2000
    """Files of one link that FTS may have; it decides itself how many are active."""
    links: tuple[LinkLimit, ...] = ()
    """Limits of single links, in place of `most_queued`."""
    retry: Name = "exponential"
    """Retry algorithm of failed transfers: `exponential`, by a rule for each class of failures; `fixed`, every two
    hours, three times; or an entry point of the group `nightshift.retry` of an installed package."""
    queue_hours: Annotated[int, Field(ge=1, le=168)] = 5
    """FTS cancels a file that waits longer; it is retried."""
    copy_margin_minutes: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Added to the longest time of a copy at FTS (600 s and 2 s per MB), where FTS does not watch the copy any more.
    Until then no other attempt writes to its destination, and no source is removed."""
    shards: Annotated[int, Field(ge=1, le=16)] = 2
    """Tasks that do the same in each run; they share what is due by their claims."""
    read_back_hours: Annotated[int, Field(ge=1, le=168)] = 12
    """Time of a task that reads large copies, of sites that report no checksum."""
    runs_connection: ConnectionId | None = None
    """A user of Airflow's API who may delete runs; None: the runs of every minute stay."""
    keep_run_hours: Annotated[int, Field(ge=1, le=8760)] = 24
    """For how long successful runs of every minute are kept; failed ones stay seven times as long."""
    resubmit_days: Annotated[int, Field(ge=0, le=365)] = 7
    """For how long a failed transfer can be resubmitted; then it is archived."""
    archive_hours: Annotated[int, Field(ge=0, le=8760)] = 24
    """For how long a complete transfer stays in the tables of those that are not."""
    user_files: Annotated[int, Field(ge=1, le=100_000_000)] = 200_000
    """Transfers of one user that have not ended, at most; the REST API refuses more."""
    user_files_per_hour: Annotated[int, Field(ge=1, le=100_000_000)] = 50_000
    """Files that the REST API takes of one user within an hour, at most."""
    block_files: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Files of a block of a data set, which are registered together."""
    block_minutes: Annotated[int, Field(ge=1, le=100_000)] = 240
    """A block is closed when its first file has waited for so long."""
    catalogue: CatalogueSettings = CatalogueSettings()
    """Registration of files of data sets."""
    unknown_days: Annotated[int, Field(ge=1, le=3650)] = 14
    """Files in a temporary area that no transfer names are reported when they are older."""

    @property
    def copy_margin(self) -> timedelta:
        """`copy_margin_minutes`."""
        return timedelta(minutes=self.copy_margin_minutes)

    def user_of(self, owner: str) -> str:
        """The name of an Airflow user in name spaces."""
        identity = self.identities.get(owner)
        return identity.user if identity and identity.user else owner

    def impersonated_by(self, owner: str) -> str | None:
        """The other Airflow user whom `identities` gives the name of this one, which has no entry of its own."""
        others = (name for name, identity in self.identities.items() if identity.user == owner)
        return None if owner in self.identities else next(others, None)

    def name_space_of(self, owner: str) -> str:
        """The folder in which the files of an Airflow user may go."""
        return self.name_space.replace(_USER, self.user_of(owner))

    def temporary_of(self, owner: str, area: str) -> str:
        """The user's folder below a site's temporary area."""
        return area + self.temporary_name_space.replace(_USER, self.user_of(owner))

    def queued_limit(self, source: str, destination: str) -> int:
        """Files of a link that FTS may have."""
        given = (link.most_queued for link in self.links if (link.source, link.destination) == (source, destination))
        return next(given, self.most_queued)

    def require_apart(self, site: str, area: str) -> None:
        """A validator: the temporary folders of users are no part of their name spaces, nor the reverse.

        Otherwise files that arrived would be cleaned as sources, or deleted as unknown ones.
        """
        name_space, folder = self.name_space_of("{user}"), self.temporary_of("{user}", area)
        if is_below(name_space, folder) or is_below(folder, name_space):
            what = f"site {site}: the temporary folders {folder} and the name space {name_space} overlap"
            raise fault(what, "Give `temporary:` of the site a folder that `stageout.name_space` is not in.")

    @property
    def queue_time(self) -> timedelta:
        return timedelta(hours=self.queue_hours)

    @field_validator("runs_connection", mode="before")
    @classmethod
    def _none_if_empty(cls, value: object) -> object:
        return value or None  # out of a variable that is not set

    @model_validator(mode="after")
    def _links_once(self) -> StageoutSettings:
        pairs = [(link.source, link.destination) for link in self.links]
        twice = sorted({pair for pair in pairs if pairs.count(pair) > 1})
        if twice:
            raise fault(f"two limits of the link {' to '.join(twice[0])}", "Keep one of them.")
        if _USER not in self.temporary_name_space:
            raise fault("`temporary_name_space` without {user}", 'Write it as "/user/{user}".')
        return self
