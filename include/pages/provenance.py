"""*Provenance*: who published a path of a repository, the newest first, as the ledger has it."""

from __future__ import annotations

from typing import Any

from include.care.provenance.records import nearest
from include.pages.addresses import task_of
from include.pages.asked import Asked
from include.pages.errors import BadPageQuery

SHOWN = 50


def read(asked: Asked) -> dict[str, Any]:
    """The records of `path` in `repository`, and of the paths above it. Raises BadPageQuery."""
    repository, path = asked.text("repository"), asked.text("path")
    if repository is None or path is None or not path.startswith("/"):
        raise BadPageQuery("path", "a repository and an absolute path in it are needed")
    found = nearest(asked.site.ledger, repository, path, limit=SHOWN)
    records = [(record, document, task_of(record.holder, record.run_id)) for record, document in found]
    return {"repository": repository, "path": path, "records": records, "shown": SHOWN, "every": 60}
