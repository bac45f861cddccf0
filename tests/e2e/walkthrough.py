"""README, tour and page to production as a newcomer follows them. Run as a program, it also takes the screenshots."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from lab.environment import Lab, LabFolders
from lab.ports import Ports
from lab.supervise import end_marked
from tests.e2e.browser import Browser, logged_in
from tests.fakes.builds import tree
from tests.fakes.servers import find

ROOT = Path(__file__).resolve().parents[2]
README, TOUR, PRODUCTION = ROOT / "README.md", ROOT / "docs" / "tour.md", ROOT / "docs" / "production.md"
IMAGES = ROOT / "docs" / "images"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
FQRN = "nightlies.example.org"
WIDTH, HEIGHT, LARGEST_HEIGHT = 1100, 600, 1000
# a running task of Airflow's page turns for ever
STILL = "document.getAnimations().every(a => a.effect.getComputedTiming().endTime === Infinity)"
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def commands(page: Path) -> list[str]:
    """The commands of a page, in their order, but for the tests: they are run by themselves."""
    blocks = "".join(text for language, text in BLOCK.findall(page.read_text()) if language == "console")
    return [line for line in re.findall(r"(?m)^\$ (.*)$", blocks) if not line.startswith("make test")]


def files(page: Path) -> dict[str, str]:
    """The files that a page asks its reader to save: each block names its own in the first line."""
    texts = [text for language, text in BLOCK.findall(page.read_text()) if language == "yaml"]
    return {text.splitlines()[0].removeprefix("# "): text for text in texts}


class Newcomer:
    """A person with a new home and a copy of the checkout, who has nothing but a tarball.

    The copy shares the Python environment of this checkout, and listens on other ports: all that its shell is given.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "nightshift"
        _copy_checkout(self.folder)
        (folder / "home").mkdir()
        ports = Ports.unused().to_environment()
        self.environment = {"HOME": str(folder / "home"), "PATH": SYSTEM, "PYTHONPATH": str(self.folder), **ports}
        (self.folder / "tool-1.0.tar.gz").write_bytes(tree({"bin/tool": b"#!/bin/sh\n"}))

    def follow(self, page: Path, lines: Sequence[str]) -> str:
        """Save the files of a page and type these commands into one shell; what they printed."""
        for name, text in files(page).items():
            (self.folder / name).write_text(text)
        script = "\n".join(["set -eu", *(_offline(line) for line in lines)])
        done = subprocess.run(
            ["/bin/bash", "-c", script], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    @property
    def places(self) -> LabFolders:
        return LabFolders((self.folder / "var").resolve())

    def lab(self) -> Lab:
        """The lab that the commands started."""
        return Lab.from_environment({**self.environment, "NIGHTSHIFT_VAR": str(self.places.var)})

    def leave(self) -> None:
        """End what a failed command has left."""
        end_marked(self.places)


def _copy_checkout(folder: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.prefix))


def _offline(line: str) -> str:
    """A command that does not install the environment again, which belongs to the checkout."""
    return re.sub(r"^make ", "make --old-file=.venv/.installed ", line)


def take_pictures(newcomer: Newcomer, folder: Path) -> None:
    """The screenshots of the tour, while its services run."""
    lab = newcomer.lab()
    night = json.loads((newcomer.places.var / "last-night.json").read_text())
    dag_id, _, run_id = night["run"].partition("/")
    chromium, driver = find("chromium"), find("chromedriver")
    assert chromium is not None
    assert driver is not None
    with logged_in(lab, chromium=chromium, driver=driver, profile=folder / "profile", screens=folder) as browser:
        browser.driver.execute_script("window.localStorage.setItem('theme', 'light')")
        for name, frame, path, text in (
            ("nights", "Nights", "nightshift-nights", "Nights"),
            ("night", "Nights", f"nightshift-nights/nightshift/nights?slot=main&date={night['date']}", "Night of main"),
            ("repository", "Repositories", f"nightshift-repositories/nightshift/repositories?repository={FQRN}", FQRN),
            ("transfers", "Transfers", "nightshift-transfers", "Transfers"),
        ):
            _resize(browser, HEIGHT)
            _open(browser, frame, path, text)
            if "no answer yet" in browser.driver.find_element("tag name", "body").text:
                time.sleep(10)
                _open(browser, frame, path, text)
            whole = browser.driver.execute_script("return document.documentElement.scrollHeight")
            browser.driver.switch_to.default_content()
            _resize(browser, min(whole, LARGEST_HEIGHT))
            _shoot(browser, name)
        _resize(browser, HEIGHT)
        browser.open(f"/dags/{dag_id}/runs/{quote(run_id)}")
        browser.wait_for_text("body", "announce")
        _shoot(browser, "run")


def _open(browser: Browser, frame: str, path: str, text: str) -> None:
    """Open a page of ours and go into its frame. What it asks of a busy service is on the second one."""
    browser.open(f"/plugin/{path}")
    browser.driver.switch_to.frame(browser.find(f"iframe[title='{frame}']"))
    browser.wait_for_text("h1", text)


def _resize(browser: Browser, height: int) -> None:
    size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def _shoot(browser: Browser, name: str) -> None:
    browser.wait(lambda driver: driver.execute_script(f"return {STILL}"))
    picture = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    (IMAGES / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nightshift-tour-") as place:
        newcomer = Newcomer(Path(place))
        try:
            *tour, last = commands(TOUR)
            print(newcomer.follow(TOUR, tour))
            take_pictures(newcomer, Path(place))
            print(newcomer.follow(TOUR, [last]))
        finally:
            newcomer.leave()
    print(f"pictures in {IMAGES} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    os.environ.pop("NIGHTSHIFT_HOME", None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill stops the services, too
    main()
