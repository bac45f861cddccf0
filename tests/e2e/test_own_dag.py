"""A DAG that is written by docs/your-own-dag.md alone, in a file outside the checkout, under the real scheduler."""

from __future__ import annotations

import re

import pytest

from include.provenance.query import ask
from tests.e2e.deployment import FQRN, ROOT, Deployment
from tests.fakes.builds import tree

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

PAGE = ROOT / "docs" / "your-own-dag.md"


def test_a_dag_made_from_the_page_publishes_a_tarball_under_a_lease(deployment: Deployment) -> None:
    name = re.search(r"Save this as `(\w+)\.py`", PAGE.read_text())
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert name is not None
    assert code is not None
    (deployment.own_dags / f"{name[1]}.py").write_text(code[1])
    assert ROOT not in deployment.own_dags.parents
    store, path = deployment.site.store("builds"), "/software/tool/1.0"
    store.put("tool-1.0.tar.gz", tree({"bin/tool": b"#!/bin/sh\n"}))
    deployment.api.wait_for_dag(name[1], timeout_s=120)
    deployment.trigger(name[1], "first", fqrn=FQRN, path=path, source=f"{store.url}/tool-1.0.tar.gz")
    done = deployment.follow(name[1], "first")
    assert done.state == "success", deployment.task_log(name[1], "first", "publish")
    assert deployment.site.repository(FQRN).revision.read(f"{path}/bin/tool") == b"#!/bin/sh\n"
    (found,) = ask(deployment.site, FQRN, path).answers
    assert (found.record.run_id, found.checked.good) == (f"{name[1]}/first", True)
    assert found.record.holder == f"{name[1]}/first/publish try 1"
    assert deployment.leases() == []
    deployment.trigger(name[1], "again", fqrn=FQRN, path=path, source=f"{store.url}/tool-1.0.tar.gz")
    before = deployment.revision()
    assert deployment.follow(name[1], "again").state == "success"
    assert deployment.revision() == before
