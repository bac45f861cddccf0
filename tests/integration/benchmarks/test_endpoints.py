"""Files at a distance: what reads them, what a link does to them, and steps whose round trip is another one."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.distance.link import DelayedLink, impossible
from bench.distance.servers import DistantServers
from include.benchmarks.campaign.campaigns import begin_campaign, clean_up, conclude, measure, utc_now
from include.benchmarks.campaign.plan import RUNNERS, CampaignWish
from include.benchmarks.errors import ROUND_TRIP_REFUSED, RUNNER_FAILED, TARGET_UNUSABLE
from include.benchmarks.judge.report import CHARTS
from include.benchmarks.measure import endpoints
from include.benchmarks.measure.endpoints import EndpointArea, EndpointBenchmarkTarget
from include.benchmarks.measure.loads import (
    DistantRead,
    DistantStrategy,
    LoadAccess,
    LoadStep,
    MeasuredLoad,
    RunnerKind,
    StreamLoad,
    TcpWindow,
)
from include.benchmarks.measure.traces import make_trace
from include.settings.benchmarks import EndpointServer, EndpointTarget
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from lab.ports import can_listen, free_port
from lab.servers.process import ServerProcess, find_program
from tests.fakes.refused import refused

SIZE = 6_000_001
CONTENT = random.Random(0).randbytes(SIZE)
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; {user}
events {{ }}
http {{ access_log off; client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
server {{ listen 127.0.0.1:{port}; root {folder}/data; limit_rate {rate};
  dav_methods PUT DELETE; client_max_body_size 0; }} }}
"""
linked = pytest.mark.skipif(bool(impossible()), reason=f"no link: {impossible()}")
Serve = Callable[..., str]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that servers without the rights of root can enter, with a file."""
    with tempfile.TemporaryDirectory(prefix="nightshift-") as name:
        Path(name).chmod(0o755)
        (Path(name) / "data").mkdir()
        (Path(name) / "data" / "file").write_bytes(CONTENT)
        yield Path(name)


@pytest.fixture
def serve(place: Path) -> Iterator[Serve]:
    """Start nginx at a rate in bytes per second, 0 for any; returns the URL of the file."""
    with ExitStack() as stack:

        def start(rate: int = 0) -> str:
            port = free_port()
            user = "user root;" if os.geteuid() == 0 else ""
            (place / "nginx.conf").write_text(NGINX.format(folder=place, port=port, user=user, rate=rate))
            command = [find_program("nginx") or "nginx", "-c", str(place / "nginx.conf")]
            ready = ServerProcess("nginx", command, log=place / "nginx.log", ready=lambda: not can_listen(port))
            stack.enter_context(ready)
            return f"http://127.0.0.1:{port}/file"

        yield start


def target(url: str, **changes: Any) -> EndpointTarget:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    block = {"name": "t", "kind": "endpoint", "urls": {"nginx": url}, "size": SIZE, "sha256": sha256, **changes}
    return EndpointTarget.model_validate(block)


def site_with(folder: Path, block: dict[str, Any]) -> Site:
    """A site whose target `t` is this."""
    settings = {
        "ledger": f"sqlite:///{folder}/ledger.db",
        "paths": {"var": f"{folder}/var"},
        "benchmarks": {"targets": {"t": block}},
    }
    return Site(SiteSettings.model_validate(settings), EnvSecrets({}))


def load(read: DistantRead, streams: int = 1) -> StreamLoad:
    return StreamLoad(LoadAccess.READ, "file", streams, SIZE, 1, distant=read)


def run(settings: EndpointTarget, runner: RunnerKind, asked: StreamLoad, seconds: int = 20) -> MeasuredLoad:
    step = LoadStep("step", runner, (asked,), seconds)
    (measured,) = RUNNERS[runner].run(step, EndpointArea(settings, "run"), Path()).loads
    return measured


HERE = DistantRead(EndpointServer.NGINX, None)


@pytest.mark.server("nginx")
@pytest.mark.server("curl")
def test_a_file_is_copied_by_curl_over_one_connection_or_several(serve: Serve) -> None:
    settings = target(serve())
    for streams in (1, 4):
        measured = run(settings, RunnerKind.CURL, load(HERE, streams))
        assert (measured.bytes, measured.operations, measured.failed) == (SIZE, 1, 0)
        assert measured.distant
        assert measured.distant.rtt_ms < 5
        assert measured.distant.cpu_s is not None


@pytest.mark.server("nginx")
def test_each_strategy_reads_a_trace_and_its_bytes_alone_count(serve: Serve) -> None:
    settings, reads = target(serve()), list(make_trace(SIZE))
    useful, requests = sum(read.bytes for read in reads), {}
    for strategy in DistantStrategy:
        measured = run(settings, RunnerKind.READER, load(replace(HERE, strategy=strategy, trace=True), 4))
        assert (measured.bytes, measured.operations) == (useful, len(reads)), strategy
        assert measured.distant
        requests[strategy] = measured.distant.requests
    opening = 1
    assert requests == {
        DistantStrategy.STORAGE: opening + sum(len(read.ranges) for read in reads),
        DistantStrategy.APPLICATION: opening + 1,  # eight clusters at once: all
        DistantStrategy.LAZY: opening + 4,
        DistantStrategy.WHOLE: opening + 1,
    }


@pytest.mark.server("nginx")
def test_a_whole_file_is_compared_with_its_checksum(serve: Serve) -> None:
    settings = target(serve())
    for strategy in (DistantStrategy.WHOLE, DistantStrategy.LAZY):
        asked = load(replace(HERE, strategy=strategy), 4)
        right = run(settings, RunnerKind.READER, asked)
        assert (right.bytes, right.failed) == (SIZE, 0)
        assert run(settings.model_copy(update={"sha256": "0" * 64}), RunnerKind.READER, asked).failed == 1


@pytest.mark.server("nginx")
@pytest.mark.server("curl")
def test_a_read_ends_when_its_time_is_over_and_what_came_counts(serve: Serve) -> None:
    settings = target(serve(rate=1_000_000))
    reads = [(RunnerKind.CURL, HERE), (RunnerKind.READER, replace(HERE, strategy=DistantStrategy.WHOLE))]
    if find_program("davix-get"):
        reads.append((RunnerKind.DAVIX, HERE))
    for runner, read in reads:
        measured = run(settings, runner, load(read), seconds=2)
        assert SIZE / 6 < measured.bytes < 0.6 * SIZE, runner
        assert 1.9 < measured.seconds < 4


@pytest.mark.server("nginx")
def test_a_step_whose_round_trip_is_another_one_is_refused_and_says_both(serve: Serve) -> None:
    nothing = [sys.executable, "-c", "", "{rtt_ms}", "{window}"]
    settings = target(serve(), link={"read": ["env"], "set": nothing})
    with refused(ROUND_TRIP_REFUSED) as error:
        run(settings, RunnerKind.CURL, load(replace(HERE, rtt_ms=50.0)))
    assert "50 ms was asked for" in str(error.value)
    assert run(settings, RunnerKind.CURL, load(replace(HERE, rtt_ms=0.0))).bytes == SIZE


def test_an_endpoint_that_does_not_answer_is_refused() -> None:
    url = f"http://127.0.0.1:{free_port()}/file"
    with refused(TARGET_UNUSABLE) as error:
        EndpointBenchmarkTarget(target(url)).check()
    assert "no server answers: nginx" in str(error.value)
    with refused(RUNNER_FAILED):
        run(target(url), RunnerKind.CURL, load(HERE))


@pytest.mark.server("nginx")
@pytest.mark.server("curl")
def test_a_campaign_writes_its_own_file_into_a_folder_and_removes_it(
    serve: Serve, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "ROUND_TRIPS", 5)
    folder_url = serve().removesuffix("file")
    block = {"kind": "endpoint", "urls": {"nginx": folder_url}, "size": SIZE, "benchmark": "allowed"}
    site = site_with(tmp_path, block)
    folder = begin_campaign(site, CampaignWish("t", "cms-strategies", 0.5, 1, 30), now=utc_now())
    measure(site, folder)
    (own,) = {path.name for path in (place / "data").iterdir()} - {"file"}
    assert folder.id in own
    written, *read = [ended.result.loads[0] for ended in folder.steps() if ended.result]
    assert (written.access, written.bytes) == (LoadAccess.WRITE, SIZE)
    assert [load.failed for load in read] == [0] * 4
    assert clean_up(site, folder).removed == 1
    assert [path.name for path in (place / "data").iterdir()] == ["file"]


@linked
@pytest.mark.server("nginx")
@pytest.mark.server("curl")
@pytest.mark.server("ip")
def test_a_campaign_over_a_link_has_the_round_trips_that_were_asked_for(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "ROUND_TRIPS", 5)
    small = CONTENT[:500_000]
    (place / "data" / "file").write_bytes(small)
    with DelayedLink() as link, DistantServers(link.far, place / "data") as servers:
        setting = [*link.command, "{rtt_ms}", "{window}"]
        block = target(servers.urls("file")["nginx"], link={"read": link.near.prefix, "set": setting})
        document = block.model_dump(mode="json", exclude={"name"}) | {"benchmark": "allowed", "size": len(small)}
        document["sha256"] = hashlib.sha256(small).hexdigest()
        site = site_with(tmp_path, document)
        folder = begin_campaign(site, CampaignWish("t", "cms-pairs", 0.5, 1, 30), now=utc_now())
        measure(site, folder)
        assert clean_up(site, folder).left == ()
        conclude(site, folder)
    steps = list(folder.steps())
    assert len(steps) == 18
    for ended in steps:
        if ended.result is None:  # a machine with much else to do
            assert ended.error_code == ROUND_TRIP_REFUSED.code
            continue
        (measured,), asked = ended.result.loads, ended.step.load.loads[0].distant
        assert (measured.bytes, measured.failed) == (len(small), 0)
        assert measured.distant
        assert asked
        assert abs(measured.distant.rtt_ms - (asked.rtt_ms or 0)) <= 0.1 * (asked.rtt_ms or 0) + 1
        assert asked.window in TcpWindow
    assert sum(ended.result is not None for ended in steps) > 9
    assert (folder.path / CHARTS / "tools-stock.svg").exists()
