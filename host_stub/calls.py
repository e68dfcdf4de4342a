"""One generation on the locked path: what is asked for, and the news that come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from host_stub.errors import ApiError


@dataclass(frozen=True)
class Call:
    """``settings`` are merged already (request over saved config over the model's own). ``stops`` holds no empty string.

    ``messages`` is set on chat routes, for models that bring a chat template of their own.
    """

    prompt: str
    settings: dict[str, Any]
    stops: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    messages: list[dict[str, Any]] | None = None
    body: Any = None


@dataclass(frozen=True)
class Piece:
    """New text, and the counts so far; the last piece says why the text ended."""

    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = None


Emit = Callable[[Piece], bool]


class Runnable(Protocol):
    """A model of this host: runs one call at a time in a worker thread, until done or ``emit`` answers False."""

    options: dict[str, str]

    def run(self, call: Call, emit: Emit) -> None: ...


@dataclass
class Progress:
    """Collects the pieces of a call into one answer."""

    texts: list[str] = field(default_factory=list)
    last: Piece = field(default_factory=Piece)

    def add(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        self.last = piece

    @property
    def text(self) -> str:
        return "".join(self.texts)


def run(model: Any, call: Call, emit: Emit) -> None:
    """Run ``call`` on any model object: the host's own, or a plugin's that offers ``generate()`` alone."""
    if hasattr(model, "run"):
        model.run(call, emit)
        return
    limit = call.settings.get("max_tokens")
    prompt_tokens = completion_tokens = 0
    for kind, _, delta, prompt_tokens, completion_tokens in _five_tuples(model, call):
        if kind == "text" and not emit(Piece(delta, prompt_tokens, completion_tokens)):
            return
    reason = "length" if limit is not None and completion_tokens >= limit else "stop"
    emit(Piece("", prompt_tokens, completion_tokens, reason))


def _five_tuples(model: Any, call: Call) -> Iterator[tuple[str, str, str, int, int]]:
    yield from model.generate(call.body, call.prompt, stop=list(call.stops), stop_token_ids=list(call.stop_token_ids))


def unloaded() -> ApiError:
    return ApiError(503, "the model was unloaded", code="model_unavailable")
