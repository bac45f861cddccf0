"""The runners by kind. A new one is a class and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from include.benchmarks.measure.endpoints import CurlRunner, DavixRunner, ReaderRunner, XrdcpRunner
from include.benchmarks.measure.fio import DdRunner, FioRunner, RadosRunner
from include.benchmarks.measure.loads import RunnerKind
from include.benchmarks.measure.objects import ObjectRunner
from include.benchmarks.measure.programs import DD, FIO, RADOS, BenchmarkProgram
from include.benchmarks.measure.publisher import PublisherRunner
from include.benchmarks.measure.readers import NGINX, ReadersRunner
from include.benchmarks.measure.remote import RemoteRunner
from include.benchmarks.measure.targets import Runner
from include.settings.benchmarks import TargetKind

RUNNERS: Mapping[RunnerKind, Runner[Any]] = {
    RunnerKind.FIO: FioRunner(),
    RunnerKind.DD: DdRunner(),
    RunnerKind.RADOS: RadosRunner(),
    RunnerKind.OBJECTS: ObjectRunner(),
    RunnerKind.REMOTE: RemoteRunner(),
    RunnerKind.PUBLISHER: PublisherRunner(),
    RunnerKind.READERS: ReadersRunner(),
    RunnerKind.CURL: CurlRunner(),
    RunnerKind.DAVIX: DavixRunner(),
    RunnerKind.XRDCP: XrdcpRunner(),
    RunnerKind.READER: ReaderRunner(),
}
TARGETS_OF: Mapping[RunnerKind, frozenset[TargetKind]] = {
    RunnerKind.FIO: frozenset({TargetKind.PATH}),
    RunnerKind.DD: frozenset({TargetKind.PATH}),
    RunnerKind.RADOS: frozenset({TargetKind.POOL}),
    RunnerKind.OBJECTS: frozenset({TargetKind.BUCKET}),
    RunnerKind.REMOTE: frozenset({TargetKind.REMOTE}),
    RunnerKind.PUBLISHER: frozenset({TargetKind.BUCKET, TargetKind.PATH}),
    RunnerKind.READERS: frozenset({TargetKind.PATH}),
    RunnerKind.CURL: frozenset({TargetKind.ENDPOINT}),
    RunnerKind.DAVIX: frozenset({TargetKind.ENDPOINT}),
    RunnerKind.XRDCP: frozenset({TargetKind.ENDPOINT}),
    RunnerKind.READER: frozenset({TargetKind.ENDPOINT}),
}
"""The kinds of target that each runner works on."""
PROGRAMS: Mapping[RunnerKind, BenchmarkProgram] = {
    RunnerKind.FIO: FIO,
    RunnerKind.DD: DD,
    RunnerKind.RADOS: RADOS,
    RunnerKind.READERS: NGINX,
}
"""What has to be installed."""
USUAL: Mapping[TargetKind, RunnerKind] = {
    TargetKind.PATH: RunnerKind.FIO,
    TargetKind.BUCKET: RunnerKind.OBJECTS,
    TargetKind.POOL: RunnerKind.RADOS,
    TargetKind.REMOTE: RunnerKind.REMOTE,
    TargetKind.ENDPOINT: RunnerKind.READER,
}
"""The runner of a kind of target, where a plan names none."""
