"""Storage sites in the configuration, and the URLs that they allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.settings.errors import InvalidSettings, SettingsError
from include.settings.load import parse
from include.settings.model import SiteSettings
from include.settings.scheduling import pools
from include.settings.sites import ChecksumMode, is_same_place

RULE = '[{prefix: /store, url: "davs://se.example.org/cms/store"}]'


def load(block, name="pisa"):
    text = f"stores: {{s: {{url: 'file:///s'}}}}\nsites:\n  {name}: {block}\n"
    return parse(text, file="site.yaml", root=Path("/root"), environ={}).remote_site(name)


def test_a_site_is_verified_by_adler32_and_cleans_nothing_by_default():
    site = load(f"{{read: {RULE}}}")
    assert (site.checksum, site.clean, site.clean_unknown, site.temporary) == (ChecksumMode.ADLER32, False, False, None)
    assert (site.write, site.third_party, site.store) == ((), (), None)
    assert load("{store: s}").store == "s"
    by_size = load("{temporary: /store/temp, clean: true, checksum: none, clean_on_size: true}")
    assert (by_size.clean, by_size.clean_on_size) == (True, True)


def test_a_folder_of_a_site_is_below_ours():
    site = load('{read: [{prefix: /, url: "file:var/sites/pisa"}]}')
    assert site.read[0].url == "file:///root/var/sites/pisa"
    with pytest.raises(SettingsError):
        parse("", file="", root=Path(), environ={}).remote_site("pisa")


@pytest.mark.parametrize(
    ("block", "key", "cure"),
    [
        ('{read: [{prefix: store, url: "davs://h"}]}', "sites.pisa.read[0].prefix", ""),
        ('{read: [{prefix: /store/../x, url: "davs://h"}]}', "sites.pisa.read[0].prefix", ""),
        ('{read: [{prefix: /, url: "ftp://h"}]}', "sites.pisa.read[0].url", ""),
        ('{read: [{prefix: /, url: "davs:///path"}]}', "sites.pisa.read[0].url", ""),
        ('{read: [{prefix: /, url: "davs://me:secret@h/path"}]}', "sites.pisa.read[0].url", ""),
        ('{read: [{prefix: /, url: "davs://h/path?key=secret"}]}', "sites.pisa.read[0].url", ""),
        ('{read: [{prefix: /, url: "davs://h/a/../b"}]}', "sites.pisa.read[0].url", ""),
        ('{read: [{prefix: /, url: "davs://h/%2e%2e/b"}]}', "sites.pisa.read[0].url", ""),
        ('{read: [{prefix: /, url: "davs://h:port/b"}]}', "sites.pisa.read[0].url", ""),
        ('{read: [{prefix: /, url: "file:var/../../etc"}]}', "sites.pisa.read[0].url", ""),
        ('{read: [{prefix: /, url: "file:///etc"}]}', "(whole file)", ""),
        ('{read: [{prefix: /, url: "file:///root/variable"}]}', "(whole file)", ""),
        ('{allowed: ["file:///etc"]}', "(whole file)", ""),
        ('{read: [{prefix: /, ulr: "davs://h"}]}', "sites.pisa.read[0].ulr", "Did you mean `url`?"),
        ('{read: [{prefix: /, url: "davs://h", prefxi: /}]}', "sites.pisa.read[0].prefxi", "Did you mean `prefix`?"),
        ('{allowed: ["davs://h/a"], write: [{prefix: /, url: "davs://h/ab"}]}', "sites.pisa", ""),
        ("{checksum: md5}", "sites.pisa.checksum", ""),
        ("{temporary: /}", "sites.pisa.temporary", ""),
        ("{clean: true}", "sites.pisa", ""),
        ("{clean_unknown: true}", "sites.pisa", ""),
        ("{clean_on_size: true}", "sites.pisa", ""),
        ("{temporary: /store/temp, clean: true, checksum: none}", "sites.pisa", ""),
        ("{temporary: /store}", "(whole file)", ""),
        ("{probe: {file: /store/a, size: 1, checksum: 0c8b6f3a}}", "sites.pisa", "Name a file"),
        (f"{{read: {RULE}, probe: {{file: /other/a, size: 1, checksum: 0c8b6f3a}}}}", "sites.pisa", "Name a file"),
        (
            f"{{read: {RULE}, probe: {{file: /store/a, size: 1, checksum: 0c8b6f3a, folder: /store/new}}}}",
            "sites.pisa",
            "Name a folder",
        ),
        (f"{{read: {RULE}, probe: {{file: /store/a, size: 0, checksum: 0c8b6f3a}}}}", "sites.pisa.probe.size", ""),
        (f"{{read: {RULE}, probe: {{file: /store/a, size: 1, checksum: x}}}}", "sites.pisa.probe.checksum", ""),
        (f"{{read: {RULE}, probe: {{file: ../a, size: 1, checksum: 0c8b6f3a}}}}", "sites.pisa.probe.file", ""),
    ],
)
def test_what_cannot_be_a_site_is_refused_with_a_hint(block, key, cure):
    with pytest.raises(InvalidSettings) as refused:
        load(block)
    problems = {problem.key: problem for problem in refused.value.problems}
    assert problems.keys() >= {key}
    assert cure in problems[key].cure
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("davs://se.example.org/cms/store/a", True),
        ("davs://SE.example.org:443/cms/store/a%20b", True),
        ("davs://se.example.org/cms/store", True),
        ("davs://se.example.org/cms/storage", False),
        ("davs://se.example.org.evil.com/cms/store/a", False),
        ("davs://se.example.org:8443/cms/store/a", False),
        ("https://se.example.org/cms/store/a", False),
        ("davs://me@se.example.org/cms/store/a", False),
        ("davs://se.example.org/cms/store/../a", False),
        ("davs://se.example.org/cms/store/%2e%2e/a", False),
        ("davs://se.example.org/cms/store/a%2f..%2f..%2fb", False),
        ("davs://se.example.org/cms/store/%252e%252e/a", False),
        ("davs://se.example.org/cms/store/a?x", False),
        ("davs://se.example.org/cms/store/a#x", False),
        ("davs://se.example.org/cms/store/a\n", False),
        (" davs://se.example.org/cms/store/a", False),
        ("davs://se.example.org\\@evil.com/cms/store/a", False),
        ("davs://[::1/cms/store/a", False),
        ("file:///cms/store/a", False),
        ("/cms/store/a", False),
        ("", False),
    ],
)
def test_a_url_belongs_to_a_site_by_scheme_host_port_and_folder(url, allowed):
    assert load(f"{{read: {RULE}}}").allows(url) is allowed


def test_allowed_prefixes_replace_those_of_the_rules():
    site = load(f'{{read: {RULE}, allowed: ["davs://se.example.org/cms"]}}')
    assert site.allows("davs://se.example.org/cms/other/a")


def test_without_stage_out_there_are_no_sites() -> None:
    site = {"third_party": [{"prefix": "/store", "url": "davs://se.example.org/store"}]}
    for enabled, names in (("true", {"Pisa"}), ("false", set()), (False, set())):
        document = {"ledger": "sqlite:////l", "sites": {"Pisa": site}, "stageout": {"enabled": enabled}}
        settings = SiteSettings.model_validate(document)
        assert set(settings.sites) == names
        assert ("stageout" in {pool.name for pool in pools(settings)}) is bool(names)


@pytest.mark.parametrize(
    ("catalogue", "site", "words"),
    [
        ("{kind: rucio, connection: r}", f"{{read: {RULE}}}", ""),
        ("{kind: rucio, connection: r}", f"{{write: {RULE}, rse: PISA_DISK}}", ""),
        ("{kind: ledger}", f"{{write: {RULE}}}", ""),
        ("{kind: rucio, connection: r}", f"{{write: {RULE}}}", "`rse`"),
        ("{kind: rucio}", "{}", "`connection`"),
        ("{kind: rucio, connection: r, scope: 'user.{owner}'}", "{}", "{user}"),
        ("{kind: rucio, connection: r, scope: 'user.{user'}", "{}", "template"),
        ("{kind: rucio, connection: r, names: '['}", "{}", "regular expression"),
        ("{kind: rucio, connection: r, container: '{dataset}'}", "{}", "{block}"),
        ("{kind: rucio, connection: r, dataset: '{block}', container: '{block}'}", "{}", "{block}"),
        ("{kind: ledger}", "{rse: pisa}", "rse"),
    ],
)
def test_a_catalogue_in_rucio_has_a_connection_and_names_that_can_be(catalogue, site, words):
    text = f"stageout: {{catalogue: {catalogue}}}\nsites: {{pisa: {site}}}\n"
    if not words:
        parse(text, file="site.yaml", root=Path("/root"), environ={})
        return
    with pytest.raises(InvalidSettings) as error:
        parse(text, file="site.yaml", root=Path("/root"), environ={})
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("url", "other", "same"),
    [
        ("davs://h/a/b", "davs://h:443//a/b", True),
        ("root://h//a", "root://h:1094//a", True),
        ("file:///a/b", "file://localhost/a/b", True),
        ("davs://h/a/b", "davs://h/a/c", False),
        ("davs://h/a", "davs://i/a", False),
        ("davs://h/a", "https://h/a", False),
        ("davs://h:8443/a", "davs://h/a", False),
    ],
)
def test_urls_of_one_place(url, other, same):
    assert is_same_place(url, other) is same
