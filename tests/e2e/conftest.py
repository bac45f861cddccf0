"""One deployment for all tests of this folder, which come last: it stays up until the session ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.browser import Browser, logged_in
from tests.e2e.deployment import Deployment

HERE = Path(__file__).parent
TIMEOUT_S = 600  # the first test of each file pays for what all of them look at


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # a thousand other tests need not share the machine with it
    items.sort(key=lambda item: HERE in item.path.parents)
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def deployment(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The lab's services and Airflow, all of them, with proxies before store and gateway."""
    need("weed")
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    # a polite kill ends the session as Ctrl-C does, and not without stopping what was started
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def browser(
    need: Callable[[str], str], deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """One browser with one login."""
    with logged_in(
        deployment.lab,
        chromium=need("chromium"),
        driver=need("chromedriver"),
        profile=tmp_path_factory.mktemp("profile"),
        screens=tmp_path_factory.mktemp("screens"),
    ) as made:
        yield made


@pytest.fixture(autouse=True)
def _leave_the_page(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "browser" in request.fixturenames:
        request.getfixturevalue("browser").leave()
