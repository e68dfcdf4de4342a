"""The list of models, and the root."""

import global_var
from fastapi import APIRouter

router = APIRouter()


@router.get("/v1/models")
def models():
    model = global_var.get(global_var.Model)
    return {"object": "list", "data": [{"id": model.name if model else "rwkv", "object": "model"}]}
