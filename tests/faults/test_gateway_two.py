"""Two gateways on one repository, started by mistake, where the store keeps no conditional writes: one of them refuses.

Where it keeps them, see ``test_gateway_dies.py`` and ``integration/gateway/test_service.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from include.gateway.errors import GatewayError
from lab.servers.weed import WeedServer
from tests.fakes.apart import committers
from tests.fakes.site import BUILD
from tests.faults.conftest import BUCKET
from tests.faults.works import made, seen, sound, work


def test_the_second_does_not_start_and_the_first_that_slept_publishes_nothing_once_it_was_followed(
    weed: WeedServer, tmp_path: Path, reserved: Mapping[str, bytes]
) -> None:
    storage = {
        "store": f"s3://{BUCKET}/two",
        "endpoint": weed.endpoint,
        "credentials": [weed.credentials.access_key, weed.credentials.secret_key],
        "traits": {"put_if_absent": False, "replace": False, "bulk_delete": True},
        "single_writer": True,
    }
    with made(tmp_path, reserved, storage, weed.public_url(BUCKET, "two"), weed.store(BUCKET, "two")) as site:
        first = site.start_gateway()
        late, before = work(site, f"{BUILD}/late"), site.files()
        [committer] = committers(first.process.pid)
        with pytest.raises(AssertionError, match=f"process {committer.pid} on .*Stop that gateway"):
            site.start_gateway("other.db", port=0)
        assert site.files() == before
        first.pause()
        other = site.start_gateway("other.db", port=0).said[-1]["url"]
        done = work(site, f"{BUILD}/done", other)
        assert isinstance(done.commit(), int)
        after = site.files()
        first.go_on()
        assert isinstance(late.commit(), GatewayError), "it must not undo the other's revision"
        assert site.files() == after
        assert seen(site, [done, late]) == {done.path: True, late.path: False}
        first.kill()
        site.url = other
        again = work(site, f"{BUILD}/late", other)
        assert isinstance(again.commit(), int)
        sound(site)
        for one in (late, done, again):
            one.client.close()
        site.goes_on()
