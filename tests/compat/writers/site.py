"""What a site writes for people and other programs: messages, summaries, reports, connections, policies, records."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

from include.care.freezes.freezes import FREEZE, Intervention
from include.care.notify.message import Message, NotifyEvent
from include.care.notify.webhook import KEY_HEADER, SIGNATURE_HEADER, TIME_HEADER, cause_of, signature
from include.care.preflight.findings import Finding, PreflightReport, Severity
from include.care.provenance.query import PathRecord
from include.care.provenance.records import CheckedRecord
from include.care.watch.summary import Summary, summary
from include.gateway.auth import authorization, sign_body
from include.gateway.pack import PackHeader, PackObject
from include.gateway.service.leases.tokens import token_of
from include.gateway.service.log import JsonLines
from include.lab.ports import Ports
from include.lab.report import NightReport, artifact_lines
from include.lab.secrets import LabSecrets
from include.nightlies.records.links import LinkRecord
from include.nightlies.rules.index import RejectedArtifact
from include.nightlies.rules.states import Phase, State
from include.publishers.server.commands import Record
from include.settings.model import Choice, Slot
from include.settings.pools import pools, to_import
from include.storage.roles import PolicyServer, Role, bucket_policy, user_policy
from tests.compat.corpus import Document, as_text, shape, without_prose
from tests.compat.keys import FQRN
from tests.compat.writers.nights import DAY, GAUDI, LHCB, RUN, build, publication
from tests.compat.writers.store import AT, DATA, LINK, PROVENANCE, ROOT, WHOLE
from tests.compat.writers.store import SECRET as KEY

MESSAGE = Message(
    f"failed:main:{DAY}:Gaudi/x86_64", NotifyEvent.FAILED, "error", "Gaudi/x86_64 of main failed: été",
    "No such tarball.\nTwice.", "Upload it again.", {"run": "http://localhost:8080/dags/a/runs/b"},
)  # fmt: skip
RECORD = Record("00ff", f"{RUN}/artifact.publish[1] try 1", "/nightlies/é", AT)
SECRETS = LabSecrets("admin", "postgres", "NSKEY", "s3", "nightshift-1", "gateway", "jwt", "api", "fernet=")
REPORT = PreflightReport.of(
    [
        Finding("gateway", FQRN, Severity.ERROR, "no answer", "Start it."),
        Finding("store", "cvmfs", Severity.OK, "is read"),
        Finding("clock change", "main", Severity.WARNING, "2026-10-25 has 25 hours", "See that it is meant."),
    ]
)
TOKEN = token_of("secret", b'{"path":"x"}', 17)


def night_summary() -> Summary:
    """A night with each fate."""
    slot = Slot(name="main", repository=FQRN, store="builds", optional=Choice(platforms=("armv8-el9-gcc13-opt",)))
    others = [replace(GAUDI, project=name) for name in ("Unchanged", "Failed", "Blocked", "Open")]
    rejected = (RejectedArtifact("Bad/x86", "no sum", 3, "Bad", "x86"),)
    made = build(GAUDI, *others, rejected=rejected, complete=False)
    states = [State.PUBLISHED, State.UNCHANGED, State.FAILED, State.SKIPPED]
    rows = [
        publication(id=place, artifact=5 + place, state=state, reason=f"because of {place}",
                    error_class="ArtifactMissing" if state is State.FAILED else None)
        for place, state in enumerate(states)
    ]  # fmt: skip
    earlier = publication(state=State.FAILED, run_id="night/pass1", artifact=5, error_class="StoreUnavailable")
    before = replace(build(GAUDI, LHCB), build_id="b0", date=DAY - timedelta(days=1))
    link = LinkRecord("link", FQRN, "/nightlies/main/latest", "main", "b1", DAY, "moved", "new", RUN, 7, AT)
    return summary(
        slot, DAY, builds=[made], publications={1: [*rows, earlier]}, before=before, links=[link], now=AT,
        log_of=lambda run: f"http://localhost:8080/{run}",
    )  # fmt: skip


def webhook() -> dict[str, Any]:
    """What is sent for a message with a fixed key and time: headers and body."""
    body = json.dumps(MESSAGE.to_json(), sort_keys=True)
    seconds = int(AT.timestamp())
    headers = {
        TIME_HEADER: str(seconds), KEY_HEADER: cause_of(MESSAGE.key),
        SIGNATURE_HEADER: signature(KEY, seconds, body.encode()),
    }  # fmt: skip
    return {"headers": headers, "body": body}


def signatures() -> dict[str, str]:
    """Of calls to a gateway, and the token of a repeated request."""
    message = b'{"path" : "repo.example.org/sub", "api_version" : "2", "hostname" : "h"}'
    return {
        "authorization": authorization("key1", "s3cr3t", message),
        "body": sign_body("s3cr3t", TOKEN, b'{"old_root_hash":"x"}'),
        "token": TOKEN,
    }


def night_report() -> NightReport:
    rows = [publication(), publication(project="LHCb", state=State.FAILED, phase=Phase.PREPARE, lease_held_s=None)]
    return NightReport(
        "main", str(DAY), RUN, FQRN, "http://localhost/cvmfs", "/keys/x.pub", 7, str(ROOT), artifact_lines(rows), 2,
        ("a problem",), 12.34,
    )  # fmt: skip


def log_line() -> bytes:
    """A line of the gateway's log; its time in UTC."""
    line = logging.LogRecord("include.gateway", logging.WARNING, "x.py", 1, "lease %s", ("granted",), None)
    line.created = WHOLE.timestamp()
    line.fields = {"path": "/a", "epoch": 17, "repository": FQRN}
    return JsonLines().format(line).encode() + b"\n"


def _report_without_time(value: NightReport) -> bytes:
    return as_text({key: member for key, member in value.to_json().items() if key != "written"})


def _summary(value: Summary) -> bytes:
    return json.dumps(without_prose(value.to_json(), "reason", "mended", "notes"), indent=1).encode() + b"\n"


def _policies(urls: list[str]) -> bytes:
    users = {role: PolicyServer.RADOSGW.principal(role.value) for role in Role if role is not Role.READER}
    return as_text(
        {
            url: {"bucket": bucket_policy(url, [FQRN], users),
                  "users": {role.value: user_policy(url, [FQRN], role) for role in Role}}
            for url in urls
        }
    )  # fmt: skip


def _pools(slots: int) -> bytes:
    from types import SimpleNamespace

    site: Any = SimpleNamespace(repositories=dict.fromkeys(range(slots)), sites={})
    return as_text(shape(to_import(pools(site, cores=8))))


def _encoded(value: Any) -> bytes:
    return str(value.format()).encode()


ANSWER = PathRecord("/nightlies/main/latest", LINK, LINK.key, CheckedRecord(True, "signed by the repository's own key"),
                "this very link", PROVENANCE)  # fmt: skip
INTERVENTION = Intervention(FQRN, FREEZE, "0123456789abcdef", "shift@node", "disks", AT + timedelta(hours=1), AT)


def documents() -> dict[str, Document]:
    """By the name of the file in the corpus."""

    def shown(value: Any) -> bytes:
        return as_text(value.to_json())

    return {
        "webhook.json": Document(webhook(), as_text, json.loads),
        "gateway-signatures.json": Document(signatures(), as_text, json.loads),
        "night-summary.json": Document(night_summary(), _summary, grows=True),
        "preflight.json": Document(REPORT, shown, grows=True),
        "last-night.json": Document(night_report(), _report_without_time, grows=True),
        "who.json": Document(ANSWER, shown, grows=True),
        "intervention.json": Document(INTERVENTION, shown, grows=True),
        "pools.json": Document(3, _pools, grows=True),
        "bucket-policies.json": Document(["s3://cvmfs", "s3://cvmfs/below"], _policies),
        "gateway-log.json": Document(None, lambda _: log_line()),
        "node-record.json": Document(RECORD, _encoded, lambda data: Record.parse(data.decode())),
        "object-pack-header.txt": Document(
            PackHeader((PackObject(DATA, 5), PackObject(ROOT, 77))), PackHeader.format, PackHeader.parse
        ),
        "lab-secrets.env": Document(
            SECRETS,
            lambda value: value.format().encode(),
            lambda data: LabSecrets.parse(data.decode(), name="secrets.env"),
        ),
        "lab-ports.json": Document(
            Ports(),
            lambda value: as_text(value.to_environment()),
            lambda data: Ports.from_environment(json.loads(data)),
            grows=True,
        ),
    }
