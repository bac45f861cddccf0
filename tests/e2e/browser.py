"""Airflow's pages in a real browser: a headless Chromium whose user is the lab's administrator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support import expected_conditions as the
from selenium.webdriver.support.wait import WebDriverWait

from lab.environment import ADMIN, Lab

PATIENCE_S = 60.0
REDRAWN = (ElementClickInterceptedException, StaleElementReferenceException)
"""Airflow draws parts of its pages again whenever it has news: what was found before is looked for again."""
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-US",  # decides how a date is typed
    "--window-size=1400,1700",
)


class Browser:
    """A headless Chromium that is logged in; every look at something waits for it."""

    def __init__(self, driver: webdriver.Chrome, url: str, screens: Path) -> None:
        self.driver = driver
        self.url = url
        self.screens = screens

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def leave(self) -> None:
        """Away from Airflow's pages: each asks for news all the time, and draws them, which keeps a core busy."""
        self.driver.get("about:blank")

    def see(self, css: str, timeout_s: float = PATIENCE_S) -> WebElement:
        return self._wait(timeout_s).until(the.visibility_of_element_located((By.CSS_SELECTOR, css)))

    def find(self, css: str) -> WebElement:
        return self._wait().until(the.presence_of_element_located((By.CSS_SELECTOR, css)))

    def click(self, css: str) -> None:
        self._click((By.CSS_SELECTOR, css))

    def press(self, text: str) -> None:
        """Click the button with this text."""
        self._click((By.XPATH, f"//button[contains(., '{text}')]"))

    def texts(self, css: str) -> list[str]:
        """What is written in all such elements."""
        return self._wait().until(lambda driver: [one.text for one in driver.find_elements(By.CSS_SELECTOR, css)])

    def wait(self, true: Callable[[webdriver.Chrome], object], timeout_s: float = PATIENCE_S) -> None:
        self._wait(timeout_s).until(true)

    def wait_for_text(self, css: str, text: str, timeout_s: float = PATIENCE_S) -> None:
        self._wait(timeout_s).until(the.text_to_be_present_in_element((By.CSS_SELECTOR, css), text))

    def link(self, text: str) -> str:
        """Where the link with this text leads."""
        found = self._wait().until(the.visibility_of_element_located((By.LINK_TEXT, text)))
        return str(found.get_attribute("href"))

    def errors(self) -> list[str]:
        """What went wrong in the pages since the last call, by the browser's console."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def screenshot(self, name: str) -> None:
        self.driver.save_screenshot(str(self.screens / f"{name}.png"))

    def _click(self, place: tuple[str, str]) -> None:
        def clicked(driver: webdriver.Chrome) -> bool:
            element = the.element_to_be_clickable(place)(driver)
            if element:
                element.click()
            return bool(element)

        self._wait().until(clicked)

    def _wait(self, timeout_s: float = PATIENCE_S) -> WebDriverWait[webdriver.Chrome]:
        return WebDriverWait(self.driver, timeout_s, ignored_exceptions=REDRAWN)


@contextmanager
def logged_in(lab: Lab, *, chromium: str, driver: str, profile: Path, screens: Path) -> Iterator[Browser]:
    """A browser after the login of the administrator."""
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        made = Browser(started, lab.airflow_url, screens)
        made.open("/")
        made.see("input[name=username]").send_keys(ADMIN)
        made.see("input[type=password]").send_keys(lab.secrets.admin_password)
        made.click("button[type=submit]")
        made.wait(lambda driver: "/auth/login" not in driver.current_url)
        yield made
    finally:
        started.quit()
