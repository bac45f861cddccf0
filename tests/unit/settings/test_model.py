"""Settings of approval, links, retention and quality in slots and repositories, and the name of each mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.settings.errors import InvalidSettings
from include.settings.model import SiteSettings, Slot
from include.settings.prepare import QualityMode, QualitySettings, Suite
from include.settings.retention import WeekdayRule
from tests.fakes.airflowhome import ROOT

Parsed = Callable[..., SiteSettings]
REPOSITORY, SLOT = "gateway: gw\n", "projects: [Gaudi, LHCb]\n"
RETENTION = "retention: {keep_last: 14, keep_weekdays: {days: [Sun], weeks: 12}}"


def added(place: str, block: str) -> tuple[str, str]:
    """The change that adds a block of keys after a line."""
    return place, f"{place}    {block}\n"


def slot_with(parsed: Parsed, block: str) -> Slot:
    return parsed(added(SLOT, block)).slot("main")


def test_without_the_blocks_nobody_is_asked_nothing_goes_and_nothing_is_judged(parsed: Parsed) -> None:
    assert {one.approval for one in parsed().repositories.values()} == {None}
    assert (parsed().slot("main").retention, parsed().slot("main").quality) == (None, None)


@pytest.mark.parametrize(
    ("block", "minutes", "approvers"),
    [("{}", 240, ()), ("{deadline_minutes: 720, approvers: [anna, Bob B.]}", 720, ("anna", "Bob B."))],
)
def test_approval_has_a_deadline_and_approvers(
    parsed: Parsed, block: str, minutes: int, approvers: tuple[str, ...]
) -> None:
    (asked,) = (one.approval for one in parsed(added(REPOSITORY, f"approval: {block}")).repositories.values())
    assert asked is not None
    assert (asked.deadline_minutes, asked.approvers) == (minutes, approvers)


def test_links_tag_retention_and_what_is_optional_are_read(parsed: Parsed) -> None:
    block = 'links: {weekdays: false}\n    tag: "{slot}-{date}"\n    optional: {projects: [LHCb]}'
    slot = slot_with(parsed, block)
    assert slot.links is not None
    assert (slot.links.folder, slot.links.latest, slot.links.weekdays) == ("/nightlies/{slot}", True, False)
    assert (slot.tag, slot.optional.projects, slot.partial) == ("{slot}-{date}", ("LHCb",), "copy")
    found = slot_with(parsed, RETENTION).retention
    assert found is not None
    assert (found.keep_last, found.keep_days, found.keep_weekdays) == (14, None, WeekdayRule(days=("Sun",), weeks=12))
    assert (found.keep_tagged, found.minimum, found.rebuild_days, found.approve_above) == (True, 3, 7, 10)


def test_what_a_build_is_judged_by_blocks_and_what_nights_differ_by_warns(parsed: Parsed) -> None:
    found, changed = (slot_with(parsed, f"quality: {block}").quality for block in ("{}", "{index: off, night: block}"))
    assert found is not None
    assert changed is not None
    block, warn = QualityMode.BLOCK, QualityMode.WARN
    assert [found.mode(suite) for suite in Suite] == [block, block, warn, warn]
    assert (found.band, found.factor, found.keep_runs) == (0.3, 3.0, 30)
    assert (changed.index, changed.night) == (QualityMode.OFF, QualityMode.BLOCK)


MISTAKES = [
    (REPOSITORY, "approval: {deadline_minutes: 0}", "approval.deadline_minutes", "1"),
    (REPOSITORY, "approval: {deadline_minutes: 721}", "approval.deadline_minutes", "720"),
    (REPOSITORY, "approval: {deadline_minutes: soon}", "approval.deadline_minutes", "integer"),
    (REPOSITORY, "approval: {deadline_minuts: 60}", "deadline_minuts", "Did you mean `deadline_minutes`?"),
    (REPOSITORY, "approval: {approvers: anna}", "approval.approvers", "tuple"),
    (REPOSITORY, "approval: {approvers: ['']}", "approval.approvers[0]", "pattern"),
    (REPOSITORY, "approval: true", "approval", "Write a block of keys below it."),
    (REPOSITORY, "prepare: {xatrs: [user.]}", "prepare.xatrs", "Did you mean `xattrs`?"),
    (REPOSITORY, "prepare: {owner: {uid: 1, gidd: 2}}", "prepare.owner.gidd", "Did you mean `gid`?"),
    (REPOSITORY, "prepare: {specials: maybe}", "prepare.specials", "'refuse', 'keep' or 'skip'"),
    (REPOSITORY, "prepare: {owner: {uid: 1, gid: 2}, uid_map: x}", "prepare", "Keep one of them"),
    (REPOSITORY, "care: {tags: {match: x}}", "care.tags", "Set `keep:`, `older_than_days:`, or both"),
    (REPOSITORY, "care: {tags: {kep: 3}}", "care.tags.kep", "Did you mean `keep`?"),
    (REPOSITORY, "care: {whitelist_days: 1000}", "care.whitelist_days", ""),
    (SLOT, "links: {weekday: true}", "main.links.weekday", "Did you mean `weekdays`?"),
    (SLOT, "optional: {platform: [x]}", "main.optional.platform", "Did you mean `platforms`?"),
    (SLOT, "links: {folder: relative}", "main.links.folder", "does not begin with /"),
    (SLOT, "optional: {projects: [Brunel]}", "slots.main", "does not take: Brunel"),
    (SLOT, "retention: {keep: 3}", "main.retention.keep", "Did you mean `keep_last`?"),
    (SLOT, "retention: {minimum: 3}", "main.retention", "Set `keep_last:`"),
    (SLOT, "retention: {keep_last: -1}", "main.retention.keep_last", "greater than or equal to 0"),
    (SLOT, "retention: {keep_last: 3, minimum: 0}", "main.retention.minimum", "greater than or equal to 1"),
    (SLOT, "retention: {keep_weekdays: {days: [Sunday], weeks: 2}}", "retention.keep_weekdays.days[0]", "'Sun'"),
    (SLOT, "retention: {keep_weekdays: {day: [Sun], weeks: 2}}", "retention.keep_weekdays.day", "mean `days`?"),
    (SLOT, 'retention: {keep_last: 3}\n    destination: "/n/{project}/{platform}/{build_id}"', "slots.main",
     "do without retention"),
    (SLOT, "quality: {indx: warn}", "main.quality.indx", "Did you mean `index`?"),
    (SLOT, "quality: {index: maybe}", "main.quality.index", "'block', 'warn' or 'off'"),
    (SLOT, "quality: {index: on}", "main.quality.index", "'block', 'warn' or 'off'"),
    (SLOT, "quality: {band: 0}", "main.quality.band", "greater than 0"),
    (SLOT, "quality: {factor: 0.5}", "main.quality.factor", "greater than or equal to 1"),
    (SLOT, "quality: {keep_runs: 0}", "main.quality.keep_runs", "greater than or equal to 1"),
    (SLOT, "quality: {index: off, published: off, night: off, growth: off}", "main.quality", "Turn one on"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "block", "key", "says"), MISTAKES, ids=[block for _, block, *_ in MISTAKES])
def test_a_mistake_is_named_with_its_key_and_the_cure(
    parsed: Parsed, place: str, block: str, key: str, says: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        parsed(added(place, block))
    assert any(problem.key.endswith(key) and says in str(problem) for problem in caught.value.problems), caught.value


@pytest.mark.parametrize(
    ("block", "key", "says"),
    [
        ("links: {}", "slots.main.links", "publisher node, which sets none"),
        (RETENTION, "slots.main.retention", "removes no builds together"),
    ],
)
def test_behind_a_publisher_node_links_and_retention_are_refused(
    parsed: Parsed, block: str, key: str, says: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        parsed(added(SLOT, block), added(REPOSITORY, "publisher: cvmfs-server"))
    assert says in {problem.key: str(problem) for problem in caught.value.problems}[key]


def test_the_page_about_the_gate_has_every_setting_with_its_default() -> None:
    page = (ROOT / "docs" / "quality.md").read_text()
    for name, field in QualitySettings.model_fields.items():
        default = field.default.value if isinstance(field.default, QualityMode) else field.default
        assert f"| `{name}` | `{default}` |" in page
