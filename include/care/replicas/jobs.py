"""The snapshots and collections of a stratum 1, over SSH."""

from __future__ import annotations

from include.publishers.server.jobs import DetachedJob
from include.publishers.server.open import address_of
from include.publishers.server.outcomes import Verb
from include.settings.errors import SettingsError
from include.settings.replicas import chosen
from include.site.site import Site

_OPTIONS = {Verb.SNAPSHOT: (), Verb.COLLECT: ("-f",)}


def job_on(site: Site, fqrn: str, replica: str, verb: str) -> DetachedJob:
    """The job of a replica's machine: `snapshot` or `gc`. Raises SettingsError for a replica without `node:`."""
    (settings,) = chosen(fqrn, site.settings.repository(fqrn).replicas, [replica])
    if settings.node is None:
        raise SettingsError(f"replica {replica} of {fqrn} has no machine; add `node:` to it in the configuration.")
    login, kind = settings.node, Verb(verb)
    command = (*login.command, kind.value, *_OPTIONS[kind], fqrn)
    return DetachedJob(address_of(fqrn, login, site.secrets), kind, login.spool.replace("{fqrn}", fqrn), command)
