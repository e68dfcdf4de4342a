"""What both forms of this server do when a model is switched or a setting is saved."""

import global_var
from fastapi import APIRouter, HTTPException, Response
from pydantic import BaseModel
from utils.rwkv import *

router = APIRouter()


class SwitchModelBody(BaseModel):
    model: str
    strategy: str
    tokenizer: str | None = None
    deploy: bool = False


def switch(body, make):
    """Unload, then let ``make`` load. The answer of the route."""
    if global_var.get(global_var.Deploy_Mode):
        raise HTTPException(403)
    if global_var.get(global_var.Model_Status) is global_var.ModelStatus.Loading:
        return Response(status_code=304)
    global_var.set(global_var.Model_Status, global_var.ModelStatus.Offline)
    global_var.set(global_var.Model, None)
    if body.model == "":
        return "success"
    global_var.set(global_var.Model_Status, global_var.ModelStatus.Loading)
    try:
        global_var.set(global_var.Model, make(body))
    except Exception as error:
        print(error)
        global_var.set(global_var.Model_Status, global_var.ModelStatus.Offline)
        raise HTTPException(500, f"failed to load: {error}") from error
    if body.deploy:
        global_var.set(global_var.Deploy_Mode, True)
    model, saved = global_var.get(global_var.Model), global_var.get(global_var.Model_Config)
    config = get_rwkv_config(model) if isinstance(model, AbstractRWKV) else ModelConfigBody()
    global_var.set(global_var.Model_Config, merged(config, saved))
    global_var.set(global_var.Model_Status, global_var.ModelStatus.Working)
    return "success"


def merged(config, other):
    if other is None:
        return config
    return config.model_copy(update={name: value for name, value in dict(other).items() if value is not None})


@router.post("/update-config")
def update_config(body: ModelConfigBody):
    config = merged(global_var.get(global_var.Model_Config) or ModelConfigBody(), body)
    global_var.set(global_var.Model_Config, config)
    model = global_var.get(global_var.Model)
    refusal = load_rwkv_state(model, config.state) if isinstance(model, AbstractRWKV) else None
    if refusal is not None:
        raise refusal
    return "success"


@router.get("/status")
def status():
    return {"status": global_var.get(global_var.Model_Status), "pid": 1}
