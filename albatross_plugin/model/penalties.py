"""Penalties: what is added to a slot's logits before sampling, as dense tables, so that no cost grows with the text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from albatross_plugin.engine.request import END_OF_TEXT, SamplingParams

# Tab, newline's neighbours and digits repeat in good text: they count nothing towards the frequency, as in PyPI's rwkv package.
UNCOUNTED = (33, 10, *range(49, 59))
NEVER = -100
_RESCALE_BELOW = 1e-6


class Penalties:
    """offset, counts [rows, V] float32 and seen [rows, V] bool, indexed by slot.

    A slot's logits become ``logits + offset - frequency * scale * counts``. ``offset`` holds the logit bias, minus
    infinity for what may never be produced, and the presence penalty of every token seen. The decay of all counts is
    one number per slot, ``scale``, kept on the host: decaying costs nothing, and a new token is added as 1 / scale.
    """

    def __init__(self, rows: int, vocab: int, limit: int, device: torch.device) -> None:
        self.offset = torch.zeros(rows, vocab, device=device)
        self.counts = torch.zeros(rows, vocab, device=device)
        self.seen = torch.zeros(rows, vocab, device=device, dtype=torch.bool)
        self._weight = torch.ones(vocab, device=device)
        self._weight[[token for token in UNCOUNTED if token < vocab]] = 0
        self._limit = limit
        self._scale = [1.0] * rows
        self._params = [SamplingParams()] * rows

    @property
    def memory_bytes(self) -> int:
        return sum(t.numel() * t.itemsize for t in (self.offset, self.counts, self.seen, self._weight))

    def admit(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Start a slot afresh; with ``global_penalty`` the prompt counts as if it had been generated."""
        self._params[slot], self._scale[slot] = params, 1.0
        self.counts[slot].zero_()
        self.seen[slot].zero_()
        offset = self.offset[slot].zero_()
        for token, bias in params.logit_bias:
            offset[token] = float("-inf") if bias <= NEVER else bias
        offset[self._limit :] = float("-inf")
        if params.ignore_eos:
            offset[END_OF_TEXT] = float("-inf")
        if params.global_penalty:
            self._count_prompt(slot, params, prompt)

    def _count_prompt(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        ids = torch.tensor(list(prompt), dtype=torch.int64, device=self.counts.device)
        age = torch.arange(len(prompt) - 1, -1, -1, dtype=torch.float32, device=ids.device)
        self.counts[slot].index_add_(0, ids, self._weight[ids] * params.penalty_decay**age)
        self.seen[slot, ids] = True
        self.offset[slot] -= params.presence_penalty * self.seen[slot]

    def apply(self, logits: Tensor, slots: Sequence[int]) -> None:
        """Adjust ``logits`` [B, V] float32 in place; row i belongs to ``slots[i]``."""
        factors = [-self._params[slot].frequency_penalty * self._scale[slot] for slot in slots]
        factor = torch.tensor(factors, dtype=torch.float32, device=logits.device).unsqueeze(1)
        for first, last in _runs(slots):
            slot = slots[first]
            run = slice(slot, slot + last - first)
            rows = logits[first:last].add_(self.offset[run])
            if any(factors[first:last]):
                rows.addcmul_(self.counts[run], factor[first:last])

    def record(self, slots: Sequence[int], tokens: Tensor) -> None:
        """Count the tokens [B] that were just produced; older counts decay first."""
        added = []
        for slot in slots:
            params = self._params[slot]
            scale = self._scale[slot] * params.penalty_decay
            if scale < _RESCALE_BELOW:
                self.counts[slot].mul_(scale)
                scale = 1.0
            self._scale[slot] = scale
            added.append(1 / scale if params.frequency_penalty else 0.0)
        rows = torch.tensor(slots, device=tokens.device)
        presence = torch.tensor([self._params[slot].presence_penalty for slot in slots], dtype=torch.float32, device=tokens.device)
        amounts = torch.tensor(added, dtype=torch.float32, device=tokens.device) * self._weight[tokens]
        self.counts.index_put_((rows, tokens), amounts, accumulate=True)
        self.offset.index_put_((rows, tokens), -presence * ~self.seen[rows, tokens], accumulate=True)
        self.seen[rows, tokens] = True


def _runs(slots: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last + 1) of the stretches of neighbouring slots."""
    runs = []
    first = 0
    for i in range(1, len(slots) + 1):
        if i == len(slots) or slots[i] != slots[i - 1] + 1:
            runs.append((first, i))
            first = i
    return runs
