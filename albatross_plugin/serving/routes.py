"""Routes that the plugin adds to a host."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException

from albatross_plugin.serving.profile import profile


def build_routers(host: Any) -> list[APIRouter]:
    """The plugin's routers; ``host`` is the host object of the ``rwkv_runner_routers`` hook."""
    router = APIRouter(tags=["Albatross"])

    def allow_reset() -> None:
        if host.deployed():
            raise HTTPException(403, "the counters are not reset in deploy mode")

    @router.get("/albatross/profile")
    def get_profile(reset: bool = False) -> dict[str, float]:
        """Counters of the serving path since the last reset; all zero unless ALBATROSS_PROFILE=1."""
        if reset:
            allow_reset()
        return profile.snapshot(reset=reset)

    @router.post("/albatross/profile/reset")
    def reset_profile() -> dict[str, bool]:
        allow_reset()
        profile.reset()
        return {"success": True}

    return [router]
