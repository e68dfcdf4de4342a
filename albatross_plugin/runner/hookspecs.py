"""The hooks as the launcher calls them: the same contract that docs/hooks.md describes for every host."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pluggy

PROJECT = "rwkv_runner"

hookspec = pluggy.HookspecMarker(PROJECT)


class HookSpecs:
    """Names, arguments and which result counts. What each hook is for stands in docs/hooks.md."""

    @hookspec
    def rwkv_runner_strategies(self) -> Sequence[Mapping[str, Any]]:  # type: ignore[empty-body]
        """Strategies on offer."""

    @hookspec
    def rwkv_runner_device_modes(self) -> Sequence[Mapping[str, Any]]:  # type: ignore[empty-body]
        """Entries for a front end's device menu."""

    @hookspec(firstresult=True)
    def rwkv_runner_parse_strategy(self, strategy: str) -> object | None:
        """An opaque strategy object, or None."""

    @hookspec
    def rwkv_runner_model_types(self) -> Sequence[type]:  # type: ignore[empty-body]
        """Classes to register with AbstractRWKV."""

    @hookspec(firstresult=True)
    def rwkv_runner_create_model(self, strategy: object, model_path: str, tokenizer_path: str | None) -> object | None:
        """A model that is ready to serve."""

    @hookspec(firstresult=True)
    def rwkv_runner_eval(
        self,
        model: object,
        request: object,
        body: object,
        prompt: Any,
        stream: bool,
        stop: str | list[str] | None,
        stop_token_ids: list[int] | None,
        chat_mode: bool,
        defaults: Mapping[str, Any],
    ) -> AsyncGenerator[Any, None] | None:
        """Start one completion, or None for the host's own path."""

    @hookspec
    def rwkv_runner_status(self, model: object | None) -> Mapping[str, Any] | None:
        """A part of ``/status``."""

    @hookspec
    def rwkv_runner_shutdown_model(self, model: object) -> None:
        """Release what a model of the plugin holds."""

    @hookspec
    def rwkv_runner_routers(self, host: object) -> Sequence[Any]:  # type: ignore[empty-body]
        """APIRouters to stand before the host's own."""
