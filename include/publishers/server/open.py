"""From a repository's settings to its publisher on a node, and to what packs trees for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from include.cvmfs.revision.repository import Repository
from include.publishers.base import tree_options
from include.publishers.capabilities import Loss, Operation, Way, require
from include.publishers.server.commands import Commands
from include.publishers.server.connection import NodeAddress
from include.publishers.server.node import Node, TreeComparison
from include.publishers.server.pack import Packing
from include.publishers.server.publisher import ServerPublisher
from include.settings.model import RepositorySettings
from include.settings.secrets import Secrets
from include.settings.ssh import NodeSettings, SshLogin

PACKED = "packed"
"""Below the site's ``var``: trees that were prepared for a node and are not published yet."""

_WAYS = {"stock": Way.SERVER_STOCK, "nightshift": Way.SERVER_OURS, "none": Way.SERVER_LOCAL}


def packing_for(settings: RepositorySettings, repository: Repository, var: Path) -> Packing:
    """Return what packs trees for a repository's node. Raises FormatError for an owner map that cannot be read."""
    return Packing(
        settings.fqrn, var / PACKED / settings.fqrn, tree_options(settings.prepare, repository), _lossless(settings)
    )


def open_server(
    settings: RepositorySettings, node: NodeSettings, secrets: Secrets, var: Path, read: Callable[[], Repository]
) -> ServerPublisher:
    """The publisher of a repository on its node. Nothing is connected yet."""
    way, kept = _WAYS[node.behind], settings.prepare
    losses = frozenset(Loss(loss) for loss in settings.allow_lossy)
    owner = kept.owner

    address = address_of(settings.fqrn, node, secrets)
    commands = Commands(
        fqrn=settings.fqrn,
        mount=node.mount.replace("{fqrn}", settings.fqrn),
        spool=node.spool.replace("{fqrn}", settings.fqrn),
        program=node.command,
        gateway=way is not Way.SERVER_LOCAL,
        keep_owners=node.keep_owners,
        limit_s=node.time_limit_s,
        owner=(owner.uid, owner.gid) if owner else None,
        xattrs=bool(kept.xattrs),
    )
    return ServerPublisher(
        fqrn=settings.fqrn,
        way=way,
        node=Node(address, commands, node.busy_wait_s),
        read=read,
        allow_lossy=losses,
        # finding what was packed needs none of the options of packing
        packing=Packing.finder(settings.fqrn, var / PACKED / settings.fqrn),
        compared=TreeComparison(
            owners=node.keep_owners,
            xattrs=kept.xattrs,
            mtime_ns=kept.mtime_ns,
            special_bits=kept.special_bits == "keep",
            specials=not (way is Way.SERVER_STOCK and Loss.SPECIALS in losses),
        ),
        ingest=node.install == "ingest",
    )


def address_of(fqrn: str, login: SshLogin, secrets: Secrets) -> NodeAddress:
    """Return where a machine is that has the repository, and how we log in there. The passphrase is asked for when
    needed."""

    def passphrase() -> str | None:
        return secrets.get(login.connection).password if login.connection else None

    return NodeAddress(
        fqrn=fqrn,
        host=login.host,
        port=login.port,
        user=login.user,
        known_hosts=login.known_hosts,
        key=login.key,
        passphrase=passphrase,
    )


def _lossless(settings: RepositorySettings) -> Callable[[Operation, str], None]:
    assert settings.server is not None  # noqa: S101 - the settings see to it
    losses = frozenset(Loss(loss) for loss in settings.allow_lossy)
    asked = partial(require, _WAYS[settings.server.behind], fqrn=settings.fqrn, allow_lossy=losses)

    def lossless(operation: Operation, path: str) -> None:
        asked(operation, path=path)

    return lossless
