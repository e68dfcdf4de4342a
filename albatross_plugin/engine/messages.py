"""What core and worker say to each other: commands down, events up. Plain data, all of it picklable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Union

from albatross_plugin.engine.histogram import NO_STEPS, HistogramCounts
from albatross_plugin.engine.request import FinishReason, Request


@dataclass(frozen=True)
class Submit:
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Abort:
    """End these requests; ids that are unknown or already ended are ignored."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True)
class Shutdown:
    """End every request with ``reason`` (HTTP 503), then leave the loop and release the executor."""

    reason: str = "the model was unloaded"


Command = Union[Submit, Abort, Shutdown]


class TokenLogprobs(NamedTuple):
    """Log-softmax of the raw logits, natural logarithm. ``top`` is sorted, the most likely token first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class ModelInfo:
    """What the executor knows once the model is loaded. Sizes in bytes."""

    name: str
    n_layer: int
    n_embd: int
    vocab_size: int
    device: str
    dtype: str
    weight_bytes: int
    state_bytes_per_slot: int


@dataclass(frozen=True)
class LoadProgress:
    loaded_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Loaded:
    info: ModelInfo


@dataclass(frozen=True)
class LoadFailed:
    message: str


@dataclass(frozen=True)
class Started:
    """The request left the queue and holds a slot."""

    request_id: int


@dataclass(frozen=True)
class Tokens:
    """The tokens that one step sampled, for all its rows at once (parallel lists).

    ``logprobs`` is None, or holds one entry (or None) per row. While the same rows go on, ``request_ids`` is the same list object in
    event after event, as far as the transport keeps objects; nobody may change these lists.
    """

    request_ids: list[int]
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None = None


@dataclass(frozen=True)
class PromptLogprobs:
    """Numbers for prompt tokens 1..n-1, delivered once, before the first token of that request."""

    request_id: int
    entries: tuple[TokenLogprobs, ...]


@dataclass(frozen=True)
class Finished:
    """``completion_tokens`` counts every sampled token, the stop token included."""

    request_id: int
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Failed:
    """The request ended with an error; ``status`` is what HTTP would call it."""

    request_id: int
    message: str
    status: int = 500


@dataclass(frozen=True)
class Stats:
    """A worker's figures since it started (counts) and over its last interval (times, seconds).

    Memory is that of the worker's device; ``free_memory_bytes`` is None where it is not known. ``step_times`` (seconds, since the start)
    counts every step once, ``token_times`` once for each row that decoded in it, which is the time between two tokens of that row.
    """

    active: int
    waiting: int
    slots: int
    steps: int
    decode_rows: int
    prefill_tokens: int
    generated_tokens: int
    step_seconds: float
    decode_tokens_per_second: float
    prefill_tokens_per_second: float
    memory_bytes: int
    peak_memory_bytes: int
    free_memory_bytes: int | None = None
    prefill_rows: int = 0
    step_times: HistogramCounts = NO_STEPS
    token_times: HistogramCounts = NO_STEPS


@dataclass(frozen=True)
class Broken:
    """The worker serves nobody any more and releases what it holds; Down follows when that is done."""

    message: str


@dataclass(frozen=True)
class Down:
    """The worker's loop has ended. ``message`` is empty after a Shutdown, the cause otherwise."""

    message: str = ""


Event = Union[LoadProgress, Loaded, LoadFailed, Started, Tokens, PromptLogprobs, Finished, Failed, Stats, Broken, Down]
