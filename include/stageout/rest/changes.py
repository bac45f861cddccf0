"""What the paths that change something do: by the functions of the command, for the owner or an operator."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field
from sqlalchemy import Engine

from include.site.site import Site
from include.stageout.components.retry_manager import KilledTransfers, kill, resubmit
from include.stageout.components.retry_manager import kill_workflow as kill_whole
from include.stageout.files import MAX_FILES, check_name_space, check_request
from include.stageout.registration.blocks import close_workflow
from include.stageout.requests import record_request
from include.stageout.rest.documents import ReceiptDocument, RequestDocument, SentDocument
from include.stageout.rest.errors import BODY_INVALID
from include.stageout.rest.questions import owner_of
from include.stageout.rest.users import StageoutUser


class ChosenDocument(SentDocument):
    """Which transfers: those with these ids, or those of a workflow. What the user may not change is left as it is."""

    ids: tuple[Annotated[int, Field(ge=1, le=2**62)], ...] | None = Field(None, max_length=MAX_FILES)
    workflow: str | None = Field(None, max_length=128)
    user: str | None = Field(None, max_length=128, description="The workflow's owner, for operators; default: yourself")


class KilledDocument(BaseModel):
    """So many transfers are killed, and so many are as soon as FTS confirms it; what is copied already goes on."""

    killed: int
    killing: int

    @classmethod
    def of(cls, transfers: KilledTransfers) -> KilledDocument:
        """Their numbers."""
        return cls(killed=len(transfers.killed), killing=len(transfers.killing))


class ResubmittedDocument(BaseModel):
    """So many failed and killed transfers are new again."""

    resubmitted: int


class ClosedDocument(BaseModel):
    """The workflow is closed; `changed`: by this call."""

    changed: bool


def record(site: Site, user: StageoutUser, body: bytes, key: str | None, *, now: datetime) -> ReceiptDocument:
    """Record a request of the user. Raises StageoutError."""
    wanted = RequestDocument.read(body).to_request(user.name, key)
    check_request(wanted, site.settings.sites)
    check_name_space(wanted, site.settings.stageout)
    receipt = record_request(site.ledger, wanted, now=now)
    return ReceiptDocument(request=receipt.id, files=receipt.files, repeated=receipt.repeated)


def kill_chosen(ledger: Engine, user: StageoutUser, body: bytes, *, now: datetime) -> KilledDocument:
    """Kill the chosen transfers. Raises StageoutError."""
    ids, owner, workflow = _choice(body, user)
    return KilledDocument.of(kill(ledger, by=user.name, now=now, ids=ids, owner=owner, workflow=workflow))


def resubmit_chosen(ledger: Engine, user: StageoutUser, body: bytes, *, now: datetime) -> ResubmittedDocument:
    """Make the chosen transfers that failed or were killed new again. Raises StageoutError."""
    ids, owner, workflow = _choice(body, user)
    moved = resubmit(ledger, by=user.name, now=now, ids=ids, owner=owner, workflow=workflow)
    return ResubmittedDocument(resubmitted=len(moved))


def close(ledger: Engine, user: StageoutUser, asked: str | None, name: str, *, now: datetime) -> ClosedDocument:
    """Close a workflow. Raises StageoutError, WORKFLOW_UNKNOWN if its owner has no such workflow."""
    return ClosedDocument(changed=close_workflow(ledger, owner_of(user, asked) or user.name, name, now=now))


def kill_workflow(ledger: Engine, user: StageoutUser, asked: str | None, name: str, *, now: datetime) -> KilledDocument:
    """Close a workflow, and kill its transfers. Raises as `close`."""
    owner = owner_of(user, asked) or user.name
    return KilledDocument.of(kill_whole(ledger, owner, name, by=user.name, now=now))


def _choice(body: bytes, user: StageoutUser) -> tuple[tuple[int, ...] | None, str | None, str | None]:
    """Ids, owner and workflow as `kill` takes them. Raises StageoutError."""
    chosen = ChosenDocument.read(body)
    if (chosen.ids is None) is (chosen.workflow is None):
        raise BODY_INVALID("the request", "it has neither `ids` nor `workflow`, or both")
    owner = owner_of(user, chosen.user)
    return chosen.ids, owner if chosen.ids is not None else owner or user.name, chosen.workflow
