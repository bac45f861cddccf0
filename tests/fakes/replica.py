"""A replica: a folder behind a real HTTP server, which can be made to answer as no stratum 1 does."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Answer = Callable[[SimpleHTTPRequestHandler], None]


@dataclass
class Replica:
    """`answers`: what the server does instead of serving a file, by the file's name."""

    folder: Path
    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)

    def take(self, stratum0: Path) -> None:
        """A snapshot: all that stratum 0 has."""
        shutil.copytree(stratum0, self.folder, dirs_exist_ok=True)

    @property
    def marker(self) -> Path:
        return self.folder / ".cvmfs_is_snapshotting"

    @property
    def manifest(self) -> Path:
        return self.folder / ".cvmfspublished"


@contextlib.contextmanager
def replica(folder: Path) -> Iterator[Replica]:
    """Serve a folder on a free port."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Replica(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, made))
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join(10)


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, made: Replica, *arguments: object) -> None:
        self._made = made
        super().__init__(*arguments, directory=str(made.folder))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._serve(super().do_GET)

    def do_HEAD(self) -> None:
        self._serve(super().do_HEAD)

    def _serve(self, as_usual: Callable[[], None]) -> None:
        answer = self._made.answers.get(self.path.rpartition("/")[2])
        with contextlib.suppress(ConnectionError):  # the reader has had enough
            answer(self) if answer else as_usual()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        pass
