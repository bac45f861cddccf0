"""URLs of logical names: rules and protocols in their order, and names that no URL is made of."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from include.settings.text_types import logical_name_fault
from include.stageout.errors import FILE_REFUSED, NO_SITE_URL, StageoutError
from include.stageout.files import SiteOperation, site_urls, third_party_urls
from tests.fakes.places import ruled
from tests.fakes.refused import refused

READ, WRITE, THIRD_PARTY = SiteOperation


PISA = ruled(
    read=[("/store", "root://x.pisa.it:1095//cms/store"), ("/store", "davs://w.pisa.it/cms/store")],
    write=[("/store/user", "davs://w.pisa.it:8443/user"), ("/store", "davs://w.pisa.it/cms")],
    third_party=[("/store", "root://x.pisa.it//cms/store"), ("/store", "davs://tpc.pisa.it/cms/store")],
)
BARI = ruled("bari", third_party=[("/", "https://bari.it/data"), ("/store", "s3://bari.it/bucket")])


def test_each_operation_has_rules_of_its_own_in_their_order():
    name = "/store/user/ann/a.root"
    read = {
        "root": "root://x.pisa.it:1095//cms/store/user/ann/a.root",
        "http": "davs://w.pisa.it/cms/store/user/ann/a.root",
    }
    assert list(site_urls(PISA, READ, name).items()) == list(read.items())
    assert site_urls(PISA, WRITE, name) == {"http": "davs://w.pisa.it:8443/user/ann/a.root"}
    assert site_urls(PISA, WRITE, "/store/username/a") == {"http": "davs://w.pisa.it/cms/username/a"}


def test_a_third_party_copy_is_in_the_first_protocol_that_both_sites_have():
    urls = third_party_urls((PISA, "/store/temp/a"), (BARI, "/store/user/a"))
    assert urls == ("davs://tpc.pisa.it/cms/store/temp/a", "https://bari.it/data/store/user/a")
    with refused(NO_SITE_URL, subject="sites pisa and bari"):
        third_party_urls((ruled(name="pisa", third_party=[("/", "root://p//")]), "/a"), (BARI, "/a"))


def test_a_name_that_no_rule_has_names_the_site():
    with refused(NO_SITE_URL, subject="site pisa"):
        site_urls(PISA, READ, "/storeroom/a")
    with refused(NO_SITE_URL, subject="site empty"):
        site_urls(ruled("empty"), READ, "/store/a")


HOSTILE = [
    "", "/", "store/a", "/store/../etc/passwd", "/store/./a", "/store//a", "/store/a/", "/store/..",
    "/store/a\n", "/store/a\0", "/store/\x7f", "/store/a\u202eb", "/store/\ud800", "/store/a\u2028b", "/store/e\u0301",
    "/store/%2e%2e/a", "/store/a%00", "/store/..\\a", "/store/" + "a" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("operation", SiteOperation)
def test_a_hostile_name_makes_no_url(name, operation):
    with refused(FILE_REFUSED):
        site_urls(PISA, operation, name)


def test_characters_are_encoded_where_servers_decode_them_and_refused_elsewhere():
    web = ruled(read=[("/", "https://h")], write=[("/", "root://h/")])
    for name in ("/a b", "/a?x=1", "/a#b", "/a&b", "/Ærø", "/a;b", '/a"b'):
        url = site_urls(web, READ, name)["http"]
        assert url.isascii()
        assert not {"?", "#", " ", "&", ";", '"'} & set(url)
        with refused(FILE_REFUSED):
            site_urls(web, WRITE, name)
    with refused(FILE_REFUSED):
        site_urls(web, READ, "/" + "é" * 400)  # longer than FTS can store


@given(st.text())
def test_every_url_is_one_that_the_site_allows(text):
    name = f"/store/{text}"
    try:
        urls = site_urls(PISA, WRITE, name)
    except StageoutError:
        return
    assert logical_name_fault(name) is None
    assert [PISA.allows(url) for url in urls.values()] == [True]
