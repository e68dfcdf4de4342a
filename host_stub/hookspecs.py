"""Every hook that a plugin may implement. Arguments are built-in values or opaque objects; more may be added, none removed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pluggy

PROJECT = "rwkv_runner"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Prompt = str | list[str] | list[int] | list[list[int]]


class HookSpecs:
    """The contract. What a plugin raises reaches the caller of the route that asked."""

    @hookspec
    def rwkv_runner_strategies(self) -> Sequence[Mapping[str, Any]]:  # type: ignore[empty-body]
        """Strategies on offer: dicts with ``name``, ``aliases``, ``options`` (key to default) and ``suffixes`` of model files."""

    @hookspec
    def rwkv_runner_device_modes(self) -> Sequence[Mapping[str, Any]]:  # type: ignore[empty-body]
        """Entries for a front end's device menu: dicts with ``id``, ``labels`` (en, zh, ja), ``strategy`` and ``fields``."""

    @hookspec(firstresult=True)
    def rwkv_runner_parse_strategy(self, strategy: str) -> object | None:
        """An opaque strategy object if the text is the plugin's, else None."""

    @hookspec
    def rwkv_runner_model_types(self) -> Sequence[type]:  # type: ignore[empty-body]
        """Classes to register as virtual subclasses of the host's AbstractRWKV; the host checks their surface once."""

    @hookspec(firstresult=True)
    def rwkv_runner_create_model(self, strategy: object, model_path: str, tokenizer_path: str | None) -> object | None:
        """A model that is ready to serve, or None if the strategy object is not the plugin's. Raises with the reason."""

    @hookspec(firstresult=True)
    def rwkv_runner_eval(
        self,
        model: object,
        request: object,
        body: object,
        prompt: Prompt,
        stream: bool,
        stop: str | list[str] | None,
        stop_token_ids: list[int] | None,
        chat_mode: bool,
        defaults: Mapping[str, Any],
    ) -> AsyncGenerator[Any, None] | None:
        """Start one completion; a plain function that has validated and admitted the call when it returns.

        Returns None (the host uses its locked path), or an async generator: of JSON text per chunk and then ``[DONE]``
        when ``stream``, else of exactly one dict. An exception with a ``status`` attribute (and ``message``, ``code``,
        ``param``, ``headers``) becomes a JSON answer. ``defaults`` holds the keys of the saved config that were set.
        The host calls ``aclose()`` on the generator in every case, also when it was never iterated.
        """

    @hookspec
    def rwkv_runner_status(self, model: object | None) -> Mapping[str, Any] | None:
        """A JSON-able dict with one key per plugin, merged into ``/status``; ``model`` is None while nothing is loaded."""

    @hookspec
    def rwkv_runner_shutdown_model(self, model: object) -> None:
        """Release everything that a model of the plugin holds. Idempotent; models of others are left alone."""

    @hookspec
    def rwkv_runner_routers(self, host: object) -> Sequence[Any]:  # type: ignore[empty-body]
        """APIRouters to include before the host's own.

        ``host`` offers ``model()``, ``saved_config()``, ``deployed()`` and ``resolve(path)``. In deploy mode only routes
        that change state close.
        """
