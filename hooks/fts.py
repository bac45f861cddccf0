"""The connection type `fts`: an HTTP session with the REST interface of an FTS3 server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from hooks.secrets import AirflowSecrets, in_form
from include.settings.urls import base_url

if TYPE_CHECKING:
    import requests

PORT = 8446
TIMEOUT_S = 30


class FtsHook(BaseHook):
    """Address and credentials of one FTS server: a bearer token (password), or a certificate or proxy on the worker."""

    conn_name_attr = "fts_conn_id"
    default_conn_name = "fts_default"
    conn_type = "fts"
    hook_name = "FTS (file transfer service)"

    def __init__(self, fts_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.fts_conn_id = fts_conn_id

    @property
    def url(self) -> str:
        """The server's address, without a trailing slash. Raises MissingConnection or BadConnection."""
        return base_url(AirflowSecrets().get(self.fts_conn_id), port=PORT, scheme="https")

    def get_conn(self) -> requests.Session:
        """A session that authenticates itself; sends nothing yet."""
        import requests

        connection = AirflowSecrets().get(self.fts_conn_id)
        session = requests.Session()
        session.headers["Accept"] = "application/json"
        if connection.password:
            session.headers["Authorization"] = f"Bearer {connection.password}"
        elif certificate := connection.extra.get("certificate"):
            key = connection.extra.get("key")
            session.cert = (str(certificate), str(key)) if key else str(certificate)
        if authorities := connection.extra.get("authorities"):
            session.verify = str(authorities)
        return session

    def test_connection(self) -> tuple[bool, str]:
        """Who the server takes us for (`GET /whoami`); for the form's button, in the lab."""
        import requests

        from include.settings.errors import SettingsError

        try:
            answer = self.get_conn().get(f"{self.url}/whoami", timeout=TIMEOUT_S)
            answer.raise_for_status()
            who = answer.json()
            return True, f"answers as FTS; we are {who['user_dn']} by {who['method']}"
        except SettingsError as error:
            return False, in_form(error)
        except requests.JSONDecodeError:
            return False, f"{self.url} answers, but not as FTS: check host and port"
        except (requests.RequestException, OSError) as error:
            return False, f"{self.url}: {_in_words(error)}"
        except (ValueError, KeyError, TypeError):
            return False, f"{self.url} answers, but not as FTS: check host and port"


def _in_words(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
        if status in (401, 403):
            return f"refuses us (HTTP {status}); check token, or certificate and key"
        return f"answers with HTTP {status}; check host and port"
    if isinstance(error, requests.exceptions.SSLError):
        return "TLS failed; name the server's CA certificates as `authorities` in the extra, and check our certificate"
    if isinstance(error, requests.Timeout):
        return f"no answer within {TIMEOUT_S} s; check host and port"
    if isinstance(error, requests.ConnectionError):
        return "cannot connect; check host and port, and that the server runs"
    return f"{error}"  # such as a certificate file that is not on this machine
