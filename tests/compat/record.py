"""Record what a commit writes, once: `python -m tests.compat.record [PART …]`, before work on its formats begins.

The corpus of a commit is the folder of its short hash. Nothing in it is ever written again: a part that is there is
refused, and so is a checkout whose product code is not that of the commit. A corpus may lack parts. A part that is new
is recorded from a checkout of that very commit with the present `tests/compat` in it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tests.compat.corpus import HERE, MARK, SUMS, as_text, keys_folder, sums

ROOT = HERE.parents[1]
PRODUCT = ("dags", "hooks", "include", "operators", "plugins", "sensors", "triggers", "pyproject.toml")


def documents(folder: Path) -> None:
    from tests.compat.documents import all_documents

    for name, document in all_documents().items():
        (folder / name).write_bytes(document.data)


def keys(folder: Path) -> None:
    from tests.compat import keys

    if folder == keys_folder():
        keys.record(folder)


def ledger(folder: Path) -> None:
    from include.lab.servers.mariadb import MariaDbServer
    from tests.compat.ledgers import connector, dump_server, facts, fill, filled_sqlite, opened

    with tempfile.TemporaryDirectory() as place:
        (folder / "sqlite.sql").write_bytes(filled_sqlite(Path(place)))
        with opened(f"sqlite:///{place}/ledger.db") as engine:
            (folder / "facts.json").write_text(json.dumps(facts(engine), indent=1, ensure_ascii=False) + "\n")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o711)
        with MariaDbServer(Path(place) / "server") as server:
            url = server.create_database("nightshift_compat")
            with opened(url, server.password) as engine:
                fill(engine)
            (folder / "mariadb.sql").write_bytes(dump_server(connector(url, server.password)))


def gateway(folder: Path) -> None:
    from tests.compat.gateways import LOOKS, Wire, converse, fill_state, service
    from tests.compat.sqldump import dump_file

    with tempfile.TemporaryDirectory() as place:
        tokens = fill_state(Path(place) / "state.db")
        (folder / "state.sql").write_bytes(dump_file(Path(place) / "state.db"))
    (folder / "tokens.json").write_text(json.dumps(tokens, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as place, service(Path(place)) as running:
        wire = Wire(running.url)
        with wire.listening():
            converse(wire.url)
        for path in LOOKS:
            wire.answer("GET", path, {}, b"")
            wire.exchanges[-1]["look"] = True
    (folder / "exchanges.json").write_bytes(as_text(wire.exchanges))


def deferred(folder: Path) -> None:
    from tests.compat.deferring import defer_with, waiting
    from tests.compat.sites import running

    with tempfile.TemporaryDirectory() as place, running(Path(place) / "site") as site, waiting(site):
        found = defer_with(ROOT, folder.parent / "defer.py", site)
    (folder / "rows.json").write_text(json.dumps(found["rows"], indent=1) + "\n")


def names(folder: Path) -> None:
    from tests.fakes import airflowhome

    airflowhome.use()
    from include.settings.load import load
    from tests.compat.names import all_names, dags, serialized
    from tests.compat.paths import entry_points, public_paths

    site = folder.parent / "site.yaml"
    (folder / "names.json").write_bytes(as_text(all_names(site)))
    (folder / "paths.json").write_bytes(as_text(public_paths()))
    (folder / "entry-points.json").write_bytes(as_text(entry_points()))
    (folder / "settings.json").write_bytes(as_text(load(site).model_dump(mode="json")))
    lines = [f"{json.dumps(dag_id)}: {json.dumps(dag, sort_keys=True)}" for dag_id, dag in dags(site).items()]
    (folder / "dags.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    whole = {
        dag_id: json.loads(text.replace(str(ROOT), "/srv/nightshift"))
        for dag_id, text in serialized(site).items() if dag_id in WHOLE
    }  # fmt: skip
    (folder / "serialized.json").write_text(json.dumps(whole) + "\n")


def outputs(folder: Path) -> None:
    from tests.fakes import airflowhome

    airflowhome.use()
    from tests.compat.commands import outputs
    from tests.compat.sites import running

    with tempfile.TemporaryDirectory() as place, running(Path(place) / "site") as site:
        for name, found in outputs(site).items():
            (folder / f"{name}.json").write_bytes(as_text(found))


WHOLE = ("index_events_main", "leases", "repository_care", "undo_build")
"""DAGs that are kept as Airflow stores them: a mapped group, mapped tasks, watchers of assets, questions."""
PARTS: dict[str, Callable[[Path], None]] = {
    "keys": keys,
    "documents": documents,
    "ledger": ledger,
    "gateway": gateway,
    "deferred": deferred,
    "names": names,
    "outputs": outputs,
}
"""By the name of the folder; the keys come first, since others sign with them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default all: {', '.join(PARTS)}")
    wanted = parser.parse_args().parts or list(PARTS)
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}")
    commit = _git("rev-parse", "--short=7", "HEAD")
    if _git("status", "--porcelain", "--", *PRODUCT):
        sys.exit(f"the product's code differs from {commit}: record from a clean checkout")
    folder = HERE / commit
    if there := [name for name in wanted if (folder / name).exists()]:
        sys.exit(f"{folder} has {', '.join(there)} already: a corpus is never recorded again")
    folder.mkdir(exist_ok=True)
    mark = folder / MARK
    if not mark.exists():
        made = {"commit": commit, "recorded": datetime.now(UTC).isoformat(), "python": platform.python_version()}
        mark.write_text(json.dumps(made, indent=1) + "\n")
    for name, part in PARTS.items():
        if name in wanted:
            (folder / name).mkdir()
            part(folder / name)
    (folder / SUMS).write_text(sums(folder))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
