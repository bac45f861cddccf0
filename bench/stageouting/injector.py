"""Users who send requests: `python -m stageouting.injector`, the plan on standard input."""

from __future__ import annotations

import json
import sys
import time

from bench.stageouting.load import LoadPlan, sites, utc
from include.ledger.engine import open_ledger
from include.stageout.files import check_request
from include.stageout.requests import record_request


def main() -> None:
    job = json.loads(sys.stdin.readline())
    plan = LoadPlan.from_json(job["plan"])
    ledger = open_ledger(job["ledger"], password=job["password"])
    known = sites(plan.sites)
    began, late, files = time.monotonic(), 0.0, 0
    for at, request in plan.requests():
        ahead = began + at - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        late = max(late, -ahead)
        check_request(request, known)
        files += record_request(ledger, request, now=utc()).files
    print(json.dumps({"files": files, "late_s": round(late, 1), "cpu_s": round(time.process_time(), 1)}))


if __name__ == "__main__":
    main()
