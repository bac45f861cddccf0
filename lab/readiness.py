"""When a service counts as ready: it answers as itself. Each question returns None, or why it is not ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from include.errors import NightshiftError
from include.gateway.protocol import API

if TYPE_CHECKING:
    import requests

Question = Callable[[], str | None]

AIRFLOW_COMPONENTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
TIMEOUT_S = 3.0
POLL_S = 0.15


class NotReadyReason(str):
    """Why a service is not ready. `services`: those of a group that it is about; empty: not known which."""

    services: tuple[str, ...]

    def __new__(cls, text: str, *services: str) -> Self:
        """The words, and what they are about."""
        wrong = super().__new__(cls, text)
        wrong.services = services
        return wrong


class ServiceNotReady(NightshiftError):
    """A service did not become ready; the message has the reason. `services`: as in `NotReadyReason`."""

    code = "lab-service-not-ready"

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.services = why.services if isinstance(why, NotReadyReason) else ()


def wait(question: Question, *, alive: Question, timeout_s: float) -> float:
    """Ask until the answer becomes None; return the seconds that took.

    Raises:
        ServiceNotReady: the process is gone for good (`alive` returns why), or the time is over.
    """
    began = time.monotonic()
    while True:
        why = question()
        now = time.monotonic()
        if why is None:
            return now - began
        if dead := alive():
            raise ServiceNotReady(dead, dead)
        if now - began > timeout_s:
            raise ServiceNotReady(f"not ready after {timeout_s:.0f} s: {why}", why)
        # There is no event for the answer of another program.
        time.sleep(POLL_S)


def weed_answers(url: str, access_key: str, secret_key: str) -> str | None:
    """SeaweedFS lists buckets for these keys."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("GET", f"{url}/", headers={"x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    SigV4Auth(Credentials(access_key, secret_key), "s3", "us-east-1").add_auth(request)
    answer = _get(f"{url}/", headers=dict(request.headers.items()))
    if isinstance(answer, str):
        return answer
    server = answer.headers.get("Server", "")
    if "SeaweedFS" not in server:
        return f"another server answers: {server or 'nameless'}"
    if answer.status_code == 403:
        return "it refuses the keys of secrets.env: its state was made with others"
    return (
        None if answer.status_code == 200 and "ListAllMyBucketsResult" in answer.text else f"HTTP {answer.status_code}"
    )


def gateway_answers(url: str) -> str | None:
    """The gateway service welcomes, and is healthy."""
    for path, key, value in ((API, "welcome", None), ("/health", "service", "nightshift-gateway")):
        answer = _get(url + path)
        if isinstance(answer, str):
            return answer
        try:
            found = answer.json()[key]
        except (ValueError, TypeError, KeyError):
            return f"another server answers: {answer.text[:40]!r}"
        if not answer.ok or (value is not None and found != value):
            return f"not well: HTTP {answer.status_code} {answer.text[:80]}"
    return None


def fts_answers(url: str) -> str | None:
    """Return why the embedded FTS does not answer; None if it does."""
    answer = _get(f"{url}/")
    if isinstance(answer, str):
        return answer
    try:
        found = answer.json().get("service")
    except (ValueError, AttributeError):
        found = None
    return None if answer.ok and found == "nightshift-fts" else f"another server answers: {answer.text[:40]!r}"


def execution_answers(url: str) -> str | None:
    """Airflow's API server for tasks."""
    answer = _get(f"{url}/execution/health")
    if isinstance(answer, str):
        return answer
    return None if answer.ok and "healthy" in answer.text else f"another server answers: {answer.text[:80]!r}"


def airflow_answers(url: str, version: str) -> str | None:
    """Airflow of this version, with all four components healthy."""
    answer = _get(f"{url}/api/v2/monitor/health")
    if isinstance(answer, str):
        return answer
    try:
        health = answer.json()
        ill = [name for name in AIRFLOW_COMPONENTS if (health.get(name) or {}).get("status") != "healthy"]
    except (ValueError, AttributeError):
        return f"another server answers: {answer.text[:80]!r}"
    if ill:
        return NotReadyReason(f"not healthy yet: {', '.join(ill)}", *(name.replace("_", "-") for name in ill))
    seen = _get(f"{url}/api/v2/version")
    if isinstance(seen, str):
        return seen
    found = seen.json().get("version")
    return None if found == version else f"Airflow {found} answers, expected {version}"


def _get(url: str, headers: dict[str, str] | None = None) -> requests.Response | str:
    import requests

    session = requests.Session()
    session.trust_env = False  # loopback, whatever proxy the environment names
    try:
        with session:
            return session.get(url, headers=headers, timeout=TIMEOUT_S)
    except requests.ConnectionError:
        return "no answer"
    except requests.RequestException as error:
        return type(error).__name__
