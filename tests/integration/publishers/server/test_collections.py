"""Collections on a node without a gateway: `cvmfs_server gc` is asked, and what it says becomes the same report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.cvmfs.collect.report import CollectionReport
from include.publishers.server.errors import TransactionOpen
from include.site.collecting import collect, options_of
from tests.fakes.node import PublisherNode
from tests.site import FQRN

pytestmark = [pytest.mark.server("sshd"), pytest.mark.parametrize("node", ["none"], indirect=True)]
GARBAGE = """\
  --> marking unreferenced objects [now]
Preserving Revision 3 (now / added @ now)
  --> sweeping unreferenced objects [now]
Sweeping Revision 1 (then)
Sweep: 5798f7f4ca7585d850eea64610a1f73d8f8de7a3
Sweep: e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78C
  --> done garbage collecting [now]
"""


def run(node: PublisherNode, **more: Any) -> CollectionReport:
    site = node.site()
    report = collect(site, FQRN, options_of(site, FQRN, "collector", **more))
    assert isinstance(report, CollectionReport)
    return report


def test_what_the_node_collected_is_reported(node: PublisherNode) -> None:
    (node.root / "garbage").write_text(GARBAGE)
    report = run(node)
    assert (report.deleted, report.roots_kept, report.roots_condemned, report.notes) == (2, 1, 1, [])
    (call,) = node.calls("gc")
    assert call[:3] == ["gc", "-f", "-t"]
    assert call[4:] == ["-l", FQRN]
    kept_since = datetime.fromisoformat(call[3])
    assert abs(datetime.now(UTC) - timedelta(days=3) - kept_since) < timedelta(minutes=2)


def test_a_dry_run_is_one_on_the_node(node: PublisherNode) -> None:
    (node.root / "garbage").write_text(GARBAGE)
    report = run(node, dry_run=True)
    assert (report.condemned, report.deleted) == (2, 0)
    assert node.calls("gc")[0][4:] == ["-l", "-d", FQRN]


def test_nothing_is_collected_while_somebody_has_a_transaction_open(node: PublisherNode) -> None:
    assert node.somebody("transaction", FQRN).returncode == 0
    with pytest.raises(TransactionOpen):
        run(node)
