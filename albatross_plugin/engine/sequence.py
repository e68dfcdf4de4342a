"""One Request's progress in a slot."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from albatross_plugin.engine.grammar import Matcher
from albatross_plugin.engine.messages import TokenLogprobs
from albatross_plugin.engine.request import FinishReason, Request

if TYPE_CHECKING:
    from albatross_plugin.engine.prefixes import Prefix


class Category(IntEnum):
    """What a slot does in a step; the rows of a plan are ordered by it."""

    DECODE = 0
    ONE_PREFILL = 1
    SUSPENDED = 2
    SEQ_PREFILL = 3
    FINISHED = 4
    EMPTY = 5


class Sequence:
    """Counts for one request. What was *planned* may run ahead of what was *sampled* by the steps in flight.

    ``fed``: prompt tokens planned so far. ``planned``: tokens whose sampling was planned. ``sampled``: tokens that
    came back, the end token included. ``last_fed``: the step that last fed the prompt. ``slot`` is None outside one, and
    ``released`` says that the slot was given back before the end, since no further step needs it. ``matcher``: where
    the text is in its grammar, from the moment it has a slot, and ``mask``: which tokens may come next, where that is known.
    ``prefix``: the prompt that it shares with others; ``waits``: another one feeds that.
    """

    __slots__ = (
        "ended", "fed", "last_fed", "mask", "matcher", "max_tokens", "planned", "prefix", "prompt_entries", "released", "request",
        "sampled", "slot", "stops", "waits",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.request = request
        self.slot: int | None = None
        self.fed = 0
        self.planned = 0
        self.sampled = 0
        self.last_fed = -1
        self.ended = False
        self.released = False
        self.max_tokens = request.params.max_tokens
        self.stops = request.params.end_token_ids
        self.prompt_entries: list[TokenLogprobs] = []
        self.matcher: Matcher | None = None
        self.mask: bytes | None = None
        self.prefix: Prefix | None = None
        self.waits = False

    @property
    def remaining(self) -> int:
        """Prompt tokens that no plan holds yet."""
        return len(self.request.prompt_ids) - self.fed

    @property
    def exhausted(self) -> bool:
        """Whether the last token it may have is planned already, so that it must not be planned again."""
        return self.planned >= self.max_tokens

    def category(self, decoding: bool, due: bool, min_forward_seq_len: int) -> Category:
        """``decoding``: some row of the step decodes; ``due``: long prompts may be fed in this step."""
        if self.ended or self.exhausted:
            return Category.FINISHED
        if self.remaining == 0:
            return Category.DECODE
        if self.waits:
            return Category.SUSPENDED
        if not decoding:
            return Category.SEQ_PREFILL
        if self.remaining < min_forward_seq_len:
            return Category.ONE_PREFILL
        return Category.SEQ_PREFILL if due else Category.SUSPENDED

    def feed(self, count: int, step: int) -> tuple[int, ...]:
        """Take the next ``count`` prompt tokens."""
        start, self.fed = self.fed, self.fed + count
        self.last_fed = step
        return self.request.prompt_ids[start : self.fed]

    def take(self, token: int) -> FinishReason | None:
        """Count a sampled token, and say whether it ends the text. A stop on the last allowed token is a stop."""
        self.sampled += 1
        if token in self.stops:
            return FinishReason.STOP
        if self.matcher is not None:
            self.matcher.accept(token)
            if self.matcher.complete:
                return FinishReason.STOP
        return FinishReason.LENGTH if self.sampled >= self.max_tokens else None
