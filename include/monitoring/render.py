"""Summaries of nights as files: text, HTML and JSON, and the folder that keeps them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from sqlalchemy import Column, Connection, Date, Table, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, long_text, metadata
from include.monitoring.summary import ArtifactOutcome, Line, Summary, no_log, summary
from include.nightlies.records import builds, links as linked, publications as records, quality, tables
from include.nightlies.records.quality import QualityRecord
from include.nightlies.records.tables import links
from include.nightlies.rules.build import BuildKey
from include.settings.model import Slot

_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ summary.headline }}</title>
<style>
body { font-family: sans-serif; margin: 1.5em; color: #1c1917 }
table { border-collapse: collapse; margin: 0.8em 0 }
th, td { border: 1px solid #d6d3d1; padding: 0.25em 0.6em; text-align: left; vertical-align: top }
td.n, th.n { text-align: right }
tr.failed td, tr.never-arrived td { background: #fee2e2 }
tr.blocked td, tr.open td { background: #fef9c3 }
.good { color: #166534 } .bad { color: #991b1b } .wait { color: #713f12 }
</style></head><body>
<h1>{{ summary.slot }} {{ summary.date }}</h1>
<p class="{{ verdict.state.kind }}"><strong>{{ verdict.state.value }}</strong>: {{ verdict.reason }}</p>
{% if summary.blocked %}<ul>{% for record in summary.blocked %}{% for row in rows_of(record) %}
<li>suite {{ record.suite.value }}: {{ row }}</li>
{% endfor %}{% endfor %}</ul>{% endif %}
<p>Build {{ summary.builds | join(", ") or "none" }}; made at {{ summary.made_at.strftime("%Y-%m-%d %H:%M") }} UTC.
{% if total.began_at %}First taken at {{ clock(total.began_at) }},
last ended at {{ clock(total.ended_at) or "no time yet" }} UTC.{% endif %}</p>
{% if summary.platforms %}<table><tr><th>platform</th>
{%- for fate in fates %}<th class="n">{{ fate.value }}</th>{% endfor %}
<th class="n">size</th><th class="n">uploaded</th><th class="n">work</th><th>last ended (UTC)</th></tr>
{% for platform in rows %}{% set sum = summary.total(platform) %}<tr><td>{{ platform or "all" }}</td>
{%- for fate in fates %}<td class="n">{{ summary.count(fate, platform) }}</td>{% endfor %}
<td class="n">{{ size(sum.bytes) }}</td><td class="n">{{ size(sum.bytes_uploaded) }}</td>
<td class="n">{{ "%.1f s" % sum.seconds }}</td><td>{{ clock(sum.ended_at) }}</td></tr>
{% endfor %}</table>
<table><tr><th>project</th><th>platform</th><th>fate</th><th>reason</th><th class="n">files</th>
<th class="n">size</th><th class="n">uploaded</th><th class="n">work</th><th>ended (UTC)</th><th>log</th></tr>
{% for line in summary.lines %}<tr class="{{ line.fate.value.replace(' ', '-') }}"><td>{{ line.project }}</td>
<td>{{ line.platform }}</td><td>{{ line.fate.value }}{{ "" if line.required else " (optional)" }}</td>
<td>{{ line.reason }}{% if line.mended %}<br>{{ line.mended }}{% endif %}</td>
<td class="n">{{ line.files if line.files is not none }}</td><td class="n">{{ size(line.bytes) }}</td>
<td class="n">{{ size(line.bytes_uploaded) }}</td><td class="n">{{ "%.1f s" % line.seconds if line.run }}</td>
<td>{{ clock(line.ended_at) }}</td>
<td>{% if line.log %}<a href="{{ line.log }}">run</a>{% endif %}</td></tr>
{% endfor %}</table>{% endif %}
{% if summary.runs %}<h2>Runs</h2><ul>{% for run, log in summary.runs.items() %}
<li>{% if log %}<a href="{{ log }}">{{ run }}</a>{% else %}{{ run }}{% endif %}</li>{% endfor %}</ul>{% endif %}
{% if summary.links %}<h2>Links and tags</h2><ul>
{%- for link in summary.links %}<li>{{ link }}</li>{% endfor %}</ul>{% endif %}
{% if summary.notes %}<h2>Notes</h2><ul>{% for note in summary.notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
</body></html>
"""
_environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def to_html(summary: Summary) -> str:
    """A page of its own; text from an index or an error is escaped, and nothing is loaded from elsewhere."""
    return _environment.from_string(_HTML).render(
        summary=summary,
        fates=list(ArtifactOutcome),
        size=size,
        clock=_clock,
        verdict=summary.verdict,
        total=summary.total(),
        rows=[*summary.platforms, None],
        rows_of=rows_of,
    )


def to_text(summary: Summary) -> str:
    """The same as lines: what is wrong first."""
    total = summary.total()
    parts = [summary.headline, summary.verdict.reason]
    parts += [f"suite {record.suite.value}: {row}" for record in summary.blocked for row in rows_of(record)]
    if total.began_at:
        parts.append(f"First taken at {_clock(total.began_at)}, last ended at {_clock(total.ended_at) or '-'} UTC.")
    parts += ["", *_platforms(summary), ""] if summary.platforms else [""]
    width = max((len(line.name) for line in summary.lines), default=0)
    for line in summary.lines:
        optional = "" if line.required else " (optional)"
        parts.append(f"{line.fate.value:13} {line.name:{width}}{optional}  {_figures(line)}{line.reason}")
        if line.mended:
            parts.append(f"{'':13} {line.mended}")
        if line.log and not line.fate.good:
            parts.append(f"{'':13} log: {line.log}")
    parts += [f"run: {run}{f' {log}' if log else ''}" for run, log in summary.runs.items()]
    parts += [f"{link}" for link in summary.links]
    parts += [f"note: {note}" for note in summary.notes]
    return "\n".join(parts) + "\n"


def rows_of(record: QualityRecord) -> list[str]:
    """A line for each row that a suite found wrong, as far as the ledger has them."""
    rows = record.fault_rows or (record.reason,)
    more = [f"… and {record.faults - len(rows)} more; see the Data Docs"] if record.faults > len(rows) else []
    return [*rows, *more]


def _platforms(summary: Summary) -> list[str]:
    """A line for each platform: how many of each fate, how much, and until when."""
    width = max(len(platform) for platform in summary.platforms)
    lines = []
    for platform in summary.platforms:
        numbers = {fate.value: summary.count(fate, platform) for fate in ArtifactOutcome}
        counts = ", ".join(f"{number} {fate}" for fate, number in numbers.items() if number)
        total = summary.total(platform)
        until = f", until {_clock(total.ended_at)} UTC" if total.ended_at else ""
        sizes = f"{size(total.bytes)}, {size(total.bytes_uploaded)} uploaded, {total.seconds:.1f} s"
        lines.append(f"{platform:{width}}  {counts}; {sizes}{until}")
    return lines


def _figures(line: Line) -> str:
    if line.files is None:
        return ""
    uploaded = f", {size(line.bytes_uploaded)} uploaded" if line.bytes_uploaded is not None else ""
    ended = f", ended {_clock(line.ended_at)}" if line.ended_at else ""
    return f"{line.files} files, {size(line.bytes)}{uploaded}, {line.seconds:.1f} s{ended}; "


def _clock(instant: datetime | None) -> str:
    return f"{instant.astimezone(UTC):%H:%M:%S}" if instant else ""


def size(number: int | None) -> str:
    """Bytes as people read them; nothing for nothing known."""
    if number is None:
        return ""
    value, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


summaries = Table(
    "summaries",
    metadata,
    # whether a night's summary was made, so that it is sent once
    Column("slot", exact(128), primary_key=True),
    Column("build_date", Date, primary_key=True),
    Column("file", exact(1024), nullable=False),
    Column("headline", long_text(), nullable=False),
    Column("made_at", UtcTime, nullable=False),
    Column("told_at", UtcTime),
    Column("fault", long_text()),
    **TABLE_OPTIONS,
)


def read_summary(
    bind: Bind, slot: Slot, day: date, *, now: datetime, log_of: Callable[[str], str | None] = no_log
) -> Summary:
    """The summary of a slot's night as the ledger has it in this moment."""
    with reading(bind) as connection:
        found = builds.builds_of(connection, slot.name, day)
        oldest = min((build.key for build in found), default=BuildKey(day, ""))
        before = builds.preceding_build(connection, slot.name, oldest)
        blocked = quality.blocked_night(connection, slot.name, day, [build.build_id for build in found], slot.quality)
        published = {build.id: records.publications_of_build(connection, build.id) for build in found}
        query = select(links).where(links.c.slot == slot.name, links.c.build_date == day).order_by(links.c.id)
        names = linked.LinkRecord.__slots__
        decided = {
            (row["kind"], row["path"]): linked.LinkRecord(**{name: row[name] for name in names})
            for row in connection.execute(query).mappings()
        }
    return summary(
        slot, day, builds=found, publications=published, before=before, links=decided.values(), now=now,
        blocked=blocked, log_of=log_of,
    )  # fmt: skip


def begun_since(bind: Bind, slot: Slot, since: datetime) -> dict[date, datetime]:
    """The build dates of which a first build became known since then, and when."""
    first = func.min(tables.builds.c.first_seen_at)
    query = select(tables.builds.c.build_date, first.label("at")).where(tables.builds.c.slot == slot.name)
    query = query.group_by(tables.builds.c.build_date).having(first >= since)
    with reading(bind) as connection:
        return {row["build_date"]: row["at"] for row in connection.execute(query).mappings()}


def store_summary(folder: Path, night: Summary) -> Path:
    """Write it as HTML, text and JSON below `folder`, each whole or not at all; the path of the HTML."""
    place = folder / "summaries" / night.slot
    place.mkdir(parents=True, exist_ok=True)
    forms = {"json": json.dumps(night.to_json(), indent=1), "txt": to_text(night), "html": to_html(night)}
    for suffix, text in forms.items():
        path = place / f"{night.date}.{suffix}"
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    return place / f"{night.date}.html"


def is_made(bind: Bind, slot: str, day: date, *, sent: bool) -> bool:
    """Tell if a night's summary was made and, with `sent`, sent."""
    where = [summaries.c.slot == slot, summaries.c.build_date == day]
    if sent:
        where.append(summaries.c.told_at.is_not(None))
    with reading(bind) as connection:
        return connection.scalar(select(summaries.c.slot).where(*where)) is not None


def note_made(bind: Bind, night: Summary, file: Path, *, now: datetime, fault: str | None) -> None:
    """Record that a summary was made; with a `fault` it was not sent, and will be tried again."""
    key = {"slot": night.slot, "build_date": night.date}
    told = now if fault is None else None
    values = {"file": str(file), "headline": night.headline, "made_at": now, "told_at": told, "fault": fault}

    def work(connection: Connection) -> None:
        where = (summaries.c.slot == night.slot, summaries.c.build_date == night.date)
        if connection.execute(update(summaries).where(*where).values(**values)).rowcount:
            return
        try:
            with connection.begin_nested():
                connection.execute(insert(summaries).values(**key, **values))
        except IntegrityError:
            connection.execute(update(summaries).where(*where).values(**values))

    writing(bind, work)
