"""What a slot may say of its links, and how a mistake in it is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.settings.errors import InvalidSettings
from include.settings.model import SiteSettings

PROJECTS = "projects: [Gaudi, LHCb]\n"


def test_links_tag_and_what_is_optional_are_read(parsed: Callable[..., SiteSettings]) -> None:
    block = 'projects: [Gaudi, LHCb]\n    links: {weekdays: false}\n    tag: "{slot}-{date}"\n'
    slot = parsed((PROJECTS, block + "    optional: {projects: [LHCb]}\n")).slot("main")
    assert slot.links is not None
    assert (slot.links.folder, slot.links.latest, slot.links.weekdays) == ("/nightlies/{slot}", True, False)
    assert (slot.tag, slot.optional.projects, slot.partial) == ("{slot}-{date}", ("LHCb",), "copy")


@pytest.mark.parametrize(
    ("block", "key", "says"),
    [
        ("links: {weekday: true}", "slots.main.links.weekday", "Did you mean `weekdays`?"),
        ("optional: {platform: [x]}", "slots.main.optional.platform", "Did you mean `platforms`?"),
        ("links: {folder: relative}", "slots.main.links.folder", "does not begin with /"),
        ("optional: {projects: [Brunel]}", "slots.main", "does not take: Brunel"),
    ],
)
def test_a_mistake_is_named_with_its_key_and_the_cure(
    parsed: Callable[..., SiteSettings], block: str, key: str, says: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        parsed((PROJECTS, f"{PROJECTS}    {block}\n"))
    (problem,) = caught.value.problems
    assert (problem.key, says in str(problem)) == (key, True), problem


def test_links_in_a_repository_with_a_publisher_node_are_refused(parsed: Callable[..., SiteSettings]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        parsed(
            (PROJECTS, f"{PROJECTS}    links: {{}}\n"), ("gateway: gw\n", "gateway: gw\n    publisher: cvmfs-server\n")
        )
    found = {problem.key: str(problem) for problem in caught.value.problems}
    assert "publisher node, which sets none" in found["slots.main.links"]
