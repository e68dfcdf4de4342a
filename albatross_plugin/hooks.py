"""Hook implementations of the entry point ``rwkv_runner``. Heavy imports stay inside the functions.

Discovery must stay free of torch, threads and compilers, so this module imports pluggy and the strategy parser alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pluggy

from albatross_plugin.strategy import STRATEGY_NAMES, AlbatrossStrategy, is_albatross_strategy, parse_albatross_strategy

hookimpl = pluggy.HookimplMarker("rwkv_runner")


@hookimpl
def rwkv_runner_strategies() -> list[dict[str, Any]]:
    name, *aliases = STRATEGY_NAMES
    return [
        {
            "name": name,
            "aliases": aliases,
            "options": {"workers": 1, "batch": 32, "device": "cuda"},
            "suffixes": [".pth"],
            "description": "RWKV-7 with continuous batching, for example: albatross workers=1 batch=32",
        }
    ]


@hookimpl
def rwkv_runner_device_modes() -> list[dict[str, Any]]:
    return [
        {
            "id": "CUDA High Performance",
            "labels": {
                "en": "CUDA High Performance (RWKV-7 .pth only)",
                "zh": "CUDA 高性能 (仅限 RWKV-7 .pth)",
                "ja": "CUDA 高性能 (RWKV-7 .pth のみ)",
            },
            "strategy": "albatross workers=1 batch=32",
            "fields": [
                {"key": "workers", "type": "integer", "default": 1, "minimum": 1, "maximum": 8},
                {"key": "batch", "type": "integer", "default": 32, "minimum": 1, "maximum": 4096},
            ],
        }
    ]


@hookimpl
def rwkv_runner_parse_strategy(strategy: str) -> AlbatrossStrategy | None:
    return parse_albatross_strategy(strategy) if is_albatross_strategy(strategy) else None


@hookimpl
def rwkv_runner_model_types() -> list[type]:
    from albatross_plugin.adapter import AlbatrossRWKV

    return [AlbatrossRWKV]


@hookimpl
def rwkv_runner_create_model(strategy: object, model_path: str, tokenizer_path: str | None) -> Any | None:
    if not isinstance(strategy, AlbatrossStrategy):
        return None
    from albatross_plugin.adapter import AlbatrossRWKV

    return AlbatrossRWKV(model_path, strategy.worker_num, strategy.batch_size, tokenizer_path, device=strategy.device)


@hookimpl
def rwkv_runner_eval(
    model: object,
    request: Any,
    body: Any,
    prompt: Any,
    stream: bool,
    stop: Any,
    stop_token_ids: Any,
    chat_mode: bool,
    defaults: Mapping[str, Any],
) -> Any | None:
    from albatross_plugin.adapter import AlbatrossRWKV

    if not isinstance(model, AlbatrossRWKV):
        return None
    from albatross_plugin.serving import eval_albatross

    return eval_albatross(model, request, body, prompt, stream, stop, stop_token_ids, chat_mode, defaults)


@hookimpl
def rwkv_runner_status(model: object) -> dict[str, Any] | None:
    from albatross_plugin.adapter import AlbatrossRWKV
    from albatross_plugin.engine_thread import starting_status

    if isinstance(model, AlbatrossRWKV):
        return {"albatross": model.status()}
    status = starting_status()
    return None if status is None else {"albatross": status}


@hookimpl
def rwkv_runner_shutdown_model(model: object) -> None:
    from albatross_plugin.adapter import AlbatrossRWKV

    if isinstance(model, AlbatrossRWKV):
        model.shutdown()


@hookimpl
def rwkv_runner_routers(host: object) -> list[Any]:
    from albatross_plugin.serving.routes import build_routers

    return build_routers(host)
