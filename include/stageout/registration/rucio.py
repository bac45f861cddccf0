"""The catalogue in Rucio: a block is attached to a data set of its user's scope, each file with its replica at an RSE.

A file and its replica are made by the same call, in one transaction of the server, which compares size and Adler-32
with what it has of that name. It does not compare where the file is: that is read afterwards. Calls may be repeated.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

from include.errors import NightshiftError
from include.fts.errors import TOKEN_UNPROTECTED
from include.http_calls import may_carry_token
from include.settings.secrets import ConnectionSecrets, base_url
from include.settings.sites import RemoteSite, is_same_place
from include.settings.stageout import StageoutSettings
from include.stageout.errors import CATALOGUE_FAILED, NO_SITE_URL, StageoutError
from include.stageout.files import SiteOperation, site_urls
from include.stageout.registration.catalogue import CatalogueBlock, CatalogueFile
from include.stageout.requests import pieces

if TYPE_CHECKING:
    from rucio.client import Client

TIMEOUT_S = 30.0
_SILENT = logging.getLogger("nightshift.rucio")
"""The log of the client, which has each failure several times; the error says it once."""
_SILENT.setLevel(logging.CRITICAL)
MAX_REASON_CHARACTERS = 300
_DIGITS = "[0-9a-f]{32}"  # of the name of a block
_REFUSALS = (
    "FileConsistencyMismatch", "InvalidObject", "UnsupportedOperation", "DataIdentifierAlreadyExists",
    "FileAlreadyExists",
)  # fmt: skip
"""Errors of the server that are about files; any other one is about the server or its set-up, and may pass."""


@dataclass(frozen=True, slots=True)
class RucioNames:
    """The names of a block in Rucio. `others`: the data sets of other blocks of the same files."""

    scope: str
    dataset: str
    container: str | None
    is_block: bool
    others: re.Pattern[str]

    @classmethod
    def of(cls, block: CatalogueBlock, settings: StageoutSettings) -> RucioNames:
        """Fill the templates of the settings."""
        catalogue, digits = settings.catalogue, block.name.rpartition("#")[2]
        user = settings.user_of(block.owner)

        def filled(template: str) -> str:
            return catalogue.filled(template, user, block.workflow, block.dataset, digits)

        dataset = filled(catalogue.dataset)
        is_block = "{block}" in catalogue.dataset
        others = re.escape(dataset).replace(digits, _DIGITS) if is_block else re.escape(dataset)
        container = filled(catalogue.container) if catalogue.container else None
        return cls(filled(catalogue.scope), dataset, container, is_block, re.compile(others))


@dataclass(frozen=True, slots=True)
class RucioReplica:
    """A file as Rucio gets it."""

    id: int
    name: str
    rse: str
    url: str
    size: int
    adler32: str | None

    def document(self, scope: str) -> dict[str, object]:
        """The file as an argument of the client."""
        sums = {} if self.adler32 is None else {"adler32": self.adler32}
        return {"scope": scope, "name": self.name, "bytes": self.size, "pfn": self.url, **sums}


@dataclass(frozen=True, slots=True)
class ListedReplicas:
    """A file as Rucio has it; `urls`: by RSE; `leaving`: the RSEs at which Rucio is deleting it."""

    size: int
    adler32: str | None
    urls: Mapping[str, Sequence[str]]
    leaving: frozenset[str]

    def fault(self, replica: RucioReplica) -> str | None:
        """Return the reason why the replica cannot be one of this file."""
        sums_differ = None not in (self.adler32, replica.adler32) and self.adler32 != replica.adler32
        if self.size != replica.size or sums_differ:
            return f"Rucio has another file of this name, of {self.size} bytes and checksum {self.adler32 or 'unknown'}"
        urls = self.urls.get(replica.rse)
        if urls and not any(is_same_place(url, replica.url) for url in urls):
            return f"Rucio has it at {replica.rse} in another place: {urls[0]}"
        if replica.rse in self.leaving:
            return f"Rucio is deleting its replica at {replica.rse}"
        return None


class RucioCatalogue:
    """A Rucio server. Not for several threads.

    Args:
        settings: The block `stageout:`.
        sites: The block `sites:`.
        connection: Gives host, login and password, and in the extra what else there is: `account`; `auth_type`, which
            is *userpass*, *x509* or *x509_proxy*, with `client_cert` and `client_key`, or `client_proxy`, the files;
            `ca_cert`, the file or folder of authorities; `vo`. It is asked when the server is.
        folder: Keeps the token, for the processes that follow. It is made, for this account alone.
        timeout_s: Seconds that the server may take for a connection or an answer.
    """

    def __init__(
        self,
        settings: StageoutSettings,
        sites: Mapping[str, RemoteSite],
        connection: Callable[[], ConnectionSecrets],
        *,
        folder: Path,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._settings, self._sites, self._get_connection = settings, sites, connection
        self._folder, self._timeout_s = folder, timeout_s

    @cached_property
    def _connection(self) -> ConnectionSecrets:
        return self._get_connection()

    @cached_property
    def url(self) -> str:
        """The server. Raises MissingConnection, BadConnection."""
        return base_url(self._connection, scheme="https")

    @cached_property
    def _client(self) -> Client:
        if not may_carry_token(self.url):
            raise TOKEN_UNPROTECTED(f"Rucio at {self.url}: nothing sent; {TOKEN_UNPROTECTED.hint}")
        try:
            from rucio.client import Client
        except ImportError:
            what = (
                "the package `rucio-clients` is not installed on this machine; it is the extra `rucio` of the project"
            )
            raise CATALOGUE_FAILED("Rucio", what) from None
        extra = self._connection.extra
        auth_type = str(extra.get("auth_type") or "userpass")
        credentials = {
            name: str(extra[name]) for name in ("client_cert", "client_key", "client_proxy") if name in extra
        }
        if auth_type == "userpass":
            credentials = {"username": self._connection.login or "", "password": self._connection.password or ""}
        folder = self._folder / self._connection.id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

        class Private(Client):  # type: ignore[misc]
            """Keeps its token in a folder of ours, not in one that all clients of the machine share."""

            TOKEN_PATH_PREFIX = f"{folder}/"

        return Private(
            rucio_host=self.url,
            auth_host=self.url,
            account=str(extra.get("account") or self._connection.login or ""),
            ca_cert=str(extra["ca_cert"]) if "ca_cert" in extra else None,
            auth_type=auth_type,
            creds=credentials,
            timeout=self._timeout_s,
            vo=str(extra.get("vo") or "def"),
            logger=_SILENT,
        )

    def register(
        self,
        block: CatalogueBlock,
        files: Sequence[CatalogueFile],
        *,
        now: datetime,  # noqa: ARG002 - Rucio has its own clock
    ) -> Mapping[int, str]:
        """See `Catalogue`. Raises CATALOGUE_FAILED."""
        with self._answering():
            return self._registered(RucioNames.of(block, self._settings), files)

    def retract(self, block: CatalogueBlock, files: Sequence[CatalogueFile]) -> Mapping[int, str]:
        """See `Catalogue`. The replica is marked for the reaper of the server, which deletes it and the file itself.

        A file without another replica leaves its data sets at once. Raises CATALOGUE_FAILED.
        """
        with self._answering():
            return self._retracted(RucioNames.of(block, self._settings), files)

    def faults(self, owners: Iterable[str]) -> Iterator[str]:
        """Give what is missing at the server: RSEs of sites that files may go to, and scopes of these users.

        Raises CATALOGUE_FAILED: it does not answer, or does not know the account.
        """
        with self._answering():
            scopes = set(self._client.list_scopes())
            for owner in owners:
                scope = self._settings.catalogue.filled(
                    self._settings.catalogue.scope, self._settings.user_of(owner), "w", "d", "0" * 32
                )
                if scope not in scopes:
                    yield f"it has no scope {scope}, for {owner}"
            rses = {str(row["rse"]): row for row in self._client.list_rses()}
            for site in self._sites.values():
                if not site.write:
                    continue
                if site.rse not in rses:
                    yield f"it has no RSE {site.rse}, for site {site.name}"
                    continue
                schemes = {str(row["scheme"]) for row in self._client.get_protocols(site.rse)}
                ours = [rule.url.partition(":")[0] for rule in site.read]
                if ours and not schemes & set(ours):
                    yield f"RSE {site.rse} has no protocol {' or '.join(dict.fromkeys(ours))}, as site {site.name} has"
                if rses[site.rse].get("deterministic"):
                    yield f"RSE {site.rse} is deterministic: it takes no file that is where its user put it"

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raise CATALOGUE_FAILED for whatever the server, the network or the client makes of a call."""
        try:
            yield
        except NightshiftError:
            raise
        except Exception as error:
            self.__dict__.pop("_client", None)  # with its token
            raise CATALOGUE_FAILED(f"Rucio at {self.url}", _reason(error)) from error

    def _registered(self, names: RucioNames, files: Sequence[CatalogueFile]) -> dict[int, str]:
        replicas, refusals = self._replicas(files)
        before = self._listed(names.scope, replicas)

        def refuse(listed: Mapping[str, ListedReplicas]) -> None:
            for replica in replicas:
                file = listed.get(replica.name)
                reason = None if file is None else file.fault(replica)
                if reason is not None:
                    refusals.setdefault(replica.id, reason)

        refuse(before)
        holders = {name: self._holder(names, name) for name in before}
        new: defaultdict[str, list[RucioReplica]] = defaultdict(list)
        for replica in replicas:
            if replica.id in refusals:
                continue
            holder = holders.get(replica.name)
            if holder is None:
                new[replica.rse].append(replica)
            elif replica.rse not in before[replica.name].urls:
                self._client.add_replicas(replica.rse, [replica.document(names.scope)])
        made = bool(new) or names.dataset in holders.values()
        if made:
            self._make(names)
        for rse, group in new.items():
            for piece in pieces(group):
                refusals |= self._attached(names, rse, piece)
        registered = [replica for replica in replicas if replica.id not in refusals]
        after = self._listed(names.scope, registered)
        for replica in registered:
            if replica.name not in after or replica.rse not in after[replica.name].urls:
                raise CATALOGUE_FAILED(f"Rucio at {self.url}", f"it accepted {replica.name}, but does not list it")
        refuse(after)
        if names.is_block and made:
            self._close(names)
        return refusals

    def _retracted(self, names: RucioNames, files: Sequence[CatalogueFile]) -> dict[int, str]:
        replicas, refusals = self._replicas(files)
        listed = self._listed(names.scope, replicas)
        for replica in replicas:
            file = listed.get(replica.name)
            if file is None or replica.rse not in file.urls:
                continue
            if replica.rse not in file.leaving:
                reason = file.fault(replica)
                # the server would delete it all the same
                if reason is None and any(self._client.list_associated_rules_for_file(names.scope, replica.name)):
                    reason = "a rule of Rucio holds it: delete the rule first"
                if reason is not None:
                    refusals[replica.id] = reason
                    continue
                document = {"scope": names.scope, "name": replica.name, "state": "B"}  # to be deleted
                self._client.update_replicas_states(replica.rse, [document])
            if not file.urls.keys() - file.leaving - {replica.rse}:
                while (holder := self._holder(names, replica.name)) is not None:
                    self._client.detach_dids(names.scope, holder, [{"scope": names.scope, "name": replica.name}])
        return refusals

    def _replicas(self, files: Sequence[CatalogueFile]) -> tuple[list[RucioReplica], dict[int, str]]:
        """The files with their URLs, and the reasons of those without one, by id."""
        replicas: list[RucioReplica] = []
        refusals: dict[int, str] = {}
        for file in files:
            try:
                replicas.append(self._replica(file))
            except StageoutError as error:
                refusals[file.id] = error.what
        return replicas, refusals

    def _replica(self, file: CatalogueFile) -> RucioReplica:
        """A file with its URL. Raises StageoutError for one that cannot have any, or that Rucio cannot have."""
        site = self._sites.get(file.site)
        if site is None or site.rse is None:
            raise NO_SITE_URL(f"site {file.site}", "it has no `rse` in the configuration")
        url = next(iter(site_urls(site, SiteOperation.READ, file.name).values()))
        fault = self._settings.catalogue.name_fault(file.name)
        if fault is not None:
            raise NO_SITE_URL(file.name, f"the name {fault}")
        algorithm, _, digits = (file.checksum or "").partition(":")
        return RucioReplica(file.id, file.name, site.rse, url, file.size, digits if algorithm == "adler32" else None)

    def _listed(self, scope: str, replicas: Sequence[RucioReplica]) -> dict[str, ListedReplicas]:
        """The files of these that Rucio has, by name."""
        files: dict[str, ListedReplicas] = {}
        schemes = sorted({replica.url.partition(":")[0] for replica in replicas})
        for piece in pieces(sorted({replica.name for replica in replicas})):
            dids = [{"scope": scope, "name": name} for name in piece]
            for row in self._client.list_replicas(dids, schemes=schemes, all_states=True):
                urls = {str(rse): [str(url) for url in urls] for rse, urls in row["rses"].items()}
                sum_of = row["adler32"]
                leaving = frozenset(rse for rse, state in row["states"].items() if state == "BEING_DELETED")
                files[row["name"]] = ListedReplicas(int(row["bytes"]), sum_of and str(sum_of).lower(), urls, leaving)
        return files

    def _holder(self, names: RucioNames, name: str) -> str | None:
        """Return the data set of this block, or of another one, that has the file already."""
        parents = [str(row["name"]) for row in self._client.list_parent_dids(names.scope, name)
                   if row["scope"] == names.scope]  # fmt: skip
        return next((parent for parent in parents if names.others.fullmatch(parent)), None)

    def _make(self, names: RucioNames) -> None:
        """Make data set and container, where they do not exist."""
        from rucio.common.exception import DataIdentifierAlreadyExists

        made = [(self._client.add_dataset, names.dataset)]
        made += [(self._client.add_container, names.container)] if names.container else []
        for make, name in made:
            try:
                make(names.scope, name)
            except DataIdentifierAlreadyExists:
                continue
        if names.container:
            self._attach(names.scope, names.container, [{"scope": names.scope, "name": names.dataset}])

    def _attached(self, names: RucioNames, rse: str, replicas: Sequence[RucioReplica]) -> dict[int, str]:
        """Attach files with their replicas; of a call that is refused, each half. Returns the reason by file."""
        from rucio.common.exception import RucioException

        try:
            self._attach(names.scope, names.dataset, [each.document(names.scope) for each in replicas], rse=rse)
        except RucioException as error:
            if type(error).__name__ not in _REFUSALS:
                raise
            if len(replicas) == 1:
                return {replicas[0].id: _reason(error)}
        else:
            return {}
        half = len(replicas) // 2
        return self._attached(names, rse, replicas[:half]) | self._attached(names, rse, replicas[half:])

    def _attach(self, scope: str, name: str, children: list[dict[str, Any]], **at: str) -> None:
        self._client.attach_dids_to_dids(
            [{"scope": scope, "name": name, "dids": children, **at}], ignore_duplicate=True
        )

    def _close(self, names: RucioNames) -> None:
        from rucio.common.exception import UnsupportedOperation

        try:
            self._client.close(names.scope, names.dataset)
        except UnsupportedOperation:  # it is closed
            return


def _reason(error: Exception) -> str:
    """An error of the client in one line; what it quotes of a document that is wrong is left out."""
    if isinstance(error, requests.RequestException):
        return f"it does not answer: {type(error).__name__}"
    text = str(error).partition("\n\n")[0].partition("Details: ")
    plain = " ".join((text[2] or text[0]).split())
    return f"{type(error).__name__}: {plain}"[:MAX_REASON_CHARACTERS].rstrip(".")
