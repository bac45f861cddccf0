"""Every command that has `--json`, run at a small site one after the other; what each prints, without its values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from include.cli.main import assemble
from tests.compat.keys import FQRN
from tests.compat.sites import DAY, CompatSite
from tests.compat.tasks import install


def outputs(site: CompatSite) -> dict[str, dict[str, Any]]:
    """What tasks leave behind, by their names, and after them what commands print, by their words; without values."""
    tasks = {name: outline(value) for name, value in install(site).items()}
    return {"tasks": tasks, "commands": _printed(site)}


def _printed(site: CompatSite) -> dict[str, Any]:
    tree = site.folder / "tree"
    for name in ("a/one", "a/two", "top"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    own, found = (str(site.folder), "http://"), {}
    for words in _commands(site.folder, tree):
        found[" ".join(word for word in words if not word.startswith(own))] = outline(_run(words))
    with site.client() as client, client.lease(FQRN, "/elsewhere", hostname="another"):
        found["gateway leases"] = outline(_run(["gateway", "leases", "--url", site.url]))
    return found


def _commands(folder: Path, tree: Path) -> list[list[str]]:
    lines = f"""
    repo publish {FQRN} /sw/app/v1 {tree} --dry-run
    repo publish {FQRN} /sw/app/v1 {tree} --tag v1 --message first
    repo symlink {FQRN} /sw/app/latest v1
    repo publish {FQRN} /sw/app/v2 {tree} --tag v2
    repo rename {FQRN} /sw/app/v2 /sw/app/v3
    repo remove {FQRN} /sw/app/v3
    repo info {FQRN}
    repo ls {FQRN} /sw/app --recursive
    repo stat {FQRN} /sw/app/v1
    repo stat {FQRN} /sw/app/latest
    repo get {FQRN} /sw/app/v1 {folder}/out
    repo diff {FQRN} v1
    repo diff {FQRN} v1 --summary
    repo check {FQRN} --full
    repo tag list {FQRN}
    repo tags {FQRN}
    repo tag add {FQRN} again --message text
    repo tag prune {FQRN} --keep 1 --dry-run
    repo rollback {FQRN} --tag v2 --dry-run
    repo resign {FQRN} --dry-run
    repo import-keys {FQRN} --from {folder}/keys --dry-run
    repo repair {FQRN} --catalog-layout --dry-run
    repo repair {FQRN} --objects {tree} --at /sw/app/v1
    who /sw/app/v1
    who /sw/app/latest -n 3
    who /nightlies/main/b1/Gaudi/x86_64
    freeze {FQRN} --reason audit --until 4h
    freeze --list
    thaw {FQRN}
    freeze --history
    nightly summary --date {DAY} --slot main
    settings check --no-stores
    settings show
    settings pools --cores 4
    """
    return [line.split() for line in lines.splitlines() if line.strip()]


def _run(words: list[str]) -> Any:
    result = CliRunner().invoke(assemble(words), [*words, "--json"], catch_exceptions=False)
    assert result.exit_code in (0, 1), f"{' '.join(words)}: {result.output}"
    return json.loads(result.stdout)


def outline(value: Any) -> Any:
    """Names of members stay; of each value its kind, of a list each kind of element once."""
    if isinstance(value, dict):
        return {key: outline(member) for key, member in value.items()}
    if isinstance(value, list):
        found: list[Any] = []
        for one in (outline(member) for member in value):
            if one not in found:
                found.append(one)
        return found
    kinds = {bool: "bool", int: "number", float: "number", str: "text", type(None): None}
    return kinds[type(value)]
