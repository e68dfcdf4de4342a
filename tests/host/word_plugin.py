"""A plugin for tests: a strategy ``words``, whose model says the prompt's words back, one a chunk.

Words with a meaning: ``!wait`` waits until the model is released or shut down, ``!fail`` raises in the middle,
``!reject`` refuses the call, ``!bug`` raises something without a status. ``say`` in the body is said instead of the prompt.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pluggy
from fastapi import APIRouter, HTTPException

hookimpl = pluggy.HookimplMarker("rwkv_runner")


class Refusal(ValueError):
    status = 429
    code = "queue_full"
    message = "too many words"
    param = "prompt"
    headers: ClassVar[dict[str, str]] = {"Retry-After": "7"}


class Unsupported(NotImplementedError):
    pass


class WordModel:
    def __init__(self, path: str) -> None:
        self.name, self.model_path, self.version = "words", path, 7
        self.interface, self.user, self.bot = ":", "User", "Assistant"
        self.max_tokens_per_generation, self.temperature, self.top_p, self.top_k = 500, 1.0, 0.3, 0
        self.penalty_alpha_presence, self.penalty_alpha_frequency, self.penalty_decay = 0, 1, 0.996
        self.global_penalty, self.state_path, self.state_tuned = False, "", None
        self.model = SimpleNamespace(args=SimpleNamespace(n_layer=2, n_embd=128), version=7, strategy=[_place()] * 2)
        self.release = threading.Event()
        self.closed = 0

    def generate(self, body: Any, prompt: str, stop: Any = None, stop_token_ids: Any = None) -> Any:
        text = ""
        for count, word in enumerate(prompt.split()[: self.max_tokens_per_generation], 1):
            text += word + " "
            yield "text", text, word + " ", 1, count

    def get_embedding(self, input: str, fast_mode: bool) -> Any:
        raise Unsupported("words have no embeddings")

    def adjust_occurrence(self, occurrence: Any, token: int) -> None: ...

    def adjust_forward_logits(self, logits: Any, occurrence: Any, i: int) -> None: ...

    def fix_tokens(self, tokens: Any) -> Any:
        return tokens

    def run_rnn(self, _tokens: Any, newline_adj: int = 0) -> Any:
        raise Unsupported("no steps")

    def delta_postprocess(self, delta: str) -> str:
        return delta

    def shutdown(self) -> None:
        self.closed += 1
        self.release.set()


def _place() -> Any:
    import torch

    return SimpleNamespace(device="cpu", atype=torch.float32)


class Answer:
    """The iterator that the hook hands over; it counts how often it was closed."""

    def __init__(self, plugin: WordPlugin, call: dict[str, Any]) -> None:
        self.plugin, self.call, self.closed = plugin, call, 0
        self._items = self._stream() if call["stream"] else self._whole()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._items

    async def aclose(self) -> None:
        self.closed += 1
        await self._items.aclose()

    async def _words(self) -> Any:
        model = self.call["model"]
        for word in str(getattr(self.call["body"], "say", self.call["prompt"])).split():
            if word == "!wait":
                while not model.release.is_set():
                    await asyncio.sleep(0.01)
            elif word == "!fail":
                raise RuntimeError("the words ran out")
            else:
                yield word + " "

    async def _stream(self) -> Any:
        chat = self.call["chat_mode"]
        async for word in self._words():
            choice = {"index": 0, "finish_reason": None, **({"delta": {"content": word}} if chat else {"text": word})}
            yield json.dumps({"id": "w", "choices": [choice]})
        end = {"index": 0, "finish_reason": "stop", **({"delta": {}} if chat else {"text": ""})}
        yield json.dumps({"id": "w", "choices": [end]})
        yield "[DONE]"

    async def _whole(self) -> Any:
        text = "".join([word async for word in self._words()])
        choice = {"message": {"role": "assistant", "content": text}} if self.call["chat_mode"] else {"text": text}
        yield {"id": "w", "choices": [{"index": 0, "finish_reason": "stop", **choice}]}


class WordPlugin:
    """``calls`` and ``answers`` record what the host asked; ``loading`` blocks a load while it is set."""

    def __init__(self, *, evaluates: bool = True) -> None:
        self.calls: list[dict[str, Any]] = []
        self.answers: list[Answer] = []
        self.models: list[WordModel] = []
        self.threads: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.entered = threading.Event()
        self.evaluates = evaluates
        self.forgotten: list[str] = []
        self.host: Any = None

    @hookimpl
    def rwkv_runner_strategies(self) -> list[dict[str, Any]]:
        return [{"name": "words", "aliases": [], "options": {}, "suffixes": [".pth"]}]

    @hookimpl
    def rwkv_runner_parse_strategy(self, strategy: str) -> Any:
        return strategy.split() if strategy.split()[:1] == ["words"] else None

    @hookimpl
    def rwkv_runner_model_types(self) -> list[type]:
        return [WordModel]

    @hookimpl
    def rwkv_runner_create_model(self, strategy: Any, model_path: str) -> Any:
        self.entered.set()
        assert self.hold.wait(20)
        if "broken" in strategy:
            raise RuntimeError("the dictionary is empty")
        if "panic" in strategy:
            raise Panic("a panic in an extension")
        model = WordModel(model_path)
        self.models.append(model)
        if "hot" in strategy:
            model.temperature = 99
        if "pathless" in strategy:
            del model.model_path, model.user
        return model

    @hookimpl
    def rwkv_runner_eval(
        self, model: Any, body: Any, prompt: Any, stream: bool, stop: Any, stop_token_ids: Any, chat_mode: bool, defaults: Any
    ) -> Any:
        if not isinstance(model, WordModel) or not self.evaluates:
            return None
        self.threads.append(threading.current_thread().name)
        if "!reject" in prompt:
            raise Refusal
        if "!bug" in prompt:
            raise KeyError("a bug")
        call = {"model": model, "body": body, "prompt": prompt, "stream": stream, "stop": stop, "stop_token_ids": stop_token_ids}
        self.calls.append({**call, "chat_mode": chat_mode, "defaults": defaults})
        self.answers.append(Answer(self, self.calls[-1]))
        return self.answers[-1]

    @hookimpl
    def rwkv_runner_status(self, model: Any) -> dict[str, Any]:
        return {"words": {"loaded": model is not None, "loading": not self.hold.is_set()}}

    @hookimpl
    def rwkv_runner_shutdown_model(self, model: Any) -> None:
        if isinstance(model, WordModel):
            model.shutdown()

    @hookimpl
    def rwkv_runner_routers(self, host: Any) -> list[APIRouter]:
        self.host = host
        router = APIRouter()

        @router.get("/models")
        def models() -> dict[str, str]:
            return {"from": "plugin"}

        @router.post("/words/clear")
        def clear() -> str:
            if host.deployed():
                raise HTTPException(403, "not in deploy mode")
            return "cleared"

        # These two leave deploy mode and other sites to the host.
        @router.api_route("/words/forget/{word}", methods=["POST", "PUT", "DELETE", "GET"])
        def forget(word: str) -> str:
            self.forgotten.append(word)
            return "forgotten"

        @router.post("/words/count", openapi_extra={"x-changes-state": False})
        def count() -> int:
            return len(self.calls)

        @router.api_route("/words/page", methods=["GET", "POST"], openapi_extra={"x-public": True})
        def page() -> str:
            return "ask for the key"

        return [router]


class Panic(BaseException):
    """As extension modules raise it."""
