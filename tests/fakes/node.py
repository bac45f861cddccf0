"""A publisher node: a real OpenSSH server, the scripted `cvmfs_server`, and a real signed repository behind it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import NewTag, read_head, store_all
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalog import MARKER
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import Base, PrepareOptions, prepare
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.revision.repository import Repository
from include.cvmfs.sources.artifact import DirectorySource, open_artifact
from include.publishers.server.publisher import ServerPublisher
from include.site.site import Site
from include.storage.file import FileStore
from tests.fakes.builds import tree
from tests.fakes.commits import commit_change
from tests.fakes.local import DIRECTORY
from tests.servers.sshd import SshServer
from tests.site import FQRN, MASTER, PUBLIC_KEY, SIGNER, Deployment, now

PROGRAM = Path(__file__).with_name("cvmfs_server")
TOKEN_ON_THE_NODE = "AAAABBBBCCCCDDDDEEEEFFFFGGGGHHHHIIIIJJJJKKKKLLLLMMMM===="
_TAR = """#!/bin/sh
# The node's tar, but for what a test wants to go wrong once.
fault="$NODE/faults/tar"
if [ -e "$fault" ]; then
    what=$(cat "$fault"); rm "$fault"; head -c 1000 >/dev/null
    case $what in
    full) echo "tar: lib/big: Cannot write: No space left on device" >&2; exit 2 ;;
    cut) "$NODE/bin/cvmfs_server" _cut; exit 2 ;;
    wait) cat >/dev/null; while echo waiting; do sleep 0.05; done; exit 2 ;;  # until nobody listens
    esac
fi
for one in /usr/bin/tar /bin/tar; do [ -x "$one" ] && exec "$one" "$@"; done
"""


@dataclass
class PublisherNode:
    """``folder`` has all of it. ``behind``: what it publishes through, as in the settings."""

    folder: Path
    behind: str = "stock"
    ssh: SshServer = field(init=False)
    store: FileStore = field(init=False)
    _made: list[Deployment] = field(default_factory=list)
    _socket: socket.socket = field(init=False)
    _thread: threading.Thread = field(init=False)

    @property
    def root(self) -> Path:
        return self.folder / "node"

    def start(self) -> None:
        self.store = FileStore(self.folder / "cvmfs" / FQRN)
        create_repository(self.store, FQRN, master=MASTER, signer=SIGNER, now=datetime.now(UTC))
        (self.folder / "repository.pub").write_bytes(PUBLIC_KEY)
        for name in ("mount", "committed", "spool", "leases", "faults", "bin"):
            (self.root / name).mkdir(parents=True)
        (self.root / "fqrn").write_text(FQRN)
        (self.root / "revision").write_text(str(self.head().manifest.revision))
        (self.root / "root").write_text(self.head().manifest.root.digest.hex())
        if self.behind != "none":
            (self.root / "gateway").touch()
        (self.root / "bin" / "cvmfs_server").symlink_to(PROGRAM)
        (self.root / "bin" / "tar").write_text(_TAR)
        (self.root / "bin" / "tar").chmod(0o755)
        self._listen()
        self.ssh = SshServer(self.folder / "ssh", environment=self.environment)
        self.ssh.start()

    def stop(self) -> None:
        (self.root / "go-on").touch()
        self.ssh.stop()
        self.close()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)

    def close(self) -> None:
        """Let go of the sites that publish there."""
        for deployment in self._made:
            deployment.close()

    @property
    def environment(self) -> Mapping[str, str]:
        # a shell that is not the first one reads no start-up files of whoever runs the tests
        return {"NODE": str(self.root), "PATH": f"{self.root / 'bin'}:/usr/local/bin:/usr/bin:/bin", "SHLVL": "2"}

    # -- the site that publishes there

    def site(self, server: Mapping[str, object] | None = None, **repository: object) -> Site:
        """A site; ``server`` and ``repository`` change its settings."""
        settings: dict[str, object] = {
            "host": "127.0.0.1", "port": self.ssh.port, "user": self.ssh.user, "key": str(self.ssh.user_key),
            "known_hosts": str(self.ssh.known_hosts), "behind": self.behind, "busy_wait_s": 1, "time_limit_s": 60,
            "mount": str(self.root / "mount"), "spool": str(self.root / "spool"), **(server or {}),
        }  # fmt: skip
        node = {key: value for key, value in settings.items() if value is not None}
        self._made.append(Deployment(self.folder))
        return self._made[-1].with_slot().with_options(publisher="cvmfs-server", server=node, **repository).site

    def publisher(self, server: Mapping[str, object] | None = None, **repository: object) -> ServerPublisher:
        return self.site(server, **repository).server(FQRN)

    # -- what happens on the node

    def fault(self, verb: str, what: str) -> None:
        """Let the next call of a verb (`tar` is one of them) go wrong."""
        (self.root / "faults" / verb).write_text(what)

    def lease(self, path: str, remaining: str = "1m59.988300055s") -> Path:
        """Somebody else's lease, for as long as the file is there."""
        file = self.root / "leases" / path.strip("/").replace("/", "+")
        file.write_text(remaining)
        return file

    def somebody(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What somebody who sits at the node does there."""
        environment = {**os.environ, **self.environment}
        return subprocess.run([str(PROGRAM), *arguments], env=environment, capture_output=True, text=True, timeout=60)

    def calls(self, verb: str | None = None) -> list[list[str]]:
        """The calls of `cvmfs_server` so far."""
        file = self.root / "calls"
        made = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [call for call in made if verb is None or call[:1] == [verb]]

    @property
    def in_transaction(self) -> bool:
        return (self.root / "spool" / "in_transaction.lock").exists()

    @property
    def revisions(self) -> int:
        """How many were made on this node."""
        file = self.root / "history"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def contents(self, path: str) -> dict[str, bytes]:
        """The regular files below a place of the last revision, but for markers."""
        top = self.root / "committed" / path.lstrip("/")
        return {
            one.relative_to(top).as_posix(): one.read_bytes()
            for one in sorted(top.rglob("*"))
            if one.is_file() and not one.is_symlink() and one.name != MARKER
        }

    # -- the repository behind it

    def head(self) -> Repository:
        return Repository.open(self.store, fqrn=FQRN, public_keys=[PUBLIC_KEY])

    def assert_sound(self) -> None:
        """The repository has no problem, and nothing is left open or locked on the node."""
        report = check(self.head(), contents=True)
        assert not report.problems, report.problems
        assert not self.in_transaction
        assert not (self.root / "spool" / "nightshift.transaction").exists()
        assert int((self.root / "revision").read_text()) == self.head().manifest.revision

    def _listen(self) -> None:
        # a socket's path may have 107 bytes, and folders of tests have long names
        self._socket = socket.socket(socket.AF_UNIX)
        here = os.open(self.root, os.O_DIRECTORY)
        try:
            self._socket.bind(f"/proc/self/fd/{here}/repository.sock")
        finally:
            os.close(here)
        self._socket.listen(4)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="node-repository")
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rw") as lines:
                order = json.loads(lines.readline())
                try:
                    answer = self._revise(Path(order["tree"]), order["tag"], order["message"])
                except Exception as error:  # noqa: BLE001 - told to whoever asked
                    answer = {"error": f"{type(error).__name__}: {error}"}
                lines.write(json.dumps(answer) + "\n")

    def _revise(self, tree: Path, tag: str, message: str) -> dict[str, Any]:
        head = read_head(self.store, FQRN)
        now = head.manifest.timestamp + 1
        edit = Edit(CatalogCache(self.store), head.manifest.root)
        edit.touch("", edit.root.root_entry.changed(mtime=now))  # a revision is made whatever has changed
        self._mirror(edit, tree, "")
        new = edit.finish(now)
        store_all(self.store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
        commit_change(
            self.store, fqrn=FQRN, signer=SIGNER, lease_path="", old_root=head.manifest.root, new_root=new.hash,
            now=now, tag=NewTag(tag, message) if tag else None,
        )  # fmt: skip
        made = self.head().manifest
        return {"revision": made.revision, "root": made.root.digest.hex(), "size": made.root_size}

    def _mirror(self, edit: Edit, folder: Path, path: str) -> None:
        wanted = {one.name: one for one in folder.iterdir()}
        for entry in edit.listing(path):
            if entry.name not in wanted:
                edit.remove(f"{path}/{entry.name}")
        for name, place in sorted(wanted.items()):
            here = f"{path}/{name}"
            there = edit.lookup(here)
            if place.is_symlink() or not place.is_dir():
                continue
            if not (place / MARKER).exists():
                if there is None:
                    edit.add(here, DIRECTORY)
                self._mirror(edit, place, here)
                continue
            options = PrepareOptions(specials=Specials.KEEP, xattrs=("user.",))
            changeset = prepare(
                DirectorySource(place), store=self.store, fqrn=FQRN, destination=here, now=datetime.now(UTC),
                options=options,
            )  # fmt: skip
            nested = edit.nested_at(here)
            if there is not None and nested is None:
                edit.remove(here)
            if nested is None or nested.hash.digest != changeset.root.digest:
                edit.hang(changeset.reference, changeset.root_entry, changeset.statistics.total)


def packed(site: Site, destination: str, files: Mapping[str, bytes] | bytes) -> Changeset:
    """A changeset of these files, or of an archive, for a destination, derived from the current revision."""
    head = site.head(FQRN)
    packing = site.packing(FQRN, head)
    assert packing is not None
    data = files if isinstance(files, bytes) else tree(files)
    return packing.pack(
        open_artifact(iter([data]), "artifact"),
        destination=destination,
        now=now(),
        base=Base(head.manifest.root, head.manifest.revision),
    )
