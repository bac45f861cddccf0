"""`nightshift settings`: the commands, and the rule about stores that ignore conditional replace."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from include.cli.settings import app
from include.cvmfs.format import objects
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.layout import Layout
from include.settings.traits import require_single_writer
from include.storage.file import FileStore
from include.storage.kinds import Traits
from tests.fakes.minirepo import FQRN, public_key, sample

KEEPS = Traits(put_if_absent=True, replace=True, bulk_delete=True)
IGNORES = Traits(put_if_absent=True, replace=False, bulk_delete=True)


@pytest.fixture
def site_file(tmp_path, monkeypatch):
    """A configuration on file stores, in force for this test."""
    path = tmp_path / "site.yaml"
    text = """\
ledger: "sqlite:///ledger.db"
stores: {main: {url: "file:store"}}
repositories:
  n.example.org: {store: main, public_url: "file:store/n.example.org", public_key: k.pub, gateway: gw}
"""
    path.write_text(text)
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(path))
    monkeypatch.setenv("AIRFLOW_CONN_GW", '{"host": "h", "login": "key", "password": "hunter2"}')
    monkeypatch.delenv("NIGHTSHIFT_LEDGER_URL", raising=False)
    return path


def run(*words):
    return CliRunner().invoke(app, list(words))


def test_two_writers_need_conditional_replace_and_one_needs_nothing_of_the_store():
    for traits in (None, KEEPS, IGNORES):
        assert require_single_writer(traits, store="s", fqrn="r", writers=["a"]).allowed
    assert require_single_writer(KEEPS, store="s", fqrn="r", writers=["a", "b"]).allowed
    verdict = require_single_writer(IGNORES, store="s", fqrn="r", writers=["a", "b"])
    assert not verdict.allowed
    assert "store s ignores conditional replace" in verdict.reason
    untried = require_single_writer(None, store="s", fqrn="r", writers=["a", "b"])
    assert not untried.allowed
    assert "settings check" in untried.reason


def test_a_right_configuration_passes_and_is_shown_as_it_is_understood(site_file, tmp_path):
    done = run("check", "--no-stores")
    assert done.exit_code == 0, done.output
    assert "no problems found" in done.output
    assert "hunter2" not in done.output
    assert f"file://{tmp_path}/store" in run("show").output
    assert json.loads(run("show", "--json").output)["gateway"]["port"] == 4929


def test_a_wrong_configuration_fails_with_its_lines(site_file):
    site_file.write_text(site_file.read_text().replace("store: main", "store: mian") + "colour: red\n")
    done = run("check", "--no-stores")
    assert done.exit_code == 1
    assert f"{site_file}:4: repositories.n.example.org.store: there is no 'mian'" in done.output
    assert f"{site_file}:5: colour" in done.output


def test_a_missing_file_is_named_once_with_the_cure(site_file):
    site_file.unlink()
    done = run("check", "--no-stores")
    assert done.exit_code == 1
    problem = next(line for line in done.output.splitlines() if "no such configuration file" in line)
    assert problem.count(str(site_file)) == 1
    assert "NIGHTSHIFT_CONFIG" in problem


def test_long_lines_are_neither_cut_nor_folded_in_a_pipe(site_file):
    folder = "d" * 150
    site_file.write_text(site_file.read_text().replace("k.pub", f"{folder}/k.pub"))
    line = next(line for line in run("check", "--no-stores").output.splitlines() if "public key" in line)
    assert f"{folder}/k.pub (not there yet)" in line


@pytest.mark.parametrize("url", ["http://h/cvmfs", "https://h/cvmfs"])
def test_a_repository_on_a_store_that_can_only_be_read_is_a_problem(site_file, url):
    site_file.write_text(
        site_file.read_text().replace("file:store}}", f"{url}}}}}").replace('"file:store"', f'"{url}"')
    )
    for words in (["--no-stores"], []):
        done = run("check", *words)
        assert done.exit_code == 1
        assert f"repository n.example.org: store main, {url}, can only be read" in done.output


def test_a_compressor_without_its_library_is_a_problem(site_file, monkeypatch):
    site_file.write_text(site_file.read_text().replace("public_key:", "prepare: {compression: fast}, public_key:"))
    assert run("check", "--no-stores").exit_code == 0
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setattr(objects, "_compressing", objects._compressing.__wrapped__)
    done = run("check", "--no-stores")
    assert done.exit_code == 1
    assert "repository n.example.org: compression fast: its library cannot be loaded" in done.output
    assert "compression: stock" in done.output


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("AIRFLOW_CONN_GW", None, "AIRFLOW_CONN_GW"),
        ("AIRFLOW_CONN_GW", '{"login": "key", "password": "hunter2"}', "AIRFLOW_CONN_GW names no host"),
        ("NIGHTSHIFT_LEDGER_URL", "sqlite:///{file}/ledger.db", "/site.yaml/ledger.db: "),
    ],
    ids=["no connection", "no address", "no folder for the ledger"],
)
def test_what_the_environment_lacks_is_a_problem(site_file, monkeypatch, name, value, says):
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value.replace("{file}", str(site_file)))
    done = run("check", "--no-stores", "--json")
    document = json.loads(done.output)
    assert (done.exit_code, document["good"]) == (1, False)
    assert says in next(f"{one['name']} {one['problem']}: " for one in document["checked"] if one["problem"])
    assert "hunter2" not in done.output


def test_a_ledger_that_cannot_be_used_is_shown_as_it_is_in_force_without_its_password(site_file, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_LEDGER_URL", "mysql+pymysql://keeper:hunter2@127.0.0.1:1/nights")
    done = run("check")
    assert done.exit_code == 1
    assert "ledger mysql+pymysql://keeper:***@127.0.0.1:1/nights: " in done.output
    assert "hunter2" not in done.output
    assert "replace-if-unchanged kept" in done.output, "the stores are tried all the same"


def test_an_unasked_connection_and_a_schedule_that_the_clock_change_leaves_out_are_noted_and_no_errors(site_file):
    slot = '{repository: n.example.org, store: main, schedule: "30 2 * * *", timezone: Europe/Zurich}'
    blocks = f"notify: {{apprise: {{connections: [hook]}}}}\nslots: {{main: {slot}}}\n"
    site_file.write_text(site_file.read_text() + blocks)
    rows = json.loads(run("check", "--json", "--no-stores").output)["checked"]
    (hook,) = [row for row in rows if row["name"] == "hook"]
    (schedule,) = [row for row in rows if row["kind"] == "schedule"]
    assert (hook["problem"], schedule["name"], schedule["problem"]) == (None, "main", None)
    assert "Airflow cannot be asked" in hook["seen"]
    assert "AIRFLOW_CONN_HOOK" in hook["notes"][0]
    assert "02:30 does not exist there" in schedule["notes"][0]


@pytest.mark.parametrize(
    ("algorithm", "setting", "note"),
    [
        (Algorithm.SHA1, "", None),
        (Algorithm.RMD160, "hash: rmd160, ", None),
        (Algorithm.RMD160, "", "`hash: sha1` has no effect: the repository was created with rmd160"),
        (Algorithm.SHAKE128, "hash: rmd160, ", "`hash: rmd160` has no effect: the repository was created with shake12"),
    ],
)
def test_a_hash_that_the_repository_does_not_have_is_said(site_file, algorithm, setting, note):
    mini = sample(FileStore(site_file.parent / "store" / FQRN), algorithm)
    mini.publish()
    described(site_file, setting)
    done = run("check", "--json")
    [one] = [one for one in json.loads(done.output)["checked"] if one["seen"].startswith("revision 1, ")]
    assert one["problem"] is None
    assert [text.startswith(note) for text in one["notes"]] == ([True] if note else [])


def test_nanoseconds_in_a_repository_that_was_not_created_for_them_are_a_problem(site_file):
    store = FileStore(site_file.parent / "store" / FQRN)
    described(site_file, "prepare: {mtime_ns: true}, ")
    sample(store).publish()
    done = run("check")
    assert done.exit_code == 1
    assert f"repository {FQRN}: was not created for nanoseconds (its catalogs have 15 columns)" in done.output
    sample(store, layout=Layout.MTIME_NS).publish()
    assert "was not created for nanoseconds" not in run("check").output


def described(site_file, setting):
    """The repository of the sample in the place of the one that is described, with one setting more."""
    (site_file.parent / "k.pub").write_bytes(public_key())
    text = site_file.read_text().replace("n.example.org", FQRN).replace("{store: main", f"{{{setting}store: main")
    site_file.write_text(text)


def test_a_file_is_put_into_a_store_and_another_content_is_replaced_only_on_demand(site_file, tmp_path):
    from include.cli.site import store_group as store

    file = tmp_path / "tool-1.0.tar.gz"
    file.write_bytes(b"first")

    def put(*words):
        return CliRunner().invoke(store, ["put", "main", str(file), *words])

    assert put().output == f"file://{tmp_path}/store/tool-1.0.tar.gz: 5 bytes\n"
    assert "there already" in put().output
    file.write_bytes(b"second")
    assert put().exit_code != 0
    assert (tmp_path / "store/tool-1.0.tar.gz").read_bytes() == b"first"
    assert put("--replace").exit_code == 0
    assert put("folder/second").exit_code == 0
    assert {path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == {b"second"}


ROLES = """
ledger: "sqlite:///ledger.db"
stores:
  s3: {url: "s3://nights/site", endpoint: "http://127.0.0.1:9", connection: s3}
  folder: {url: "file:///srv/nights"}
repositories:
  n.example.org: {store: s3, public_url: "http://127.0.0.1:9/n", public_key: n.pub, gateway: gw}
  f.example.org: {store: folder, public_url: "file:///srv/nights/f", public_key: f.pub, gateway: gw}
"""


def roles(site_file, *words, code=0):
    site_file.write_text(ROLES)
    done = run("roles", *words)
    assert done.exit_code == code, done.output
    return done


def test_roles_have_the_policies_of_the_bucket_and_of_each_user_with_what_to_do(site_file):
    done = roles(site_file, "--store", "s3", "--server", "seaweedfs", "--json")
    document = json.loads(done.stdout)
    assert document["repositories"] == ["n.example.org"]
    assert set(document["users"]) == set(document["user_policies"]) == {"publisher", "gateway", "collector"}
    assert "arn:aws:iam::000000000000:user/nightshift-gateway" in json.dumps(document["bucket_policy"])
    assert "f.example.org" not in done.stdout
    lines = roles(site_file, "--store", "s3", "--user-prefix", "ns-").stdout.splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert any("publisher: user ns-publisher" in line for line in comments)
    assert any("radosgw-admin user create --uid=ns-" in line for line in comments)
    assert json.loads("\n".join(line for line in lines if not line.startswith("#")))["Version"] == "2012-10-17"
    assert "policies are for s3" in roles(site_file, "--store", "folder", code=2).output
    assert "no bucket" in roles(site_file, "--store", "folder", "--owner", "store_s3").output
    assert "--account" in roles(site_file, "--store", "s3", "--server", "aws", code=2).output
