"""A deployment with two storage sites and a ledger of its own; nothing else runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pytest
from fastapi import Header, HTTPException

from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.stageout.rest.questions import StageoutUser
from tests.fakes.ledgers import from_a_template

OPERATOR, VIEWER = "olga", "vera"


@contextmanager
def transfers_site(folder: Path) -> Iterator[Site]:
    """The sites pisa and bari, and a migrated ledger."""
    rules = 'rules: [{prefix: /store, url: "davs://NAME.example.org/cms/store"}]'
    sites = "\n".join(
        f"  {name}: {{read: {urls}, write: {urls}, third_party: {urls}}}"
        for name in ("pisa", "bari")
        for urls in [rules.removeprefix("rules: ").replace("NAME", name)]
    )
    file = folder / "site.yaml"
    file.write_text(f'ledger: "sqlite:///{folder}/ledger.db"\npaths: {{var: "{folder}/var"}}\nsites:\n{sites}\n')
    with pytest.MonkeyPatch.context() as patch:
        from_a_template(patch)
        engine = open_ledger(f"sqlite:///{folder}/ledger.db")
        migrate(engine)
        engine.dispose()
    site = Site(load(file), EnvSecrets({}))
    yield site
    site.ledger.dispose()


def stageout_user(authorization: Annotated[str | None, Header()] = None) -> StageoutUser:
    """As the plugin's dependency: 401 without a login. The token is the user's name."""
    name = (authorization or "").removeprefix("Bearer ")
    if not name:
        raise HTTPException(401, "Not authenticated")
    return StageoutUser(name, operator=name == OPERATOR, editor=name != VIEWER)
