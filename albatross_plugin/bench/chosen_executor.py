"""A strategy for tests and measurements: the plugin's own model object over an executor that the strategy names.

The strategy is ``executor`` and a JSON object: ``{"executor": "module:Class", "batch": 4, "options": {}, "config": {}}``. ``options`` go
to the executor, ``config`` holds fields of EngineConfig. No host offers it unless a program registers this plugin there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pluggy

hookimpl = pluggy.HookimplMarker("rwkv_runner")
WORD = "executor "


@dataclass(frozen=True)
class Choice:
    """The strategy, parsed."""

    executor: str
    batch: int
    options: dict[str, Any]
    config: dict[str, Any]


def strategy(executor: str, batch: int = 4, options: dict[str, Any] | None = None, **config: Any) -> str:
    """The strategy string that names this executor."""
    return WORD + json.dumps({"executor": executor, "batch": batch, "options": options or {}, "config": config})


class ChosenExecutor:
    """Beside ``albatross_plugin.hooks``, which serves the model that this plugin makes."""

    @hookimpl
    def rwkv_runner_parse_strategy(self, strategy: str) -> Choice | None:
        if not strategy.startswith(WORD):
            return None
        said = json.loads(strategy[len(WORD) :])
        return Choice(said["executor"], said.get("batch", 4), said.get("options", {}), said.get("config", {}))

    @hookimpl
    def rwkv_runner_create_model(self, strategy: object, model_path: str, tokenizer_path: str | None) -> Any | None:
        if not isinstance(strategy, Choice):
            return None
        from dataclasses import replace

        from albatross_plugin.adapter import AlbatrossRWKV
        from albatross_plugin.config import EngineConfig
        from albatross_plugin.strategy import AlbatrossStrategy

        config = replace(EngineConfig.load(AlbatrossStrategy(1, strategy.batch, "cpu")), **strategy.config)
        return AlbatrossRWKV(model_path, tokenizer=tokenizer_path, config=config, executor=strategy.executor, options=strategy.options)
