"""What one generation asks for: a Request and its SamplingParams, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from albatross_plugin.engine.grammar import Grammar
from albatross_plugin.errors import RequestError, shown

MAX_LOGPROBS = 20
END_OF_TEXT = 0


class FinishReason(str, Enum):
    """Why a request ended. ``stop``: end of text, a stop token or a stop string. ``length``: max_tokens."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{name} must be a number, got {shown(value)}", param=name)
    # Also what is not a number at all fails this comparison, and whole numbers too large for a float survive it.
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low:g} and {high:g}, got {shown(value)}", param=name)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings of one request; defaults are those that RWKV-Runner documents for Albatross.

    ``temperature`` 0, ``top_k`` 1 and ``top_p`` 0 all mean greedy. ``top_p`` of 1 or more and ``top_k`` 0
    switch the respective filter off. ``logprobs`` is the number of alternatives reported per token
    (None: none are computed; 0: only the chosen token's). ``prompt_logprobs`` asks for the same numbers for each
    prompt token but the first.
    ``stop_token_ids`` end the text and are not part of it; token 0 does so too unless ``ignore_eos``. ``grammar`` binds the text, and
    ends it where nothing may follow.
    Raises RequestError with the parameter's name for a value out of range.
    """

    max_tokens: int = 500
    temperature: float = 1.0
    top_p: float = 0.3
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 1.0
    penalty_decay: float = 0.996
    global_penalty: bool = False
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: bool = False
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise RequestError(f"max_tokens must be a whole number of at least 1, got {shown(self.max_tokens)}", param="max_tokens")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise RequestError(f"top_k must be a whole number of at least 0, got {shown(self.top_k)}", param="top_k")
        _number("temperature", self.temperature, 0, 100)
        _number("top_p", self.top_p, 0, 100)
        _number("presence_penalty", self.presence_penalty, -100, 100)
        _number("frequency_penalty", self.frequency_penalty, -100, 100)
        _number("penalty_decay", self.penalty_decay, 0, 1)
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise RequestError(f"seed must be a whole number, got {shown(self.seed)}", param="seed")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise RequestError(f"logprobs must be between 0 and {MAX_LOGPROBS}, got {shown(self.logprobs)}", param="logprobs")
        for _, bias in self.logit_bias:
            _number("logit_bias", bias, -100, 100)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end the text."""
        return self.stop_token_ids if self.ignore_eos else self.stop_token_ids | {END_OF_TEXT}

    def check_vocabulary(self, size: int) -> None:
        """Raise RequestError if a token id in here is not one of ``range(size)``."""
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", (i for i, _ in self.logit_bias))):
            for token in ids:
                if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
                    raise RequestError(f"{name} holds {shown(token)}, which is not a token id from 0 to {size - 1}", param=name)


@dataclass(frozen=True)
class Request:
    """One prompt that takes one slot. Picklable, so that it can cross to a worker process.

    ``request_id`` is unique in the engine; ``group`` is shared by the requests of one HTTP call (fairness is
    between groups); a lower ``priority`` is served first. ``initial_state`` is an opaque start state for the
    StatePool (None: zeros). ``prompt_ids`` holds at least one token id. Requests with the same ``shared``, other than None, have the same
    prompt and start state, so that the prompt need be fed only once.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    group: int = 0
    priority: int = 0
    initial_state: Any = None
    shared: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RequestError("the prompt holds no token", param="prompt")
