"""The host's own .gguf path: llama.cpp through PyPI's xllamacpp, one request at a time."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path
from typing import Any

from host_stub.calls import Call, Emit, Piece, unloaded
from host_stub.errors import ApiError

DEFAULT_CONTEXT = 8192


class TextLlama:
    """A GGUF model. Not an AbstractRWKV, as in RWKV-Runner: no embeddings, no state files.

    ``rwkv`` says whether prompts take the host's own chat form instead of the file's template.
    """

    def __init__(self, model_path: str, strategy: str) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = model_path
        params.n_ctx = context_length(strategy)
        params.n_parallel = 1
        params.n_gpu_layers = 0 if "cpu" in strategy.lower() else -1
        params.cpuparams.n_threads = max(1, (os.cpu_count() or 1) - 1)
        params.warmup = False
        params.verbosity = 1
        # The binding listens on a port of its own; a key that nobody knows keeps it closed.
        params.api_keys = [secrets.token_hex(32)]
        try:
            self.model: Any = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ValueError(f"llama.cpp cannot load {model_path}: {error}") from error
        self.name = Path(model_path).stem
        self.model_path = model_path
        self.version = 100
        self.rwkv = architecture(model_path).startswith("rwkv") or "rwkv" in self.name.lower()
        self.interface, self.user, self.bot = ":", "User", "Assistant"
        self.max_tokens_per_generation = 500
        self.temperature, self.top_p, self.top_k = 1.0, 0.3, 40
        self.penalty_alpha_presence, self.penalty_alpha_frequency = 0.0, 1.0
        self.options = {"seed": "seed"}
        self._closed = threading.Event()
        self._busy = threading.Lock()

    def run(self, call: Call, emit: Emit) -> None:
        """Generate until the text ends or ``emit`` answers False. Raises ApiError with llama.cpp's own words."""
        last = Piece()
        failure: ApiError | None = None

        def on_chunk(chunk: Any) -> bool:
            nonlocal last, failure
            if self._closed.is_set():
                failure = unloaded()
                return True
            if not isinstance(chunk, dict) or "error" in chunk:
                failure = _failure(chunk)
                return True
            last = _piece(chunk, last)
            return not emit(last)

        with self._busy:
            if self._closed.is_set():
                raise unloaded()
            if call.messages is not None and not self.rwkv:
                answer = self.model.handle_chat_completions({"messages": call.messages, **self._options(call)}, on_chunk)
            else:
                answer = self.model.handle_completions({"prompt": call.prompt, **self._options(call)}, on_chunk)
        if failure is None and isinstance(answer, dict) and "error" in answer:
            failure = _failure(answer)
        if failure is not None:
            raise failure

    def _options(self, call: Call) -> dict[str, Any]:
        options = {
            "max_tokens": self.max_tokens_per_generation,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": 0.0,
            "presence_penalty": self.penalty_alpha_presence,
            "frequency_penalty": self.penalty_alpha_frequency,
            "stop": list(call.stops),
            "stream": True,
            "stream_options": {"include_usage": True},
            # A recurrent state cannot be cut back to a common prefix.
            "cache_prompt": not self.rwkv,
        }
        if call.seed is not None:
            options["seed"] = call.seed
        return options

    def shutdown(self) -> None:
        """End what runs, then free llama.cpp's memory and its threads. Idempotent."""
        self._closed.set()
        with self._busy:
            self.model = None


def context_length(strategy: str) -> int:
    """The second word of the strategy where it is a number, for example ``cpu 4096``."""
    words = strategy.split()
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() and int(words[1]) > 0 else DEFAULT_CONTEXT


def architecture(path: str) -> str:
    """``general.architecture`` of a GGUF file, which writers put first; "" where it is not. Raises ValueError: not GGUF."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if head[:4] != b"GGUF":
        raise ValueError(f"{path} is not a GGUF file")
    key, offset = _string(head, 24)
    if key != b"general.architecture" or head[offset : offset + 4] != (8).to_bytes(4, "little"):
        return ""
    return _string(head, offset + 4)[0].decode("utf-8", "replace")


def _string(data: bytes, offset: int) -> tuple[bytes, int]:
    end = offset + 8 + int.from_bytes(data[offset : offset + 8], "little")
    return data[offset + 8 : end], end


def _piece(chunk: dict[str, Any], last: Piece) -> Piece:
    """One chunk of llama.cpp's stream; it names the counts at the end only, so until then each chunk counts as a token."""
    text, reason = "", None
    if choices := chunk.get("choices"):
        reason = choices[0].get("finish_reason")
        text = choices[0].get("text") or (choices[0].get("delta") or {}).get("content") or ""
    usage = chunk.get("usage")
    if usage:
        return Piece(text, usage["prompt_tokens"], usage["completion_tokens"], reason or last.finish_reason)
    return Piece(text, last.prompt_tokens, last.completion_tokens + bool(text), reason or last.finish_reason)


def _failure(chunk: Any) -> ApiError:
    error = chunk.get("error", chunk) if isinstance(chunk, dict) else chunk
    if not isinstance(error, dict):
        return ApiError(500, f"llama.cpp: {error}", code="engine_error")
    status = error.get("code")
    if not isinstance(status, int) or not 400 <= status <= 599:
        status = 500
    return ApiError(status, f"llama.cpp: {error.get('message')}", code="engine_error")
