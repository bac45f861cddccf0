"""A summary as people read it: HTML for mail and browser, and plain text."""

from __future__ import annotations

from datetime import UTC, datetime

from jinja2 import Environment, StrictUndefined

from include.monitoring.summary import ArtifactOutcome, Line, Summary
from include.nightlies.records.quality import QualityRecord

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
