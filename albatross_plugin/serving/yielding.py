"""Routes that leave their path to the host where the host has one of the same"""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import Scope

_LOOKING = "albatross_plugin.looking"


class YieldingRoute(APIRoute):
    """A route that lets a host's own of the same path go first, though plugins' routes stand before the host's."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if _LOOKING in scope:
            return Match.NONE, {}
        match, child = super().matches(scope)
        if match is Match.FULL and self._host_answers(scope):
            return Match.NONE, {}
        return match, child

    def _host_answers(self, scope: Scope) -> bool:
        # Without what FastAPI keeps in the scope, so that looking leaves no traces there.
        looking = {**{name: value for name, value in scope.items() if name != "fastapi"}, _LOOKING: True}
        return any(self._is_rival(route, looking) for route in getattr(scope.get("app"), "routes", ()))

    def _is_rival(self, route: BaseRoute, scope: Scope) -> bool:
        if isinstance(route, Mount):
            # A mounted application answers below its path, to which the host redirects. One for all paths means no page of ours.
            return route.path == self.path
        match, child = route.matches(scope)
        # A route that takes any path is a front end, which has no metrics.
        return match is Match.FULL and not child.get("path_params")
