"""Feeder: which prompts are fed in the next step, and how much of each"""

from __future__ import annotations

from collections.abc import Callable, Collection

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.group import slot_of
from albatross_plugin.engine.sequence import Category, Sequence


def fair_shares(wants: list[int], budget: int) -> list[int]:
    """Split ``budget`` over ascending ``wants``: nobody gets more than wanted, what is left goes to the larger ones."""
    shares = []
    for index, want in enumerate(wants):
        share = min(want, budget // (len(wants) - index))
        shares.append(share)
        budget -= share
    return shares


class Feeder:
    """``feeding``: the sequences whose prompts are not complete, kept by the caller. ``ahead``: how many tokens of one may be fed now."""

    def __init__(self, config: EngineConfig, feeding: Collection[Sequence], ahead: Callable[[Sequence], int]) -> None:
        self._config = config
        self._feeding = feeding
        self._ahead = ahead
        self._since_prefill = config.decode_prefill_ratio

    def due(self, decoding: bool) -> bool:
        """Whether long prompts have their turn beside rows that decode, or there is no such row."""
        return not decoding or self._since_prefill >= self._config.decode_prefill_ratio

    def choose(self, decoding: bool, pressed: bool) -> list[tuple[Sequence, int]]:
        """(sequence, tokens to feed) in row order: single tokens first, then the pieces of long prompts. To be called once per step.

        ``pressed``: whether a row waits for the step's end, which keeps pieces short. Shares are equal as far as each can use them, so a
        short prompt never waits for a long one. With more prompts than tokens in the budget, those that were fed longest ago go first: all
        of them make progress.
        """
        if not self._feeding:
            self._since_prefill += decoding
            return []
        due, limit = self.due(decoding), self._config.chunk_limit(pressed)
        budget, wants = self._config.pass_budget, []
        for sequence in sorted(self._feeding, key=slot_of):
            category = sequence.category(decoding, due, self._config.min_forward_seq_len)
            if category in (Category.ONE_PREFILL, Category.SEQ_PREFILL):
                want = 1 if category is Category.ONE_PREFILL else min(self._ahead(sequence), limit)
                wants.append((category, want, sequence))
        if len(wants) > budget:
            wants = sorted(wants, key=lambda item: item[2].last_fed)[:budget]
        wants.sort(key=lambda item: item[1])
        shares = fair_shares([want for _, want, _ in wants], budget)
        chosen = [(category, sequence, share) for (category, _, sequence), share in zip(wants, shares, strict=True)]
        chosen.sort(key=lambda item: (item[0], slot_of(item[1])))
        if decoding:
            fed_long = any(category is Category.SEQ_PREFILL for category, _, _ in chosen)
            self._since_prefill = 0 if fed_long else self._since_prefill + 1
        return [(sequence, share) for _, sequence, share in chosen]
