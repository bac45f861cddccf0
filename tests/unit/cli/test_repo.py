"""The commands that check and read a repository: what they print, and the exit codes that scripts rely on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from include.cli.repo import app
from include.cvmfs.format.hashes import CERTIFICATE
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key
from include.cvmfs.format.manifest import KEY as MANIFEST_KEY
from include.cvmfs.format.manifest import sign
from include.cvmfs.format.whitelist import KEY as WHITELIST_KEY
from include.storage.file import FileStore
from tests.fakes import minirepo
from tests.fakes.minirepo import FQRN, MiniRepository, public_key, sample


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MiniRepository:
    monkeypatch.setattr(minirepo, "NOW", datetime.now(UTC))
    built = sample(FileStore(tmp_path / FQRN))
    built.publish()
    (tmp_path / "key.pub").write_bytes(public_key())
    return built


def run(mini: MiniRepository, command: str, *words: str, keyed: bool = True) -> Result:
    folder = Path(mini.store.url.removeprefix("file://"))
    key = ["--key", str(folder.parent / "key.pub")] if keyed else []
    return CliRunner().invoke(app, [command, str(folder), *words, *key], catch_exceptions=False)


def data_file(mini: MiniRepository, content: bytes) -> Path:
    return Path(mini.store.url.removeprefix("file://")) / mini.keep(content).key


def test_a_whole_repository_passes_with_exit_code_0(mini: MiniRepository) -> None:
    result = run(mini, "check")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "no problems found"
    assert "signatures verified" in result.stdout
    assert result.stderr == ""
    unsigned = run(mini, "check", keyed=False)
    assert (unsigned.exit_code, "NOT verified" in unsigned.stdout) == (0, True)


def test_problems_are_printed_with_their_paths_and_exit_code_1(mini: MiniRepository) -> None:
    data_file(mini, b"hello\n").unlink()
    data_file(mini, b"code").unlink()
    result = run(mini, "check")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "2 problems found"
    assert "\n/sw/app/lib/code: object: data/" in f"\n{result.stdout}"
    assert run(mini, "check", "--quick").exit_code == 0
    # as JSON
    report = json.loads(run(mini, "check", "--json").stdout)
    assert (report["verdict"], report["verified"]) == ("2 problems found", True)
    assert "/sw/app/lib/code" in {problem["path"] for problem in report["problems"]}
    assert (report["entries"], report["catalogs"], report["objects"]) == (20, 3, 10)


def test_wrong_bytes_are_found_with_contents(mini: MiniRepository) -> None:
    data_file(mini, b"code").write_bytes(b"other")
    assert run(mini, "check").exit_code == 0
    result = run(mini, "check", "--contents")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "1 problem found"


def test_a_broken_signature_is_refused_with_its_class_and_exit_code_2(mini: MiniRepository) -> None:
    manifest = Path(mini.store.url.removeprefix("file://")) / ".cvmfspublished"
    data = manifest.read_bytes()
    manifest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    result = run(mini, "check")
    assert result.exit_code == 2
    assert result.stderr.startswith("nightshift: [7 - bad signature] manifest: ")
    assert result.stdout == ""


def signed_by_another(mini: MiniRepository, folder: Path) -> None:
    another = generate_repository_key(FQRN, datetime.now(UTC))
    assert mini.manifest is not None
    draft = replace(mini.manifest, certificate=mini.keep(another.certificate_pem, CERTIFICATE))
    mini.store.put(MANIFEST_KEY, sign(draft, another.private_key))


WHITELIST = "[8 - bad whitelist] whitelist of mini.example.org:"
HARMS: dict[str, Callable[[MiniRepository, Path], object]] = {
    f"{WHITELIST} expired at ": lambda mini, _: mini.write_whitelist(valid=timedelta(0)),
    f"{WHITELIST} the one found there is that of 'ot": lambda mini, _: mini.write_whitelist("other.example.org"),
    "[8 - bad whitelist] whitelist: bad signature: not made with one of the given master keys":
        lambda _, folder: (folder / "key.pub").write_bytes(format_public_key(generate_master().public_key())),
    "[8 - bad whitelist] ": lambda mini, _: mini.store.delete([WHITELIST_KEY]),
    "[9 - invalid certificate] whitelist of mini.example.org: does not list certificate ": signed_by_another,
}  # fmt: skip


@pytest.mark.parametrize("says", HARMS)
def test_what_is_not_signed_by_the_given_keys_is_refused_with_class_and_reason(
    mini: MiniRepository, tmp_path: Path, says: str
) -> None:
    HARMS[says](mini, tmp_path)
    result = run(mini, "check")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"nightshift: {says}")


def test_a_root_catalog_of_a_newer_schema_is_named_with_its_hash_and_not_guessed_at(tmp_path: Path) -> None:
    mini = sample(FileStore(tmp_path / FQRN))
    mini.damage("", "UPDATE properties SET value = '2.6' WHERE key = 'schema'").publish()
    assert mini.manifest is not None
    result = run(mini, "check", keyed=False)
    assert result.exit_code == 1
    said = f"/: catalog: cannot be read: schema 2.6, this program checks 2.5 [catalog {mini.manifest.root}]"
    assert said in result.stdout.splitlines()


def test_what_there_is_not_is_said_with_exit_code_2(mini: MiniRepository, tmp_path: Path) -> None:
    def invoked(*words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    assert run(mini, "check", "--tag", "trunk").exit_code == 0
    (tmp_path / "empty").mkdir()
    for result, says in (
        (invoked("check", str(tmp_path / "empty")), "[1 - failed to download]"),
        (invoked("check", "http://127.0.0.1:1/repository"), "public key"),
        (run(mini, "check", "--key", "/none.pub"), "/none.pub"),
        (run(mini, "check", "--tag", "none"), "'none'"),
        *((run(mini, command, "/none"), "/none: no such file or directory") for command in ("ls", "cat", "stat")),
    ):
        assert (result.exit_code, says in result.stderr) == (2, True), result.stderr


def test_a_name_takes_url_and_key_from_the_configuration(
    mini: MiniRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = {
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
        "stores": {"local": {"url": f"file://{tmp_path}"}},
        "repositories": {
            FQRN: {
                "store": "local",
                "public_url": mini.store.url,
                "public_key": str(tmp_path / "key.pub"),
                "gateway": "gateway_mini",
            }
        },
    }
    (tmp_path / "site.yaml").write_text(json.dumps(site))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    monkeypatch.chdir(tmp_path / FQRN)
    result = CliRunner().invoke(app, ["check", FQRN], catch_exceptions=False)
    assert result.exit_code == 0
    assert "signatures verified" in result.stdout
    assert CliRunner().invoke(app, ["check", "other.example.org"]).exit_code == 2


def test_directories_files_entries_tags_and_facts_are_shown(mini: MiniRepository) -> None:
    assert run(mini, "ls").stdout.split() == ["empty", "readme", "sw"]
    assert run(mini, "ls", "/sw/app/run").stdout.split() == ["run"]
    long = run(mini, "ls", "--long", "/sw").stdout.splitlines()
    assert long[0].startswith("drwxr-xr-x    3 ")
    assert long[0].endswith("app [nested catalog]")
    assert long[1].endswith("link -> app/run")
    assert run(mini, "ls", "-R", "/sw/app/lib").stdout.split()[-1] == "/sw/app/lib/deep/data"
    assert [entry["path"] for entry in json.loads(run(mini, "ls", "--json").stdout)] == ["empty", "readme", "sw"]
    assert run(mini, "cat", "/sw/app/big").stdout_bytes == b"a" * 1000 + b"b" * 500 + b"c" * 700
    assert run(mini, "cat", "/readme", "--tag", "trunk").stdout == "hello\n"
    facts = json.loads(run(mini, "stat", "/sw/app/big", "--json").stdout)
    assert [piece["size"] for piece in facts["chunks"]] == [1000, 500, 700]
    assert len(json.loads(run(mini, "stat", "/sw/app", "--json").stdout)["nested_catalog"]) == 40
    assert "chunk" in run(mini, "stat", "/sw/app/big").stdout
    assert run(mini, "tags").stdout.startswith("trunk         1  ")
    assert json.loads(run(mini, "tags", "--json").stdout)[0]["name"] == "trunk"
    facts = json.loads(run(mini, "info", "--json").stdout)
    assert (facts["repository"], facts["revision"], facts["verified"]) == (FQRN, 1, True)
    assert (facts["files"], facts["directories"], facts["nested_catalogs"]) == (10, 6, 2)
    assert "whitelist expires" in run(mini, "info").stdout
