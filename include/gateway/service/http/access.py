"""Who may do what: signatures, keys and their paths, in the stock gateway's order of checks and with its reasons."""

from __future__ import annotations

from include.cvmfs.format.paths import is_below
from include.gateway.auth import signature_fits, split_authorization
from include.gateway.paths import LeasePath, checked_path
from include.gateway.service.config import AcceptedKey, ServiceConfig
from include.gateway.service.replies import Refused

_NO_SECRET = "no such key"  # noqa: S105 - compared with all the same, so that an unknown key takes as long as a known one


class Access:
    """The keys of a configuration."""

    def __init__(self, config: ServiceConfig) -> None:
        self._secrets = {key.id: key.secret for key in config.all_keys()}
        self._gateway_admins = {key.id for key in config.keys if key.admin}
        self._of_repository: dict[str, dict[str, AcceptedKey]] = {
            name: {key.id: key for key in repository.keys} for name, repository in config.repositories.items()
        }

    def authenticate(self, header: str | None, message: bytes) -> str:
        """The id of the key that signed ``message``. Raises Refused, with one reason for all that can be wrong."""
        fields = split_authorization(header)
        key_id, signature = fields or ("", "")
        secret = self._secrets.get(key_id)
        fits = signature_fits(signature, _NO_SECRET if secret is None else secret, message)
        if fields is None or secret is None or not fits:
            raise Refused("invalid_hmac")
        return key_id

    def authenticate_admin(self, header: str | None, message: bytes, repository: str) -> str:
        """The id of the admin key that signed ``message``. Raises Refused with the reason."""
        fields = split_authorization(header)
        if fields is None:
            raise Refused("invalid_authorization_header")
        key_id, signature = fields
        if key_id not in self._secrets:
            raise Refused("invalid_key")
        if not self.is_admin(key_id, repository):
            raise Refused("no_admin_key")
        if not signature_fits(signature, self._secrets[key_id], message):
            raise Refused("invalid_hmac")
        return key_id

    def secret(self, key_id: str) -> str:
        """The secret of a key that ``authenticate`` gave back."""
        return self._secrets[key_id]

    def is_admin(self, key_id: str, repository: str) -> bool:
        """Whether the key may end the leases of others in ``repository``."""
        key = self._of_repository.get(repository, {}).get(key_id)
        return key_id in self._gateway_admins or (key is not None and key.admin)

    def check_lease(self, key_id: str, lease: LeasePath) -> None:
        """Raises Refused unless the key may lease the path."""
        key = self._of_repository[lease.repository].get(key_id)
        if key is None:
            raise Refused("authorization error: invalid_key")
        if not is_below(lease.path, checked_path(key.path)):
            raise Refused("authorization error: invalid_path")
