"""Two gateways on one repository, started by mistake: no revision is lost, or the second does not start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from include.gateway.errors import GatewayError
from lab.servers.weed import WeedServer
from tests.fakes.apart import committers
from tests.fakes.site import BUILD, ProcessSite
from tests.faults.conftest import BUCKET
from tests.faults.works import made, seen, sound, work

_numbers = itertools.count()


def on_s3(folder: Path, reserved: Mapping[str, bytes], server: WeedServer, **more: object) -> Iterator[ProcessSite]:
    prefix = f"two-{next(_numbers)}"
    storage = {
        "store": f"s3://{BUCKET}/{prefix}",
        "endpoint": server.endpoint,
        "credentials": [server.credentials.access_key, server.credentials.secret_key],
        **more,
    }
    yield from made(folder, reserved, storage, server.public_url(BUCKET, prefix), server.store(BUCKET, prefix))


# -- a store that does not keep them


@pytest.fixture
def unguarded(weed: WeedServer, tmp_path: Path, reserved: Mapping[str, bytes]) -> Iterator[ProcessSite]:
    """A site on a store that was seen to lose conditional writes."""
    traits = {"put_if_absent": False, "replace": False, "bulk_delete": True}
    yield from on_s3(tmp_path, reserved, weed, traits=traits, single_writer=True)


def test_where_they_are_not_kept_the_second_does_not_start_and_names_the_first(unguarded: ProcessSite) -> None:
    site = unguarded
    first = site.start_gateway()
    one = work(site, f"{BUILD}/one")
    before = site.files()
    [committer] = committers(first.process.pid)
    with pytest.raises(AssertionError, match=f"process {committer.pid} on .*Stop that gateway"):
        site.start_gateway("other.db", port=0)
    assert site.files() == before
    assert isinstance(one.commit(), int)
    sound(site)
    one.client.close()
    first.kill()
    site.start_gateway("other.db")  # who was killed holds nothing
    site.goes_on()


@pytest.mark.slow
def test_a_gateway_that_wakes_up_after_another_took_over_publishes_nothing(unguarded: ProcessSite) -> None:
    site = unguarded
    asleep = site.start_gateway()
    late = work(site, f"{BUILD}/late")
    asleep.pause()
    other = site.start_gateway("other.db", port=0, patience_s=60).said[-1]["url"]
    done = work(site, f"{BUILD}/done", other)
    assert isinstance(done.commit(), int)
    after = site.files()
    asleep.go_on()
    refused = late.commit()
    assert isinstance(refused, GatewayError), "it must not undo the other's revision"
    assert site.files() == after
    assert seen(site, [done, late]) == {done.path: True, late.path: False}
    asleep.kill()
    site.url = other
    late.client.close()
    again = work(site, f"{BUILD}/late", other)
    assert isinstance(again.commit(), int)
    again.client.close()
    done.client.close()
    site.goes_on()
