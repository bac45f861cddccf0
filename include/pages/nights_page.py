"""*Nights*: the list of nights, and for each slot and date the matrix of project x platform, live."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from include.cvmfs.revision.revision import diff
from include.monitoring.render import read_summary, rows_of
from include.monitoring.summary import ArtifactOutcome, NightState, NightVerdict, Summary
from include.nightlies.records import builds, progress, quality
from include.nightlies.records.quality import QualityRecord
from include.nightlies.rules.build import BuildKey, all_links_of
from include.nightlies.rules.publication import Publication, State
from include.nightlies.steps.sources import absolute
from include.pages import nights_rows as rows, nights_view as view
from include.pages.asked import NOT_YET, Asked, BadPageQuery
from include.pages.provenance import open_leases
from include.pages.registry import night, run_of, start
from include.provenance.interventions import standing
from include.quality.results import docs_file, folder_of_run
from include.settings.model import Slot
from include.settings.secrets import browser_url
from include.site.site import Site

BUSY_S, QUIET_S = 3, 20
"""Seconds between two updates while something runs, and otherwise."""
STEADY_S = 10
"""Seconds for which what is under way keeps its length in the timeline, so that it is drawn again more seldom."""
COURSES_S = 600.0
"""Seconds for which the courses of earlier nights are kept."""
COMPARED, COMPARED_S = 100_000, 3600.0
"""Files of two trees that are compared at most, and the seconds for which the result is kept."""
DAYS, CALENDAR_S = 28, 60.0
"""Days of the calendar, and for how many seconds its verdicts are kept."""
MARKS = {
    NightState.WHOLE: "\N{CHECK MARK}", NightState.OPEN: "\N{HORIZONTAL ELLIPSIS}",
    NightState.INCOMPLETE: "\N{BALLOT X}", NightState.BLOCKED: "!", NightState.NO_BUILD: "\N{EN DASH}",
}  # fmt: skip


def read(asked: Asked) -> dict[str, Any]:
    """The list of nights; with `slot` and `date`, or the `run` of one, a single night."""
    slots, run = asked.site.settings.slots, asked.text("run")
    slot, day = asked.choice("slot", slots), asked.day("date")
    of_run = rows.night_of_run(asked.site.ledger, run) if run else None
    if of_run is not None and of_run[0] in slots:
        slot, day = of_run
    shared = {"slots": sorted(slots), "slot": slot, "day": day, "night_url": night}
    if slot is not None and day is not None:
        return shared | {"night": _night(asked, slots[slot], day)}
    note = f"Run {run} has not recorded an artifact of a night, and judged none." if run else None
    return shared | {"night": None, "note": note, **_list(asked, slot)}


def _list(asked: Asked, slot: str | None) -> dict[str, Any]:
    until, below = asked.day("until"), asked.whole("below")
    after = rows.Cursor(until, below) if until is not None and below is not None else None
    listed = rows.newest_builds(asked.site.ledger, slot=slot, after=after, limit=rows.PAGE + 1)
    shown = listed[: rows.PAGE]
    last = shown[-1] if len(listed) > rows.PAGE else None
    slots = asked.site.settings.slots
    shown = rows.kept_back(
        asked.site.ledger, [slot] if slot else slots, shown, after=after, more=last is not None
    )  # fmt: skip
    busy = any(not state.ended for row in shown for state in row.states)
    return {
        "builds": shown,
        "verdicts": rows.verdicts(asked.site.ledger, slots, shown),
        "states": [state for state in State if any(row.states[state] for row in shown)],
        "older": f"nights?slot={slot or ''}&until={last.date}&below={last.id}" if last else None,
        "begun": after is not None,
        "calendar": None if after is not None else _calendar(asked, [slot] if slot else sorted(slots)),
        "every": BUSY_S if busy else QUIET_S,
    }


def _calendar(asked: Asked, slots: Sequence[str]) -> dict[str, Any]:
    """The days of the last four weeks, and for each slot the verdicts of their nights, counted beside the page."""
    today = asked.now.date()
    days = [today - timedelta(days=number) for number in range(DAYS)]

    def verdicts(slot: str) -> dict[tuple[str, date], NightVerdict]:
        ledger = asked.site.ledger
        listed = rows.newest_builds(ledger, slot=slot, since=days[-1], limit=2 * DAYS)
        shown = rows.kept_back(ledger, [slot], listed, after=None, more=bool(listed))
        return rows.verdicts(ledger, asked.site.settings.slots, shown)

    answers = asked.counts.ask_all(
        {("calendar", slot): partial(verdicts, slot) for slot in slots}, fresh_s=CALENDAR_S
    )  # fmt: skip
    lines = [
        (slot, [(day, (answer.value or {}).get((slot, day))) for day in days])
        for slot, answer in zip(slots, answers, strict=True)
    ]
    fault = next((answer.fault for answer in answers if answer.fault), None)
    return {"days": days, "lines": lines, "marks": MARKS, "fault": fault}


def _night(asked: Asked, slot: Slot, day: date) -> dict[str, Any]:
    ledger = asked.site.ledger
    summary = read_summary(ledger, slot, day, now=asked.now)
    ids = [line.publication.id for line in summary.lines if line.publication is not None]
    preparing = [
        line.publication.id
        for line in summary.lines
        if line.publication is not None and line.publication.state is State.PREPARING
    ]
    noted = progress.of_publications(ledger, preparing)
    before = _before(asked.site, slot, summary) if noted else {}

    def reached(url: str) -> str | None:
        return browser_url(asked.site.settings, absolute(asked.site, slot.store, url))

    make = partial(view.cell_of, slot=slot.name, browser_url=reached, noted=noted, before=before)
    cells = [make(line) for line in summary.lines]
    shown_now = asked.now.replace(microsecond=0) - timedelta(seconds=asked.now.second % STEADY_S)
    drawn, left_out = view.to_draw(cells)
    since = rows.prepared_since(ledger, [str(row.changeset) for row in _publications(drawn) if row.changeset])
    courses = [view.course_of(cell, since.get(str(row.changeset)), shown_now)
               for cell, row in zip(drawn, _publications(drawn), strict=True)]  # fmt: skip
    timeline = sorted((course for course in courses if course), key=lambda course: (course.begins, course.cell.id))
    difference = _difference(asked, slot, summary) if summary.builds else None
    progress_ = view.progress_of(summary, asked.now)
    builds_ = [build.id for build in builds.builds_of(ledger, slot.name, day)]
    runs = rows.runs_of(ledger, builds_) if ids else ()
    busy = any(run.busy for run in runs)
    previous, following = rows.neighbours(ledger, slot.name, day)
    return {
        "summary": summary,
        "blocked": [
            (record, rows_of(record), run_of(record.run_id), _docs(asked, record)) for record in summary.blocked
        ],
        "repository": slot.repository,
        "matrices": view.matrices(summary, cells),
        "glance": view.glance(cells),
        "timeline": timeline,
        "timeline_figure": view.timeline_figure(timeline),
        "left_out": left_out,
        "phases": view.NightPhase,
        "difference": difference,
        "problems": [(cell, *view.cures_of(cell.line, slot.name, day)) for cell in cells if not cell.line.fate.good],
        "progress": progress_,
        "expected": _expected(asked, slot, day, progress_) if progress_ else None,
        "counts": [(fate, summary.count(fate)) for fate in ArtifactOutcome if summary.count(fate)],
        "total": summary.total(),
        "runs": [(number, run, run_of(run.run)) for number, run in enumerate(runs, 1)],
        "links": rows.links_of_slot(ledger, slot.name, all_links_of(slot), slot.repository),
        "run_url": run_of,
        "leases": open_leases(asked, slot.repository),
        "freeze": asked.services.ask(
            f"freeze {slot.repository}", lambda: standing(asked.site, slot.repository, asked.now)
        ),
        "actions": _actions(slot, day, summary),
        "previous": previous,
        "following": following,
        "every": BUSY_S if busy or (difference and difference["files"] is NOT_YET) else QUIET_S,
    }


def _publications(cells: Sequence[view.ArtifactCell]) -> list[Publication]:
    return [cell.line.publication for cell in cells if cell.line.publication is not None]


def _expected(asked: Asked, slot: Slot, day: date, progress: view.NightProgress) -> view.ExpectedEnd | None:
    """The end by the last nights of the slot, whose courses are read beside the page."""
    courses = asked.counts.ask(
        ("courses", slot.name, day), lambda: rows.earlier_courses(asked.site.ledger, slot.name, day), fresh_s=COURSES_S
    )
    return view.expected_end(progress, courses.value or (), asked.now)


def _difference(asked: Asked, slot: Slot, summary: Summary) -> dict[str, Any]:
    """The build before, to compare with; with `compare`, the difference to that build; with `files`, an artifact's.

    Raises BadPageQuery.
    """
    ledger, newest = asked.site.ledger, BuildKey(summary.date, summary.builds[0])
    preceding = builds.preceding_build(ledger, slot.name, _oldest(summary))
    name = asked.text("compare")
    values: dict[str, Any] = {"preceding": preceding, "made": None, "files": None, "url": None, "newest": newest}
    if name is None:
        return values
    build = builds.build(ledger, slot.name, name)
    if build is None:
        raise BadPageQuery("compare", f"slot {slot.name} has no build {name!r}")
    sides = [
        asked.remembered(("figures", slot.name, key), partial(quality.night, ledger, slot.name, key.build_id, key.date))
        for key in (build.key, newest)
    ]
    made = view.BuildDifference.of(*sides)
    url = f"{night(slot.name, summary.date)}&{urlencode({'compare': name})}"
    values |= {"made": made, "url": url, "artifact": asked.text("files")}
    changes = {change.name: change for change in made.changes}
    if values["artifact"] in changes:
        change = changes[values["artifact"]]
        question = f"difference of {slot.name} {name} and {newest.build_id}: {change.name}"
        values["files"] = asked.services.ask(
            question, lambda: _files(asked, slot, (build.build_id, newest.build_id), change)
        )
    return values


def _files(asked: Asked, slot: Slot, pair: tuple[str, str], change: view.ArtifactChange) -> view.FileDifference | str:
    """The files of an artifact that two builds do not have in common, from the catalogs in the store; or why not."""
    sides = (change.before, change.after)
    if any(side is None or side.files is None for side in sides):
        return "one of the two builds has no tree of it in the repository"
    if sum(side.files or 0 for side in sides if side) > COMPARED:
        return f"its trees have more than {COMPARED} files; compare them with: nightshift repo ls"

    def compare() -> view.FileDifference | str:
        rows_ = [builds.build(asked.site.ledger, slot.name, build_id) for build_id in pair]
        before, after = (rows.places_of(asked.site.ledger, row.id).get(change.name) if row else None for row in rows_)
        if before is None or after is None:
            return "the ledger does not have where it is"
        if before == after:
            return "both builds have it at the same path, and the store has the later one"
        tree = asked.site.head(slot.repository).revision
        gone = [path for path in (before, after) if tree.lookup(path) is None]
        if gone:
            return f"{gone[0]} is not in the repository any more"
        return view.FileDifference.of(diff(tree, tree, before, moved=after), before)

    return asked.remembered(("files", slot.name, pair, change), compare, kept_s=COMPARED_S)


def _before(site: Site, slot: Slot, summary: Summary) -> dict[tuple[str, str], int]:
    """The sizes of the build before, for the estimate of what is being prepared."""
    build = builds.preceding_build(site.ledger, slot.name, _oldest(summary))
    return {} if build is None else rows.bytes_before(site.ledger, build.id)


def _oldest(summary: Summary) -> BuildKey:
    return min((BuildKey(summary.date, build_id) for build_id in summary.builds), default=BuildKey(summary.date, ""))


def _docs(asked: Asked, record: QualityRecord) -> str | None:
    """The Data Docs of the run that judged a build; None if this machine does not have them."""
    folder = folder_of_run(asked.site.settings.paths.var, record.slot, record.run_id)
    page = "index.html"
    file = docs_file(asked.site.settings.paths.var, record.slot, folder.name, page)
    return None if file is None else f"quality/{quote(record.slot)}/{folder.name}/{page}"


def _actions(slot: Slot, day: date, summary: Summary) -> Sequence[tuple[str, str]]:
    """Return the actions of a night, each a link to a filled-in form."""
    which = {"slot": slot.name, "build_date": day.isoformat()}
    actions = [("Accept quality", start("accept", **which))] if summary.blocked else []
    actions.append(("Install again", start("install", **which)))
    lacking = ",".join(line.name for line in summary.lacking if line.publication is not None)
    if lacking:
        actions.append(("Publish without what failed", start("without", **which, without=lacking)))
    for build_id in summary.builds:
        actions.append((f"Undo build {build_id}", start("undo", slot=slot.name, build_id=build_id)))
        actions.append((f"Redo build {build_id}", start("redo", slot=slot.name, build_id=build_id)))
    actions.append((f"Freeze {slot.repository}", start("freeze", repository=slot.repository)))
    actions.append((f"Thaw {slot.repository}", start("thaw", repository=slot.repository)))
    return actions
