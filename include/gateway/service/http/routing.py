"""What the stock gateway's router does where no route fits: the methods of a path, and where a trailing slash leads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.routing import BaseRoute, Match, Route


def allowed_methods(routes: Iterable[BaseRoute], scope: Any) -> list[str]:
    """The methods that the path of ``scope`` knows, sorted, with OPTIONS; none if it is not a path of ours."""
    methods = {
        method
        for route in routes
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted(methods | {"OPTIONS"}) if methods else []


def redirect_target(routes: Iterable[BaseRoute], scope: Any) -> str | None:
    """The same path with its last slash taken off, if that is a route for this method."""
    path: str = scope["path"]
    if not path.endswith("/") or len(path) == 1:
        return None
    bare = {**scope, "path": path.rstrip("/"), "raw_path": None}
    if (
        path.rstrip("/").count("/") > 3
        or not bare["path"].isascii()
        or any(character in bare["path"] for character in '"<>\\\r\n')
    ):
        return None
    fits = any(route.matches(bare)[0] is Match.FULL for route in routes if isinstance(route, Route))
    return bare["path"] if fits else None
