"""A summary as people read it: HTML for mail and browser, and plain text."""

from __future__ import annotations

from datetime import UTC, datetime

from jinja2 import Environment, StrictUndefined

from include.care.watch.summary import Fate, Line, Summary

_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ one.headline }}</title>
<style>
body { font-family: sans-serif; margin: 1.5em; color: #1c1917 }
table { border-collapse: collapse; margin: 0.8em 0 }
th, td { border: 1px solid #d6d3d1; padding: 0.25em 0.6em; text-align: left; vertical-align: top }
td.n, th.n { text-align: right }
tr.failed td, tr.never-arrived td { background: #fee2e2 }
tr.blocked td, tr.open td { background: #fef9c3 }
.good { color: #166534 } .bad { color: #991b1b }
</style></head><body>
<h1>{{ one.slot }} {{ one.date }}</h1>
<p class="{{ 'good' if one.good else 'bad' }}">{{ verdict }}</p>
<p>Build {{ one.builds | join(", ") or "none" }}; made at {{ one.made_at.strftime("%Y-%m-%d %H:%M") }} UTC.
{% if total.began_at %}First taken at {{ clock(total.began_at) }},
last ended at {{ clock(total.ended_at) or "no time yet" }} UTC.{% endif %}</p>
{% if one.platforms %}<table><tr><th>platform</th>
{%- for fate in fates %}<th class="n">{{ fate.value }}</th>{% endfor %}
<th class="n">size</th><th class="n">uploaded</th><th class="n">work</th><th>last ended (UTC)</th></tr>
{% for platform in rows %}{% set sum = one.total(platform) %}<tr><td>{{ platform or "all" }}</td>
{%- for fate in fates %}<td class="n">{{ one.count(fate, platform) }}</td>{% endfor %}
<td class="n">{{ size(sum.bytes) }}</td><td class="n">{{ size(sum.bytes_uploaded) }}</td>
<td class="n">{{ "%.1f s" % sum.seconds }}</td><td>{{ clock(sum.ended_at) }}</td></tr>
{% endfor %}</table>
<table><tr><th>project</th><th>platform</th><th>fate</th><th>reason</th><th class="n">files</th>
<th class="n">size</th><th class="n">uploaded</th><th class="n">work</th><th>ended (UTC)</th><th>log</th></tr>
{% for line in one.lines %}<tr class="{{ line.fate.value.replace(' ', '-') }}"><td>{{ line.project }}</td>
<td>{{ line.platform }}</td><td>{{ line.fate.value }}{{ "" if line.required else " (optional)" }}</td>
<td>{{ line.reason }}{% if line.mended %}<br>{{ line.mended }}{% endif %}</td>
<td class="n">{{ line.files if line.files is not none }}</td><td class="n">{{ size(line.bytes) }}</td>
<td class="n">{{ size(line.bytes_uploaded) }}</td><td class="n">{{ "%.1f s" % line.seconds if line.run }}</td>
<td>{{ clock(line.ended_at) }}</td>
<td>{% if line.log %}<a href="{{ line.log }}">run</a>{% endif %}</td></tr>
{% endfor %}</table>{% endif %}
{% if one.runs %}<h2>Runs</h2><ul>{% for run, log in one.runs.items() %}
<li>{% if log %}<a href="{{ log }}">{{ run }}</a>{% else %}{{ run }}{% endif %}</li>{% endfor %}</ul>{% endif %}
{% if one.links %}<h2>Links and tags</h2><ul>{% for said in one.links %}<li>{{ said }}</li>{% endfor %}</ul>{% endif %}
{% if one.notes %}<h2>Notes</h2><ul>{% for note in one.notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
</body></html>
"""
_environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def to_html(one: Summary) -> str:
    """A page of its own; text from an index or an error is escaped, and nothing is loaded from elsewhere."""
    return _environment.from_string(_HTML).render(
        one=one,
        fates=list(Fate),
        size=size,
        clock=_clock,
        verdict=verdict(one),
        total=one.total(),
        rows=[*one.platforms, None],
    )


def to_text(one: Summary) -> str:
    """The same as lines: what is wrong first."""
    total = one.total()
    parts = [one.headline, verdict(one)]
    if total.began_at:
        parts.append(f"First taken at {_clock(total.began_at)}, last ended at {_clock(total.ended_at) or '-'} UTC.")
    parts += ["", *_platforms(one), ""] if one.platforms else [""]
    width = max((len(line.name) for line in one.lines), default=0)
    for line in one.lines:
        optional = "" if line.required else " (optional)"
        parts.append(f"{line.fate.value:13} {line.name:{width}}{optional}  {_figures(line)}{line.reason}")
        if line.mended:
            parts.append(f"{'':13} {line.mended}")
        if line.log and not line.fate.good:
            parts.append(f"{'':13} log: {line.log}")
    parts += [f"run: {run}{f' {log}' if log else ''}" for run, log in one.runs.items()]
    parts += [f"{said}" for said in one.links]
    parts += [f"note: {note}" for note in one.notes]
    return "\n".join(parts) + "\n"


def _platforms(one: Summary) -> list[str]:
    """A line for each platform: how many of each fate, how much, and until when."""
    width = max(len(platform) for platform in one.platforms)
    lines = []
    for platform in one.platforms:
        counts = ", ".join(f"{count} {fate.value}" for fate in Fate if (count := one.count(fate, platform)))
        total = one.total(platform)
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


def verdict(one: Summary) -> str:
    """Whether all that is required is there."""
    if not one.builds:
        return "No build of this date is known to the ledger."
    if one.good:
        return "All that is required is there."
    names = ", ".join(line.name for line in one.lacking[:20])
    more = f" and {len(one.lacking) - 20} more" if len(one.lacking) > 20 else ""
    return f"{len(one.lacking)} required and missing: {names}{more}."


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
