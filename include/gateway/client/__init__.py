"""The client of a gateway, stock or our own."""

from include.gateway.client.client import GatewayClient
from include.gateway.client.values import Lease, LeaseInfo, RepositoryInfo

__all__ = ["GatewayClient", "Lease", "LeaseInfo", "RepositoryInfo"]
