"""The few calls of Airflow's REST API (version 2) that commands, checks and the lab need."""

import time
from datetime import datetime
from typing import Any
from urllib.parse import quote

import requests

from include.errors import ErrorRow, NightshiftError
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets, base_url

TIMEOUT_S = 30.0
PAGE = 100  # Airflow's largest


class AirflowError(NightshiftError):
    """Airflow refuses a call, or does not do in time what it was asked for."""

    code = "airflow-error"


AIRFLOW_SILENT = ErrorRow(AirflowError, "airflow-silent", retryable=True)
"""Airflow does not answer a request."""
INSTALL_REFUSED = ErrorRow(AirflowError, "install-refused")
"""A build that cannot be installed as asked for: its date, or a paused DAG."""


class AirflowApi:
    """A session of one user; the token is fetched at the first call and again when it ran out."""

    def __init__(self, url: str, user: str, password: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.url, self._timeout_s = url, timeout_s
        self._user, self._password = user, password
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy between programs of one machine

    def put_pool(self, pool: dict[str, str | int | bool]) -> None:
        """Creates a pool, or gives it these slots."""
        if self._call("POST", "/api/v2/pools", json=pool, accept=(409,)).status_code == 409:
            self._call("PATCH", f"/api/v2/pools/{pool['name']}", json=pool)

    def pool_slots(self) -> dict[str, int]:
        """Every pool, and its slots."""
        return {pool["name"]: pool["slots"] for pool in self._listed("/api/v2/pools", "pools", order_by="id")}

    def has_dag(self, dag_id: str) -> bool:
        return self._call("GET", f"/api/v2/dags/{dag_id}", accept=(404,)).status_code == 200

    def has_connection(self, name: str) -> bool:
        """Tell whether Airflow has a connection of this id; the user needs the right to read connections."""
        path = f"/api/v2/connections/{quote(name, safe='')}"
        return self._call("GET", path, accept=(404,)).status_code == 200

    def wait_for_dag(self, dag_id: str, *, timeout_s: float, poll_s: float = 0.5) -> None:
        """Waits until the DAG processor has read a DAG.

        Raises:
            AirflowError: it is not there in time; the message holds the import errors.
        """
        deadline = time.monotonic() + timeout_s
        while not self.has_dag(dag_id):
            if time.monotonic() > deadline:
                errors = [f"{error['filename']}: {error['stack_trace'][-300:]}" for error in self.import_errors()]
                raise AirflowError(
                    f"DAG {dag_id} did not appear within {timeout_s:.0f} s; import errors: {errors or 'none'}"
                )
            time.sleep(poll_s)

    def import_errors(self) -> list[dict[str, Any]]:
        return self._json("GET", "/api/v2/importErrors")["import_errors"]  # type: ignore[no-any-return]

    def pending_schedule(self, dag_id: str, *, now: datetime) -> str | None:
        """The logical date of the run that unpausing a paused DAG would start at once, or None."""
        dag = self._json("GET", f"/api/v2/dags/{dag_id}")
        logical_date: str | None = dag["next_dagrun_logical_date"] if dag["is_paused"] else None
        return logical_date if logical_date and datetime.fromisoformat(logical_date) <= now else None

    def is_paused(self, dag_id: str) -> bool:
        return bool(self._json("GET", f"/api/v2/dags/{dag_id}")["is_paused"])

    def paused(self) -> dict[str, bool]:
        """Every DAG that Airflow has read, and whether it is paused."""
        listed = self._listed("/api/v2/dags", "dags", exclude_stale=True, order_by="dag_id")
        return {dag["dag_id"]: dag["is_paused"] for dag in listed}

    def unpause(self, dag_id: str) -> None:
        self.pause(dag_id, paused=False)

    def pause(self, dag_id: str, *, paused: bool = True) -> None:
        self._call("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": paused})

    def runs(self, dag_id: str, *, prefix: str) -> list[dict[str, Any]]:
        """The newest runs whose id begins with a prefix."""
        found = self._json("GET", f"/api/v2/dags/{dag_id}/dagRuns", params={"order_by": "-id", "limit": PAGE})[
            "dag_runs"
        ]
        return [run for run in found if run["dag_run_id"].startswith(prefix)]

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any], *, logical_date: str | None = None) -> None:
        self._call(
            "POST",
            f"/api/v2/dags/{dag_id}/dagRuns",
            json={"dag_run_id": run_id, "logical_date": logical_date, "conf": conf},
        )

    def old_runs(self, dag_id: str, *, state: str, before: datetime) -> list[str]:
        """The ids of the oldest scheduled runs of a state that ended before a time, one page of them."""
        ended = {"end_date_lte": before.isoformat(), "order_by": "id", "limit": PAGE}
        wanted = {"state": state, "run_type": "scheduled", **ended}
        return [str(run["dag_run_id"]) for run in self._json("GET", _runs(dag_id), params=wanted)["dag_runs"]]

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """Deletes a run with its tasks; one that is gone already is no error."""
        self._call("DELETE", f"{_runs(dag_id)}/{quote(run_id, safe='')}", accept=(404,))

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self._json("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """All task instances of a run, mapped ones one by one."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        return self._listed(path, "task_instances", order_by="id")

    def ask(self, method: str, path: str, **arguments: Any) -> Any:
        """Any other call: the JSON that Airflow answers to a path below `/api/v2`."""
        return self._call(method, f"/api/v2{path}", **arguments).json()

    def _listed(self, path: str, name: str, **params: Any) -> list[dict[str, Any]]:
        """All entries of a list, page by page. `name`: its key in the answer."""
        entries: list[dict[str, Any]] = []
        while True:
            page = self._json("GET", path, params={**params, "limit": PAGE, "offset": len(entries)})
            entries += page[name]
            if len(entries) >= page["total_entries"] or not page[name]:
                return entries

    def _json(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        return self._call(method, path, **arguments).json()  # type: ignore[no-any-return]

    def _call(self, method: str, path: str, *, accept: tuple[int, ...] = (), **arguments: Any) -> requests.Response:
        if "Authorization" not in self._session.headers:
            self._login()
        answer = self._send(method, path, **arguments)
        if answer.status_code == 401:
            self._login()
            answer = self._send(method, path, **arguments)
        if not answer.ok and answer.status_code not in accept:
            raise AirflowError(f"Airflow refused {method} {path}: HTTP {answer.status_code} {answer.text[:300]}")
        return answer

    def _login(self) -> None:
        answer = self._send(
            "POST", "/auth/token", allow_redirects=False, json={"username": self._user, "password": self._password}
        )
        if answer.status_code != 201:
            raise AirflowError(
                f"Airflow at {self.url} refuses the login of {self._user}: HTTP {answer.status_code}; is it this lab's?"
            )
        self._session.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def _send(self, method: str, path: str, **arguments: Any) -> requests.Response:
        try:
            return self._session.request(method, self.url + path, timeout=self._timeout_s, **arguments)
        except requests.RequestException as error:
            raise AIRFLOW_SILENT(f"Airflow at {self.url} does not answer {method} {path}: {error}") from error


def site_api(
    settings: SiteSettings, secrets: Secrets, connection: str = "", *, timeout_s: float = TIMEOUT_S
) -> AirflowApi:
    """Airflow as the user of a connection; by default of the site's `airflow_connection`.

    Raises:
        SettingsError: No connection is named, or it is not usable.
    """
    name = connection or settings.airflow_connection
    if not name:
        raise SettingsError("no connection names a user of Airflow's API: set airflow_connection, or give --connection")
    user = secrets.get(name)
    return AirflowApi(base_url(user, port=8080), user.login or "", user.password or "", timeout_s=timeout_s)


def _runs(dag_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns"
