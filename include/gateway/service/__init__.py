"""The gateway service: leases and commits for publishers, state in SQLite, replies as the stock gateway's."""

from include.gateway.service.config import ConfigError, GatewayKey, Recipe, RepositoryConfig, ServiceConfig

__all__ = ["ConfigError", "GatewayKey", "Recipe", "RepositoryConfig", "ServiceConfig"]
