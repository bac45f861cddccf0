"""Files for nginx, XRootD and XCache work as they are written: an object comes through each of them, and is right."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from include.replicas.configs import proxy_site_config, redirect_config
from include.replicas.look import see_server
from include.settings.errors import SettingsError
from include.storage.file import FileStore
from lab.ports import can_listen, free_port
from lab.servers.process import ServerProcess, find_program
from tests.fakes.minirepo import FQRN, NOW, public_key, sample
from tests.fakes.refused import refused

NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ }}
http {{ access_log off;
client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
{servers}
}}
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that servers without the rights of root can enter, with a published repository below `cvmfs`."""
    with tempfile.TemporaryDirectory(prefix="nightshift-") as name:
        Path(name).chmod(0o755)
        built = sample(FileStore(Path(name) / "srv" / "cvmfs" / FQRN))
        built.publish()
        for folder in (Path(name) / "srv").rglob("*"):
            folder.chmod(0o755 if folder.is_dir() else 0o644)
        (Path(name) / "srv").chmod(0o755)
        yield Path(name)


def server(place: Path, name: str, command: list[str], port: int) -> ServerProcess:
    program = find_program(command[0]) or command[0]
    return ServerProcess(name, [program, *command[1:]], log=place / f"{name}.out", ready=lambda: not can_listen(port))


def nginx(place: Path, servers: str, port: int) -> ExitStack:
    user = "user root;" if os.geteuid() == 0 else ""
    (place / "nginx.conf").write_text(user + NGINX.format(folder=place, servers=servers))
    stack = ExitStack()
    stack.enter_context(server(place, "nginx", ["nginx", "-c", str(place / "nginx.conf")], port))
    return stack


def part(text: str, file: str) -> str:
    """The lines below the comment that names a file."""
    return next(block for block in re.split(r"(?m)^(?=# /etc)", text) if file in block.partition("\n")[0])


@pytest.mark.server("nginx")
def test_a_front_end_redirects_clients_to_its_data_server(place: Path) -> None:
    front, data = free_port(), free_port()
    text = redirect_config(FQRN, data=[f"http://127.0.0.1:{data}"], root=f"{place}/srv/cvmfs", listen=str(front))
    with nginx(place, text, front):
        look = see_server(f"http://127.0.0.1:{front}/cvmfs/{FQRN}", FQRN, [public_key()], NOW)
        assert (look.fault, look.text.endswith(f"redirected to http://127.0.0.1:{data}")) == ("", True)


@pytest.mark.server("nginx", "xrootd")
def test_a_site_reads_metadata_of_the_stratum_1_and_objects_through_its_xcache(place: Path) -> None:
    stratum1, origin, inner = free_port(), free_port(), free_port()
    site = next(port for port in iter(free_port, 0) if can_listen(port + 1))
    (place / "cache").mkdir()
    text = proxy_site_config(
        FQRN, Path("master.pub"), site=f"http://127.0.0.1:{site}", servers=[f"http://127.0.0.1:{stratum1}/cvmfs/{FQRN}"],
        origin=f"127.0.0.1:{origin}", root=f"{place}/srv", folder=f"{place}/cache",
    )  # fmt: skip
    copies = f"server {{ listen 127.0.0.1:{stratum1}; root {place}/srv; location ~ /data/ {{ return 404; }} }}"
    with nginx(place, part(text, "nginx") + copies, site) as stack:
        for name, port in (("origin", origin), ("cache", site + 1)):
            admin = stack.enter_context(tempfile.TemporaryDirectory(prefix="xrd-"))
            usual = f"all.adminpath {admin}\nall.pidpath {admin}\nxrd.network nodnr norpipa\n"
            usual += f"xrd.port {inner}\n" if name == "cache" else ""
            (place / f"{name}.cfg").write_text(part(text, f"xrootd-{name}") + usual)
            command = ["xrootd", "-c", str(place / f"{name}.cfg"), "-I", "v4", "-n", name]
            if os.geteuid() == 0:
                command += ["-R", "daemon"]
                for folder in (admin, place / "cache"):
                    shutil.chown(folder, "daemon")
            stack.enter_context(server(place, name, command, port))
        for _ in range(2):
            look = see_server(f"http://127.0.0.1:{site}/cvmfs/{FQRN}", FQRN, [public_key()], NOW)
            assert (look.fault, look.text.endswith(f"redirected to http://127.0.0.1:{site + 1}")) == ("", True)
        kept = [path for path in (place / "cache").rglob("*") if path.is_file() and path.suffix != ".cinfo"]
        assert kept
        assert all("/data/" in str(path) for path in kept), "no metadata: XCache would serve it for ever"


@pytest.mark.parametrize(
    "wrong",
    [
        {"site": "http://user:secret@cache.example.org"}, {"site": "cache.example.org"}, {"origin": "http://s1:1094"},
        {"origin": "s1:1094; reboot"}, {"root": "/srv/../etc"}, {"folder": "/var/cache\nall.role manager"},
        {"servers": ["http://s1/$(id)"]},
    ],
)  # fmt: skip
def test_what_no_file_can_hold_is_refused(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {
        "site": "http://cache.example.org:8000", "servers": [f"http://s1.example.org/cvmfs/{FQRN}"],
        "origin": "s1.example.org:1094", "root": "/srv", "folder": "/var/cache/xrootd",
    }  # fmt: skip
    with refused(SettingsError):
        proxy_site_config(FQRN, Path("master.pub"), **right | wrong)  # type: ignore[arg-type]
