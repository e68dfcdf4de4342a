"""Loading a model: a strategy that a plugin knows goes to the plugin, every other one to the Runner's own function."""

from __future__ import annotations

import functools
import inspect
import logging
from types import ModuleType
from typing import Any

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import Missing, member

logger = logging.getLogger(__name__)


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``utils.rwkv``, before ``routes.config`` copies the name ``RWKV`` from there."""
    original = member(module, "RWKV")
    signature = inspect.signature(original)
    if not {"model", "strategy", "tokenizer"} <= signature.parameters.keys():
        raise Missing(f"utils.rwkv.RWKV takes {', '.join(signature.parameters)}")

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        # Such a file is llama.cpp's affair whatever the strategy says.
        parsed = None if str(call["model"]).lower().endswith(".gguf") else host.plugins.parse(call["strategy"])
        if parsed is not None:
            model = host.plugins.create(parsed, host.resolve(call["model"]), call.get("tokenizer"))
            if model is not None:
                _apply_saved_state(module, host, model)
                return model
        return original(*args, **kwargs)

    vars(module)["RWKV"] = load


def _apply_saved_state(module: ModuleType, host: RunnerHost, model: Any) -> None:
    """A state file that was chosen before the load. The Runner applies it on its locked path only, at the first request."""
    state, apply = host.saved_state(), getattr(module, "load_rwkv_state", None)
    if not state or apply is None:
        return
    try:
        refusal = apply(model, state, True)
    except Exception as error:
        refusal = error
    if refusal is not None:
        # It may belong to another model, and must not keep this one from loading.
        logger.warning("the saved state %s is not used: %s", state, getattr(refusal, "detail", refusal))
