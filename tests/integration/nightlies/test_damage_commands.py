"""`nightshift repo check` notes what is lost for the nights to come; `repo repair --objects` sends it again."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from include.cli.repo import app
from include.nightlies.records import damage
from tests.fakes.builds import tree
from tests.integration.nightlies.conftest import FQRN, Nights

FILES = {"lib/common.so": b"the same every night" * 300, "bin/tool": b"#!/bin/sh\n"}


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def lost(nights: Nights) -> list[str]:
    return [one.path for one in damage.of_repository(nights.site.ledger, FQRN)]


def test_what_a_check_finds_is_noted_and_a_tree_that_has_it_mends_it(nights: Nights, tmp_path: Path) -> None:
    (done,) = nights.night(1, {"Gaudi": FILES}).values()
    at = done.destination
    head = nights.site.head(FQRN)
    keys = [head.revision.entry(f"{at}/{name}").hash for name in FILES]
    nights.store.delete([one.key for one in keys if one is not None])

    code, said = run("check", FQRN)
    assert code == 1
    assert "2 problems found" in said
    assert sorted(lost(nights)) == sorted(f"{at}/{name}" for name in FILES)

    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "tool").write_bytes(FILES["bin/tool"])
    code, said = run("repair", FQRN, "--objects", str(tmp_path / "part"))
    assert code == 1
    assert f"needed by {at}/lib/common.so" in said
    assert "1 objects" in said
    assert lost(nights) == [f"{at}/lib/common.so"]

    (tmp_path / "whole.tar.gz").write_bytes(tree(FILES))
    code, said = run("repair", FQRN, "--objects", str(tmp_path / "whole.tar.gz"), "--json")
    assert code == 0, said
    assert json.loads(said)["missing"] == []
    assert lost(nights) == []
    assert run("check", FQRN, "--full")[0] == 0


def test_a_lost_catalog_is_made_again_at_its_destination(nights: Nights, tmp_path: Path) -> None:
    (done,) = nights.night(1, {"Gaudi": FILES}).values()
    nested = nights.site.head(FQRN).revision.nested_at(done.destination)
    assert nested is not None
    nights.store.delete([nested.hash.with_suffix("C").key])
    assert run("check", FQRN)[0] == 1
    (tmp_path / "whole.tar.gz").write_bytes(tree(FILES))
    code, said = run("repair", FQRN, "--objects", str(tmp_path / "whole.tar.gz"), "--at", done.destination)
    assert code == 0, said
    assert run("check", FQRN, "--full")[0] == 0
    assert lost(nights) == []
