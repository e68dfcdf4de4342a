"""Routes that the plugin adds to a host."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from albatross_plugin.serving.profile import profile


def build_routers(host: Any) -> list[APIRouter]:
    """The plugin's routers; ``host`` is the host object of the ``rwkv_runner_routers`` hook."""
    router = APIRouter(tags=["Albatross"])

    @router.get("/albatross/profile")
    def get_profile(reset: bool = False) -> dict[str, float]:
        """Counters of the serving path since the last reset; all zero unless ALBATROSS_PROFILE=1."""
        return profile.snapshot(reset=reset)

    @router.post("/albatross/profile/reset")
    def reset_profile() -> dict[str, bool]:
        profile.reset()
        return {"success": True}

    return [router]
