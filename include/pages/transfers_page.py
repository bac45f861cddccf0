"""*Transfers*, and *Transfer*: one file with its whole history, the reason of each move, and its job at FTS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from include.errors import NightshiftError
from include.fts.open import server_url
from include.pages import transfers_rows as rows, transfers_view as view
from include.pages.asked import Asked, BadPageQuery
from include.pages.registry import PREFIX, STAGEOUT_API, transfer
from include.settings.errors import SettingsError
from include.stageout import status
from include.stageout.archive import history
from include.stageout.attempts.queues import Link, ask_optimizers, decisions_by_link
from include.stageout.components.retry_manager import KEEPABLE
from include.stageout.findings import FindingKind
from include.stageout.rest.questions import ListFormat
from include.stageout.retry import TransferFailureClass
from include.stageout.states import TRANSFER_MOVES, StageoutComponent, TransferState

API = STAGEOUT_API.removeprefix(f"{PREFIX}/")
"""Relative to a page, below any base path of Airflow."""
CHOOSING = ("user", "workflow", "job", "source", "destination", "site", "name", "failure", "state")
"""Parameters of a list that choose transfers; the API's have the same names."""


@dataclass(frozen=True, slots=True)
class TransferChange:
    """A button. `states`: those that it changes; `effect`: what it does, shown before the second press."""

    verb: str
    label: str
    effect: str
    states: tuple[TransferState, ...]

    @property
    def url(self) -> str:
        """Return the address of the call."""
        return f"{API}/transfers/{self.verb}"

    def listed(self, given: Mapping[str, str]) -> str | None:
        """The call that lists what of a list of the page it changes; None: its states have nothing of that."""
        asked = [state for state in given.get("state", "").split(",") if state]
        states = [state.value for state in self.states if not asked or state.value in asked]
        query = [(name, given[name]) for name in CHOOSING if name in given and name != "state"]
        query += [*(("state", state) for state in states), ("archived", "false"), ("limit", str(status.MAX_PAGE))]
        return f"{API}/transfers?{urlencode(query)}" if states else None


def _before(*after: TransferState) -> tuple[TransferState, ...]:
    """The states from which a person makes a transfer one of these."""
    made = {move[0] for move, rule in TRANSFER_MOVES.items()
            if move[1] in after and rule.component is StageoutComponent.PERSON}  # fmt: skip
    return tuple(state for state in TransferState if state in made)


CHANGES = (
    TransferChange(
        "kill", "Kill", "What FTS has is killed when FTS confirms it; what is copied already goes on.",
        _before(TransferState.KILLED, TransferState.KILLING),
    ),
    TransferChange(
        "resubmit", "Resubmit", "Failed and killed transfers are tried again, with all their retries.",
        _before(TransferState.NEW),
    ),
    TransferChange(
        "keep", "Keep the source", "Their sources are not removed after the copy. This cannot be undone.", KEEPABLE
    ),
)  # fmt: skip


def changes_of_list(given: Mapping[str, str]) -> list[tuple[TransferChange, str]]:
    """The buttons of a list, each with its call; none of a list that nothing was chosen for."""
    if not any(name in given for name in CHOOSING):
        return []
    return [(change, url) for change in CHANGES if (url := change.listed(given)) is not None]


OVERVIEW_EVERY_S, OLD_S = 15, 0
"""Seconds between two updates where it shows the newest, and elsewhere: never."""
SOON_S = 2
"""The same while a part of it has no answer yet."""
PAGE = 50
_STATES = {state.value: state for state in TransferState}
_NAMES = ("user", "workflow", "job", "source", "destination", "site", "name", "failure", "state", "archived", "finding")
_FINDINGS = {kind.value: kind for kind in FindingKind}
_ARCHIVED = {"yes": True, "no": False}


def read_overview(asked: Asked) -> dict[str, Any]:
    """Transfers of the user who asks, or of all users for an operator. Raises BadPageQuery.

    Parameters choose: `user`, `workflow`, `job`, `source`, `destination`, `site`, `name`, `failure`, `state` (one or
    more, by commas), `archived` (yes: those too); `finding` of the census; `after` a row of the list.
    """
    given = {name: value for name in _NAMES if (value := asked.text(name)) is not None}
    selection, after = chosen(asked, given), asked.whole("after")
    asked.choice("finding", _FINDINGS)
    archived = asked.choice("archived", _ARCHIVED) == "yes"
    page = status.list_transfers(asked.site.ledger, selection, after=after, limit=PAGE, archived=archived)
    values = {
        "given": given,
        "operator": asked.user.operator,
        "user": asked.user.name,
        "states": list(_STATES),
        "sites": sorted(asked.site.settings.sites),
        "failure_classes": [kind.value for kind in TransferFailureClass],
        "phases": view.PHASES,
        "changes": changes_of_list(given) if asked.user.may_change else [],
        "most": status.MAX_PAGE,
        "rows": [
            (
                row,
                view.kind_of(row.state),
                transfer(row.id),
                view.help_of(row.state, row.failure) if row.state in rows.TROUBLED else "",
            )
            for row in page.rows
        ],
        "older": address(given, after=str(page.after)) if page.after is not None else None,
        "newest": address(given),
        "begun": after is not None,
        "now": asked.now,
        "address": address,
        "shown": view.SHOWN,
    }
    if after is not None:
        return values | {"figures": None, "every": OLD_S}
    figures = _figures(asked, selection, given.get("finding"))
    rest = figures["rest"]
    answers = [*figures["counted"], *([rest["ended"], rest["trouble"]] if rest else [])]
    waits = any(answer.is_late(asked.now) for answer in answers)
    return values | {"figures": figures, "every": SOON_S if waits else OVERVIEW_EVERY_S}


def chosen(asked: Asked, given: Mapping[str, str]) -> status.TransferFilter:
    """Return the choice by the parameters, of transfers that the user may see. Raises BadPageQuery."""
    owner = given.get("user")
    if not asked.user.operator:
        if owner not in (None, asked.user.name):
            raise BadPageQuery("user", "only operators see transfers of other users")
        owner = asked.user.name
    states = [state for state in given.get("state", "").split(",") if state]
    for state in states:
        if state not in _STATES:
            raise BadPageQuery("state", f"{state[:64]!r} is not a state; states: {', '.join(_STATES)}")
    if "workflow" not in given and ("job" in given or "name" in given):
        raise BadPageQuery("workflow", "a job and a name are looked for in one workflow")
    return status.TransferFilter(
        owner, given.get("workflow"), given.get("job"), given.get("source"), given.get("destination"),
        given.get("site"), given.get("name"), given.get("failure"), tuple(_STATES[state] for state in states),
    )  # fmt: skip


def address(given: Mapping[str, str], **more: str) -> str:
    """The page with these parameters; an empty one is left out."""
    query = {name: value for name, value in {**given, **more}.items() if value}
    return f"transfers?{urlencode(query)}" if query else "transfers"


def _figures(asked: Asked, chosen: status.TransferFilter, finding: str | None) -> dict[str, Any]:
    """Counts and what is beside them: of all that the user may see, or of what the parameters choose of that."""
    ledger, remembered, owner = asked.site.ledger, asked.remembered, chosen.owner
    whole = status.TransferFilter(owner=owner, workflow=chosen.workflow)
    link = (chosen.source, chosen.destination, chosen.site)

    def count() -> tuple[status.TransferCount, ...]:
        # once for all choices of a link
        return remembered(("transfers", whole), lambda: status.count_transfers(ledger, whole))

    if chosen.workflow is not None:
        of_it = asked.counts.ask(
            ("workflow", whole, link), lambda: (_tables(count(), chosen), _workflow(asked, whole, count()))
        )
        counts, progress = of_it.value or (_tables((), chosen), None)
        empty = {"counted": (of_it,), "rest": None, "whose": owner}
        return empty | {"counts": counts, "limits": _limits(asked, counts), "workflow": progress}
    hours = min(24, asked.site.settings.stageout.archive_hours)
    counted, trouble, ended = asked.counts.ask_all({
        ("transfers", whole, link): lambda: _tables(count(), chosen),
        ("trouble", owner, finding): lambda: (
            rows.oldest_due(ledger, owner),
            rows.held(ledger, owner),
            rows.findings(ledger, owner, finding),
            rows.failures(ledger, owner),
        ),
        ("ended", owner): lambda: (
            rows.hours(ledger, remembered, owner, now=asked.now, count=hours),
            rows.days(ledger, owner, now=asked.now),
            rows.link_rates(ledger, owner, now=asked.now),
        ),
    })  # fmt: skip
    counts = counted.value or _tables((), chosen)
    by_hour, by_day, (rates, since) = ended.value or ((), (), ((), asked.now))
    oldest, held, (kinds, shown), failed = trouble.value or ({}, [], ({}, []), [])
    rest = {
        "oldest": oldest,
        "held": held,
        "findings": [
            (row, transfer(row.transfer) if row.transfer else None, view.help_of_finding(row.kind)) for row in shown
        ],
        "kinds": kinds,
        "failures": [(row, view.retries_of(row.failure), view.help_of(row.state, row.failure)) for row in failed],
        "ended": ended,
        "trouble": trouble,
        "rates": rates,
        "since": since,
        "rate_figure": view.rate_figure(rates, since, asked.now) if rates else None,
        "hour_figure": view.ended_figure(by_hour, daily=False) if by_hour else None,
        "day_figure": view.ended_figure(by_day, daily=True) if by_day else None,
        "days": by_day[::-1],
    }
    limits = _limits(asked, counts)
    figures = {"counts": counts, "limits": limits, "counted": (counted,), "rest": rest}
    return figures | {"whose": owner, "workflow": None}


def _workflow(
    asked: Asked, whole: status.TransferFilter, counts: Sequence[status.TransferCount]
) -> dict[str, Any] | None:
    """The progress of a user's workflow, what keeps its files from their end, and lists of copies."""
    owner, name, ledger = whole.owner, whole.workflow, asked.site.ledger
    if owner is None or name is None:
        return None
    files = status.sum_counts((*counts, *status.count_archived(ledger, whole)), lambda count: count.state)
    lately, within = rows.ended_lately(ledger, owner, name, now=asked.now)
    waits = rows.waiting_groups(ledger, owner, name)
    lists = urlencode({"user": owner, "workflow": name})
    return {
        "progress": view.progress_of(files, lately, within),
        "waits": [(group, view.help_of(group.state, group.failure)) for group in waits],
        "lists": [(form.value, f"{API}/copies?{lists}&format={form.value}") for form in ListFormat],
    }


def _limits(asked: Asked, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return decisions of FTS's optimizers about the shown links, and the servers without an answer."""
    answer = asked.services.ask("decisions of FTS", lambda: ask_optimizers(asked.site))
    if answer.value is None:
        return {"links": {}, "faults": [answer.fault] if answer.fault else []}
    groups = next(groups for name, _, groups in counts["tables"] if name == "link")
    links: list[Link] = [(group.query["source"], group.query["destination"]) for group in groups[: view.SHOWN]]
    faults = [str(error) for error in answer.value.values() if isinstance(error, NightshiftError)]
    return {"links": decisions_by_link(links, asked.site.settings.sites, answer.value), "faults": faults}


def _tables(counts: Sequence[status.TransferCount], chosen: status.TransferFilter) -> dict[str, Any]:
    some = [
        count for count in counts
        if chosen.source in (None, count.source) and chosen.destination in (None, count.destination)
        and chosen.site in (None, count.source, count.destination)
    ]  # fmt: skip
    states = status.sum_counts(some, lambda count: count.state)
    groups = view.groups(some)
    return {
        "states": [(state, view.kind_of(state), states[state]) for state in TransferState if state in states],
        "tables": [(name, name.capitalize(), groups[name]) for name in ("user", "link", "site")],
    }


EVERY_S = 10


def read(asked: Asked) -> dict[str, Any]:
    """The transfer `id`, if it is the user's own or an operator asks. Raises BadPageQuery."""
    number = asked.whole("id", least=1)
    transfer = None if number is None else status.transfer_status(asked.site.ledger, number)
    if transfer is None or not asked.user.may_see(transfer.owner):
        raise BadPageQuery("id", f"you have no transfer {number}")
    server = rows.server_of(asked.site.ledger, transfer.fts_id) if transfer.fts_id else None
    return {
        "row": transfer,
        "kind": view.kind_of(transfer.state),
        "moves": view.shown_moves(transfer.created_at, history(asked.site.ledger, transfer.id)),
        "changes": () if transfer.archived or not asked.user.may_change else CHANGES,
        "retries": view.retries_of(transfer.failure),
        "helps": view.help_of(transfer.state, transfer.failure) if transfer.state in rows.TROUBLED else None,
        "copy": status.copy_of(asked.site.settings.sites, transfer),
        "server": server,
        "job": _job_url(asked, server, transfer.fts_id) if server and transfer.fts_id else None,
        "user_url": address({"user": transfer.owner}),
        "workflow_url": address({"user": transfer.owner, "workflow": transfer.workflow}),
        "link_url": address({"source": transfer.source, "destination": transfer.destination}),
        "every": 0 if transfer.archived else EVERY_S,
    }


def _job_url(asked: Asked, server: str, fts_id: str) -> str | None:
    """The job in the REST interface of its FTS server; None: the connection is not known here."""
    try:
        return f"{server_url(asked.site.secrets.get(server))}/jobs/{fts_id}"
    except SettingsError:
        return None
