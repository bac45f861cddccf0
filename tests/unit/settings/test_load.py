"""The configuration file: what is understood, and what is said about what is wrong."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from include.settings.errors import InvalidSettings, SettingsError, SettingsFileMissing
from include.settings.load import load, parse, project_root, read
from include.settings.model import PublisherKind
from include.settings.text_types import PROJECT_ROOT
from tests.fakes.refused import refused


def problems(parsed, *changes, **environ):
    with pytest.raises(InvalidSettings) as caught:
        parsed(*changes, **environ)
    return caught.value.problems


def only(parsed, *changes, **environ):
    found = problems(parsed, *changes, **environ)
    assert len(found) == 1, [str(one) for one in found]
    return found[0]


def test_a_right_file_is_understood(parsed, tmp_path):
    site = parsed()
    repository = site.repository("nightlies.example.org")
    assert repository.fqrn == "nightlies.example.org"
    assert repository.publisher is PublisherKind.NATIVE
    assert repository.limits.bytes == 1 << 30
    assert repository.prepare.specials == "refuse"
    assert repository.public_key == tmp_path / "keys/nightlies.example.org.pub"
    assert site.slot("main").projects == ("Gaudi", "LHCb")
    assert site.slot("main").name == "main"
    assert site.gateway.state == tmp_path / "var/gateway/state.db"
    assert site.paths.root == tmp_path
    with pytest.raises(ValidationError):
        site.slot("main").priority = 3


def test_trees_and_care_are_set_for_a_repository(parsed, tmp_path):
    prepare = "prepare: {xattrs: [user.], uid_map: owners.map, autocatalogs: true}\n    care: {tags: {keep: 3}}"
    repository = parsed((GATEWAY, f"{GATEWAY}    {prepare}\n")).repository("nightlies.example.org")
    prepare, care = repository.prepare, repository.care
    assert (prepare.xattrs, prepare.autocatalogs, prepare.catalog_entries) == (("user.",), True, 500_000)
    assert prepare.uid_map == tmp_path / "owners.map"
    assert (care.whitelist_days, care.tags.keep, care.tags.match, care.tags.apply) == (7, 3, "*", False)


def test_variables_are_expanded_with_their_defaults(parsed, tmp_path):
    assert parsed().ledger == f"sqlite:///{tmp_path}/var/ledger.db"
    assert parsed(NIGHTSHIFT_VAR="/somewhere").ledger == "sqlite:////somewhere/ledger.db"
    assert parsed(NIGHTSHIFT_VAR="").ledger == f"sqlite:///{tmp_path}/var/ledger.db"
    # an unset variable without a default is named
    one = only(parsed, ("s3://cvmfs", "s3://${BUCKET}"))
    assert (one.line, one.key) == (4, "stores.main.url")
    assert "BUCKET is not set" in one.what
    assert "${BUCKET:-default}" in one.cure


def test_every_problem_is_reported_at_once_in_the_order_of_lines(parsed):
    found = problems(
        parsed,
        ("url: s3://cvmfs", "url: ftp://cvmfs"),
        ("store: main\n    public_url", "store: mian\n    public_url"),
        ("Europe/Zurich", "Europe/Zurick"),
        ('"0 2 * * *"', '"0 25 * * *"'),
        ("projects: [Gaudi, LHCb]", "projects: [Gaudi, ../LHCb]\n    colour: red"),
    )
    assert [(one.line, one.key) for one in found] == [
        (4, "stores.main.url"),
        (9, "repositories.nightlies.example.org.store"),
        (18, "slots.main.schedule"),
        (19, "slots.main.timezone"),
        (20, "slots.main.projects[1]"),
        (21, "slots.main.colour"),
    ]
    assert all(one.cure for one in found)
    assert str(found[0]).startswith(
        "site.yaml:4: stores.main.url: not the URL of a store (given: ftp://cvmfs). Use s3://"
    )
    assert "Did you mean 'main'?" in found[1].cure


LEDGER = '"sqlite:///${NIGHTSHIFT_VAR:-var}/ledger.db"'
REPOSITORY = "repositories.nightlies.example.org"


@pytest.mark.parametrize(
    ("change", "line", "key", "says"),
    [
        (("    gateway: gw\n", ""), 8, f"{REPOSITORY}.gateway", "missing"),
        (("gateway: gw", "gatewya: gw"), 12, f"{REPOSITORY}.gatewya", "Did you mean `gateway`?"),
        (("members: 10", "members: ten"), 13, f"{REPOSITORY}.limits.members", "whole number"),
        (("members: 10", "membrs: 10"), 13, f"{REPOSITORY}.limits.membrs", "Did you mean `members`?"),
        (("connection: store_main", "connection: s3://x:y@h"), 6, "stores.main.connection", "connection id"),
        (("s3://cvmfs", "https://me:hunter2@h/x"), 4, "stores.main.url", "carries a login"),
        (("connection: store_main", "addressing: vhost"), 6, "stores.main.addressing", "'path' or 'virtual'"),
        (("timezone: Europe/Zurich", 'destination: "/n/{slot}"'), 19, "slots.main.destination", "{platform}, {proj"),
        (("timezone: Europe/Zurich", "index: index.json"), 19, "slots.main.index", "lacks {date}"),
        (("slots:\n  main:", "slots:\n  .main:"), 15, "slots..main", "not a letter or digit"),
        (("slots:", "slots:\n  main: {}\n  x:\n    name: a"), 18, "slots.main", "given twice"),
        (("stores:", "colour: {}\nstores:"), 2, "colour", "known keys are"),
        (("  nightlies.example.org:", "  Nightlies:"), 8, "repositories.Nightlies", "lower case"),
        (("main:\n    url", "main:\n    name: x\n    url"), 4, "stores.main.name", "name is the key"),
        ((LEDGER, "mysql+pymysql://u:pw@h/d"), 1, "ledger", "carries a password"),
        ((LEDGER, "postgres://h/d"), 1, "ledger", "mysql+pymysql"),
    ],
)
def test_a_problem_names_its_line_its_key_and_the_cure(parsed, change, line, key, says):
    found = problems(parsed, change)
    one = next(one for one in found if one.key == key)
    assert one.line == line
    assert says in str(one)
    assert "hunter2" not in str(found)
    assert ":pw@" not in "\n".join(map(str, found))


@pytest.mark.parametrize("key", ["password", "secret_key", "access_key", "gateway_token", "api-key", "PASSWD"])
def test_what_looks_like_a_secret_is_refused_and_not_repeated(parsed, key):
    parsed(("slots:", "gateway: {keys: k}\nslots:"))  # `public_key` and `keys` are none
    one = only(parsed, ("connection: store_main", f"{key}: hunter2"))
    assert one.line == 6
    assert "AIRFLOW_CONN_" in one.cure
    assert "hunter2" not in str(one)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1", "not YAML"),
        ("- a\n- b", "not a block of keys"),
        ("a: &x\n  b: *x\n", "alias that contains itself"),
        ("stores:\n  <<: {a: 1}\n", "merge keys"),
        ("stores: [1]\n", "block of keys"),
        ("a: \x07", "not text"),
        ("? [1, 2]\n: 3\n", "key that is not text"),
    ],
)
def test_a_damaged_file_is_a_problem_with_a_line(parsed, text, says):
    with pytest.raises(InvalidSettings) as caught:
        parsed(text=text)
    assert parsed(text="").slots == {}
    assert says in str(caught.value)
    assert all(one.line >= 1 for one in caught.value.problems)


def test_no_file_no_text_and_no_such_name_are_refused(parsed, tmp_path):
    with refused(SettingsFileMissing, path=tmp_path / "none.yaml"):
        load(environ={"NIGHTSHIFT_CONFIG": str(tmp_path / "none.yaml")})
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(InvalidSettings):
        load(tmp_path / "latin.yaml", environ={})
    site = parsed()
    for ask in (site.slot, site.store, site.repository):
        with refused(SettingsError):
            ask("nope")


def test_paths_of_the_projects_file_start_from_its_root_whatever_the_current_directory(tmp_path, monkeypatch):
    config = PROJECT_ROOT / "config" / "site.yaml"
    here = load(config, environ={})
    assert here.slot("main").repository == "nightlies.example.org"
    assert here.ledger == f"sqlite:///{PROJECT_ROOT}/var/ledger.db"
    monkeypatch.chdir(tmp_path)
    assert load(config, environ={}) == here
    home = load(config, environ={"NIGHTSHIFT_HOME": str(tmp_path), "NIGHTSHIFT_VAR": "v"})
    assert home.paths.var == tmp_path / "v"
    assert home.ledger == f"sqlite:///{tmp_path}/v/ledger.db"
    assert project_root({}) == PROJECT_ROOT


def test_file_stores_become_absolute(parsed, tmp_path):
    assert parsed(("s3://cvmfs", "file:store/a")).store("main").url == f"file://{tmp_path}/store/a"
    assert parsed(("s3://cvmfs", "file:///srv/a")).store("main").url == "file:///srv/a"
    assert "no host" in str(only(parsed, ("s3://cvmfs", "file://host/a")))


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text):
    with contextlib.suppress(InvalidSettings):
        parse(text, file="f", root=Path("/r"), environ={})


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text("abc${}:-", min_size=1), max_size=3))
def test_expanded_values_are_not_expanded_again(environ):
    for name, value in environ.items():
        marked = read(f'"${{{name}}}"', file="f", environ=environ)
        assert marked.data == value


def test_loading_stays_light():
    """DAG files load the configuration each time they are parsed."""
    code = (
        "import sys; from include.settings.load import load; import include.settings.secrets; load();"
        "heavy = {'boto3', 'botocore', 'obstore', 'sqlalchemy', 'alembic', 'airflow', 'requests', 'typer'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    environ = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout.strip() == "[]"


NODE = """gateway: gw
    publisher: cvmfs-server
    server: {host: node.example.org, user: cvpublish, known_hosts: hosts, key: keys/node, behind: stock}
"""
GATEWAY = "gateway: gw\n"


def test_a_publisher_node_is_described_beside_its_repository(parsed, tmp_path):
    repository = parsed((GATEWAY, NODE)).repository("nightlies.example.org")
    assert repository.publisher is PublisherKind.CVMFS_SERVER
    node = repository.server
    assert (node.host, node.port, node.user, node.behind, node.install) == (
        "node.example.org", 22, "cvpublish", "stock", "transaction",
    )  # fmt: skip
    assert (node.known_hosts, node.key) == (tmp_path / "hosts", tmp_path / "keys/node")
    assert node.command == ("cvmfs_server",)
    assert repository.allow_lossy == ()


@pytest.mark.parametrize(
    ("change", "key", "what", "cure"),
    [
        (("host: node.example.org, ", ""), "server.host", "is missing", "Add it."),
        (("user: cvpublish, ", ""), "server.user", "is missing", "Add it."),
        (("known_hosts: hosts, ", ""), "server.known_hosts", "is missing", "Add it."),
        ((", behind: stock", ""), "server.behind", "is missing", "Add it."),
        (("behind: stock", "behind: mine"), "server.behind", "", "Use 'stock', 'nightshift' or 'none'."),
        (("key: keys/node, ", ""), "server", "no way to log in", "agent: true"),
        (("key: keys/node", "key: keys/node, agent: true"), "server", "a key file and an agent", "one of them"),
        (("key: keys/node", "agent: true, connection: x"), "server", "a passphrase without a key", "Remove"),
        (("host: node.example.org", "host: ssh://node"), "server.host", "not the name", "the name alone"),
        (("behind: stock", "behind: stock, mount: cvmfs"), "server.mount", "not the path of a folder", "from the root"),
        (("behind: stock", "behind: stock, hots: a"), "server.hots", "is not a key", "Did you mean `host`?"),
        (("behind: stock", "behind: stock, keepalive_s: 9"), "server.keepalive_s", "is not a key", "fixed at 15 s"),
        (("publisher: cvmfs-server\n", "publisher: native\n"), "", "nothing is published with", "Set `publisher:"),
        (("server: {", "prepare: {dirtab: true}\n    server: {"), "", "cut by the node", "server.conf"),
        (("server: {", "prepare: {owner: {uid: 1, gid: 1}}\n    server: {"), "", "does not keep", "keep_owners"),
        (("server: {", "prepare: {mtime_ns: true}\n    server: {"), "", "nanoseconds", "Remove `mtime_ns`"),
        ((NODE, "gateway: gw\n    publisher: cvmfs-server\n"), "", "without a node", "host, user, known_hosts, behind"),
        (("server: {", "allow_lossy: [links]\n    server: {"), "allow_lossy[0]", "", "'hard-links'"),
    ],
)  # fmt: skip
def test_a_publisher_node_that_is_not_described_well_is_refused_with_the_cure(parsed, change, key, what, cure):
    problem = only(parsed, (GATEWAY, NODE), change)
    assert problem.key.endswith(f"nightlies.example.org.{key}".rstrip(".")), problem.key
    assert what in problem.what
    assert cure in problem.cure


def test_nanoseconds_are_refused_where_a_stock_gateway_is_named(parsed):
    problem = only(parsed, (GATEWAY, "gateway: gw\n    gateway_kind: stock\n    prepare: {mtime_ns: true}\n"))
    assert "nanoseconds, which stock publishers and receivers up to 2.11 do not write" in problem.what
    assert "through Nightshift's gateway" in problem.cure
    assert parsed((GATEWAY, "gateway: gw\n    prepare: {mtime_ns: true}\n"))


@pytest.mark.parametrize(
    ("block", "keys"),
    [
        ("paths: {var: state}", "state/keys"),
        ("paths: {var: state}\ngateway: {port: 1}", "state/keys"),
        ("paths: {var: state}\ngateway: {keys: elsewhere}", "elsewhere"),
        ("gateway: {port: 1}", "var/keys"),
    ],
)
def test_keys_are_below_the_folder_of_the_state_unless_they_are_elsewhere(tmp_path, block, keys):
    (tmp_path / "site.yaml").write_text(block)
    found = load(tmp_path / "site.yaml", environ={"NIGHTSHIFT_HOME": str(tmp_path)})
    assert found.gateway.keys == tmp_path / keys
