"""AbstractRWKV: what a model object must offer to be served as an RWKV model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import Any

FiveTuple = tuple[str, str, str, int, int]


class RWKVType(Enum):
    """Families of models; this host's own loader serves World."""

    NoneType = 1
    Raven = 2
    World = 3
    Music = 4
    RawToken = 5


class AbstractRWKV(ABC):
    """Base of the host's RWKV models. Plugins do not inherit it: their classes are registered as virtual subclasses.

    The attributes set here are those that the routes read or write. ``state_tuned`` is None or a list of
    ``3 * n_layer`` tensors; ``state_path`` is the file they came from, "" when none.
    """

    def __init__(self, model: Any, pipeline: Any) -> None:
        self.EOS_ID = 0
        self.name = "rwkv"
        self.model_path = ""
        self.version: float = 4
        self.model = model
        self.pipeline = pipeline
        self.model_state: Any = None
        self.model_tokens: list[int] = []
        self.rwkv_type = RWKVType.NoneType
        self.interface, self.user, self.bot = ":", "User", "Assistant"
        self.max_tokens_per_generation = 500
        self.temperature: float = 1
        self.top_p = 0.3
        self.top_k = 0
        self.penalty_alpha_presence: float = 0
        self.penalty_alpha_frequency: float = 1
        self.penalty_decay = 0.996
        self.global_penalty = False
        self.state_path = ""
        self.state_tuned: list[Any] | None = None

    @abstractmethod
    def adjust_occurrence(self, occurrence: dict[int, float], token: int) -> None:
        """Take one more occurrence of ``token`` into account."""

    @abstractmethod
    def adjust_forward_logits(self, logits: Any, occurrence: dict[int, float], i: int) -> None:
        """Apply the penalties to ``logits [V]`` in place, before the i-th token is sampled."""

    @abstractmethod
    def fix_tokens(self, tokens: list[int]) -> list[int]:
        """Token ids as the model wants to see them."""

    @abstractmethod
    def run_rnn(self, _tokens: list[int], newline_adj: int = 0) -> tuple[Any, int]:
        """Feed tokens into the running state; logits ``[V]`` and the number of tokens."""

    @abstractmethod
    def delta_postprocess(self, delta: str) -> str:
        """Text of one step as it is sent."""

    def generate(self, body: Any, prompt: str, stop: Any = None, stop_token_ids: Any = None) -> Iterable[FiveTuple]:
        """Five-tuples ``("text", cumulative text, new text, prompt tokens, completion tokens)``."""
        raise NotImplementedError

    def get_embedding(self, input: str | list[int], fast_mode: bool) -> tuple[list[float], int]:
        """A vector of length 1 and the number of tokens read."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Release what the model holds. Idempotent."""
        self.model = self.pipeline = self.model_state = self.state_tuned = None
