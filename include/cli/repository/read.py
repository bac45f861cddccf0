"""`nightshift repo ls`, `cat`, `stat`, `get`, `diff`, `replicas`, `client-config`: what readers get, and how."""

from __future__ import annotations

import json
import stat as modes
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli.repository.open import (
    AsJson,
    Configured,
    Fqrn,
    InRepository,
    Keys,
    TagName,
    Target,
    bars,
    open_site,
    open_target,
    printable,
    refusing,
    time_text,
    tree_of,
)

if TYPE_CHECKING:
    from include.cvmfs.format.dirent import Dirent
    from include.cvmfs.revision.revision import Revision


def ls(
    target: Target,
    path: InRepository = "/",
    key: Keys = None,
    fqrn: Fqrn = None,
    tag: TagName = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Mode, links, owner, size, time and target too.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", "-R", help="Everything below, by full path.")] = False,
    as_json: AsJson = False,
) -> None:
    """List a directory, or a single entry."""
    with refusing():
        tree = tree_of(target, key, fqrn, tag)
        entries = _entries(tree, path, recursive)
        if as_json:
            typer.echo(json.dumps([_described(name, entry) for name, entry in entries], indent=1))
            return
        for name, entry in entries:
            typer.echo(_long(name, entry) if long else printable(name))


def cat(target: Target, path: InRepository, key: Keys = None, fqrn: Fqrn = None, tag: TagName = None) -> None:
    """Write a file's content to standard output, each object verified."""
    with refusing():
        for piece in tree_of(target, key, fqrn, tag).stream(path):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def stat(
    target: Target,
    path: InRepository,
    key: Keys = None,
    fqrn: Fqrn = None,
    tag: TagName = None,
    as_json: AsJson = False,
) -> None:
    """Show everything that the catalogs say of one entry, its chunks and its nested catalog included."""
    with refusing():
        tree = tree_of(target, key, fqrn, tag)
        facts = _described(path, tree.entry(path))
        nested, chunks = tree.nested_at(path), tree.chunks(path)
        if nested is not None:
            facts |= {"nested_catalog": str(nested.hash), "nested_catalog_bytes": nested.size}
        if chunks:
            facts["chunks"] = [{"offset": c.offset, "size": c.size, "object": c.hash.key} for c in chunks]
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for name, value in facts.items():
        if name == "chunks":
            for piece in facts["chunks"]:
                typer.echo(f"{'chunk':22}{piece['offset']:>12} {piece['size']:>10}  {piece['object']}")
        else:
            typer.echo(f"{name.replace('_', ' '):22}{'-' if value is None else value}")


def get(
    target: Target,
    path: InRepository,
    folder: Annotated[Path, typer.Argument(help="Destination: a folder for a tree, a file for a file.")],
    key: Keys = None,
    fqrn: Fqrn = None,
    tag: TagName = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Files fetched at once.")] = 16,
    owners: Annotated[
        bool, typer.Option("--owners", help="Keep owners, set-uid bits and devices; needs privileges.")
    ] = False,
    trust_times: Annotated[
        bool, typer.Option("--trust-times", help="Skip files with matching size and modification time.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a tree to disk, every object verified. Run again, it goes on where it stopped.

    Exit code 1: some entries could not be made (external files, devices); they are named.
    """
    from include.cvmfs.revision.get import GetOptions, GetProgress, get as run_get

    options = GetOptions(jobs, owners, trust_times)
    with refusing(), bars() as show:
        tree = tree_of(target, key, fqrn, tag)

        def progress(done: GetProgress) -> None:
            show("files", done.files, done.files_total)

        done = run_get(tree, path, folder, options=options, progress=progress)
    if as_json:
        facts = {
            "files": done.files, "bytes": done.bytes, "kept": done.kept, "directories": done.directories,
            "symlinks": done.symlinks, "hardlinks": done.hardlinks, "specials": done.specials, "skipped": done.skipped,
            "notes": done.notes,
        }  # fmt: skip
        typer.echo(json.dumps(facts, indent=1))
    else:
        for note in done.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(
            f"{done.files} files ({done.bytes} bytes, {done.kept} were there), {done.hardlinks} hard links, "
            f"{done.directories} directories, {done.symlinks} symlinks in {folder}"
        )
    raise typer.Exit(1 if done.skipped else 0)


def diff(
    target: Target,
    before: Annotated[str, typer.Argument(help="Tag or root hash of the earlier revision.")],
    after: Annotated[str | None, typer.Argument(help="Tag or root hash of the later one; default: the newest.")] = None,
    path: Annotated[str, typer.Option("--path", help="Only what is there and below.")] = "/",
    key: Keys = None,
    fqrn: Fqrn = None,
    summary: Annotated[bool, typer.Option("--summary", help="Numbers only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what differs between two revisions: + added, - removed, ~ changed, and in what.

    Exit code 0: nothing; 1: something; 2: unreadable or not trusted. Catalogs that both have are not read.
    """
    from include.cvmfs.revision.revision import diff as run_diff

    kinds: Counter[str] = Counter()
    documents = []
    with refusing():
        repository = open_target(target, key, fqrn)
        later = repository.revision if after is None else repository.at(after)
        for change in run_diff(repository.at(before), later, path):
            kinds[change.kind.name.lower()] += 1
            if as_json and not summary:
                documents.append(change.as_dict())
            elif not summary:
                typer.echo(str(change))
    numbers = {kind: kinds[kind] for kind in ("added", "removed", "changed")}
    if as_json:
        typer.echo(json.dumps(numbers if summary else {**numbers, "changes": documents}, indent=1))
    else:
        typer.echo(", ".join(f"{number} {kind}" for kind, number in numbers.items()), err=not summary)
    raise typer.Exit(1 if kinds else 0)


def replicas(
    fqrn: Configured,
    name: Annotated[list[str] | None, typer.Option("--name", help="Only this replica; several may be given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look how far each replica is behind stratum 0, and note it in the ledger.

    Exit code 0: all can be trusted and lag no longer than they may; 1: some do not; 2: stratum 0 cannot be read.
    """
    from include.replicas.look import look_at_replicas, record, rules_of
    from include.replicas.states import complaint

    now = datetime.now(UTC)
    with refusing():
        site = open_site()
        looks, rules = look_at_replicas(site, fqrn, now, name or ()), rules_of(site, fqrn)
        record(site.ledger, looks)
    if as_json:
        typer.echo(json.dumps([look.to_json() for look in looks], indent=1))
    for look in () if as_json else looks:
        hours = look.lag.total_seconds() / 3600
        typer.echo(f"{look.replica:20} {look.state.value:17} lag {hours:7.2f} h  {printable(look.reason)}")
    if not looks:
        typer.echo(f"{fqrn} has no replicas in the configuration", err=True)
    raise typer.Exit(any(complaint(look, rules[look.replica], now) for look in looks))


def client_config(
    fqrn: Configured,
    proxy: Annotated[list[str] | None, typer.Option("--proxy", help="URL of a forward proxy; several share.")] = None,
    stratum1: Annotated[
        list[str] | None, typer.Option("--stratum1", help="URL of a copy, instead of the replicas configured.")
    ] = None,
    direct: Annotated[bool, typer.Option("--direct", help="Read the store by its public URL, with no proxy.")] = False,
    proxy_site: Annotated[
        str, typer.Option("--proxy-site", help="URL of XCache at a site; prints the files of its servers too.")
    ] = "",
    alien_cache: Annotated[
        Path | None, typer.Option("--alien-cache", help="Folder of a shared cache; prints the file of its domain.")
    ] = None,
    domain: Annotated[str, typer.Option("--domain", help="The domain; by default that of the repository.")] = "",
    redirects: Annotated[
        bool, typer.Option("--follow-redirects", help="With --alien-cache: a stratum 1 redirects to data servers.")
    ] = False,
    origin: Annotated[str, typer.Option("--origin", help="HOST:PORT of XRootD on the stratum 1, for XCache.")] = "",
    root: Annotated[str, typer.Option("--root", help="The folder on the origin that has cvmfs.")] = "/srv",
    folder: Annotated[str, typer.Option("--folder", help="The folder of XCache.")] = "/var/cache/xrootd",
) -> None:
    """Print the configuration of a client that reads through a proxy, from stratum 1s, or from the store itself.

    Without --stratum1 it reads from the configured replicas, in their order; without replicas from the public URL. With
    --proxy-site it reads through XCache, XRootD's caching proxy; nginx, XCache and XRootD are configured too. With
    --alien-cache clients share a folder (`nightshift cache config` does the same for one of the configuration).
    """
    from include.replicas.configs import alien_cache_config, client_config as text_of, proxy_site_config
    from include.settings.load import load

    if direct and (proxy or stratum1):
        raise typer.BadParameter("--direct reads the store itself: leave --proxy and --stratum1 out")
    if bool(proxy_site) != bool(origin) or (proxy_site and (direct or proxy)):
        raise typer.BadParameter("--proxy-site and --origin go together, without --proxy and --direct")
    if alien_cache is None and (domain or redirects):
        raise typer.BadParameter("--domain and --follow-redirects are for --alien-cache")
    if alien_cache is not None and (proxy or proxy_site):
        raise typer.BadParameter("clients of a shared cache use no proxy: leave --proxy and --proxy-site out")
    with refusing():
        every = load()
        settings = every.repository(fqrn)
        if alien_cache is not None:
            servers = list(stratum1 or [replica.url for replica in settings.replicas if not direct])
            text = alien_cache_config(
                every, [fqrn], alien_cache, domain=domain or fqrn.partition(".")[2],
                servers=[url.replace(fqrn, "@fqrn@") for url in servers], redirects=redirects,
            )  # fmt: skip
            typer.echo(text, nl=False)
            return
        copies = [] if direct else (stratum1 or [replica.url for replica in settings.replicas])
        servers = copies or [settings.public_url]
        if proxy_site:
            site = {"site": proxy_site.rstrip("/"), "origin": origin, "root": root, "folder": folder}
            typer.echo(proxy_site_config(fqrn, settings.public_key, servers=servers, **site), nl=False)
            return
        typer.echo(text_of(fqrn, settings.public_key, servers=servers, proxies=proxy or ()), nl=False)


def redirect_config(
    fqrn: Configured,
    data: Annotated[list[str], typer.Option("--data", help="URL of a data server; several share the objects.")],
    root: Annotated[str, typer.Option("--root", help="The folder of repositories on these machines.")] = "/srv/cvmfs",
    listen: Annotated[str, typer.Option("--listen", help="Port of the front end, or address:port.")] = "8000",
) -> None:
    """Print the nginx configuration of a stratum 1 that answers metadata and redirects to data servers.

    `nightshift repo check-servers` then fetches an object through it.
    """
    from include.replicas.configs import redirect_config as text_of

    with refusing():
        typer.echo(text_of(fqrn, data=data, root=root, listen=listen), nl=False)


def check_servers(
    fqrn: Configured,
    urls: Annotated[list[str], typer.Argument(metavar="URL…", help="Servers, with @fqrn@ for the repository's name.")],
) -> None:
    """Read manifest and an object from each server alone, through its redirections, and compare bytes with hashes.

    Exit code 0: every server is right; 1: some are not, or have different revisions.
    """
    from include.replicas.look import see_server
    from include.settings.load import load

    with refusing():
        keys = [load().repository(fqrn).public_key.read_bytes()]
        looks = [see_server(url.replace("@fqrn@", fqrn), fqrn, keys) for url in urls]
    for look in looks:
        typer.echo(f"{look.url}: {printable(look.fault) or f'revision {look.revision}, {look.text}'}")
    revisions = {look.revision for look in looks if not look.fault}
    if len(revisions) > 1:
        typer.echo(f"the servers have different revisions: {', '.join(map(str, sorted(revisions)))}", err=True)
    raise typer.Exit(any(look.fault for look in looks) or len(revisions) > 1)


def _entries(tree: Revision, path: str, recursive: bool) -> Iterator[tuple[str, Dirent]]:
    if recursive:
        yield from ((here or "/", entry) for here, entry in tree.walk(path))
        return
    entry = tree.entry(path)
    if entry.is_directory:
        yield from ((child.name, child) for child in tree.listing(path))
    else:
        yield entry.name, entry


def _long(name: str, entry: Dirent) -> str:
    target = f" -> {printable(entry.symlink)}" if entry.is_symlink else ""
    owner = f"{entry.uid:>6} {entry.gid:>6}"
    mark = " [nested catalog]" if entry.mountpoint else ""
    size = f"{entry.size:>12}"
    mode = modes.filemode(entry.mode)
    return f"{mode} {entry.linkcount:>4} {owner} {size} {time_text(entry.mtime)} {printable(name)}{target}{mark}"


def _described(path: str, entry: Dirent) -> dict[str, Any]:
    return {
        "path": printable(path),
        "mode": modes.filemode(entry.mode),
        "links": entry.linkcount,
        "uid": entry.uid,
        "gid": entry.gid,
        "size": entry.size,
        "mtime": time_text(entry.mtime),
        "object": entry.hash.key if entry.hash else None,
        "compression": entry.compression.name.lower() if entry.is_regular else None,
        "symlink": printable(entry.symlink) if entry.is_symlink else None,
        "hardlink_group": entry.hardlink_group or None,
        "nested": entry.mountpoint,
        "external": entry.external,
    }
