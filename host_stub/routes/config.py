"""Switching models, settings, and the host's status."""

from __future__ import annotations

import os
from typing import Any

import anyio
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from host_stub import schemas
from host_stub.bodies import SwitchModelBody
from host_stub.config import SettingsBody
from host_stub.json_body import JsonRoute
from host_stub.openapi import answered
from host_stub.routes.deps import host_state

router = APIRouter(tags=["Configs"], route_class=JsonRoute)


@router.post("/switch-model", responses={**answered(schemas.SUCCESS), 304: {"description": "A load is running already."}})
async def switch_model(body: SwitchModelBody, request: Request) -> Response:
    """Load a model: a .gguf file in llama.cpp, anything else by the strategy. ``model`` "" unloads. 304: a load is running."""
    state = host_state(request)

    def switch() -> bool:
        return state.switch(body.model, body.strategy, body.tokenizer, cuda=body.customCuda, deploy=body.deploy)

    done = await state.loads.run(switch)
    return JSONResponse("success") if done else Response(status_code=304)


@router.post("/update-config", responses=answered(schemas.SUCCESS))
async def update_config(body: SettingsBody, request: Request) -> str:
    """Save the settings that are set; they count from the next request on."""
    await anyio.to_thread.run_sync(host_state(request).update_config, body)
    return "success"


@router.get("/status", responses=answered(schemas.STATUS))
async def status(request: Request) -> dict[str, Any]:
    """Phase of the model (0 offline, 2 loading, 3 working), what can be chosen, and a part for each plugin."""
    state = host_state(request)
    model = state.model
    return {
        **state.plugins.status(model),
        "strategies": state.plugins.strategies(),
        "device_modes": state.plugins.device_modes(),
        "status": int(state.status),
        "pid": os.getpid(),
        "device_name": state.device_name,
        "model": getattr(model, "name", None),
        "deploy": state.deploy,
    }
