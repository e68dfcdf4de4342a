"""Sampler: the settings of every slot in one table, and one sampling step for any set of rows."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from albatross_plugin.engine.messages import TokenLogprobs
from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.model.draw import WIDTHS, Rules, argmax, draw_restricted, draw_unrestricted, uniform
from albatross_plugin.model.penalties import Penalties

NOT_FINITE = "the model's logits are not finite (its numbers overflowed), so this request cannot go on"
NOTHING_ALLOWED = "no token is allowed here: response_format, logit_bias and ignore_eos of this request exclude all of them together"


@dataclass
class _Row:
    """What the host knows of a slot: settings, how many tokens were drawn, and how wide its nucleus was last."""

    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    step: int = 0
    width: int = WIDTHS[0]


@dataclass(frozen=True)
class Sampled:
    """``tokens`` int64 [B] on the device; ``failures`` and ``logprobs`` by slot. A failed row's token is 0."""

    tokens: Tensor
    failures: dict[int, str]
    logprobs: dict[int, TokenLogprobs]


class Sampler:
    """``rows`` slots over ``vocab`` tokens, of which only those below ``limit`` may be produced."""

    def __init__(self, rows: int, vocab: int, limit: int, device: torch.device) -> None:
        self._limit = min(limit, vocab)
        self._vocab = vocab
        self._device = device
        self._rows = [_Row() for _ in range(rows)]
        # Columns: temperature, top_p, top_k; infinity switches a filter off.
        self._table = torch.ones(rows, 3, dtype=torch.float64, device=device)
        # What each value of a mask's octet allows, bit by bit.
        bits = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
        self._bounds = torch.where(bits.bool(), math.inf, -math.inf).to(device)
        self._penalties = Penalties(rows, vocab, self._limit, device)

    @property
    def memory_bytes(self) -> int:
        return self._penalties.memory_bytes

    def admit(self, slot: int, request: Request) -> None:
        """Write the slot's row. Without a seed the request gets a random one here, once."""
        params = request.params
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self._rows[slot] = _Row(params, seed)
        top_p = params.top_p if params.top_p < 1 else math.inf
        # A number of hundreds of digits is none that a table could hold, and would fail the step for all its rows.
        top_k = min(params.top_k, self._vocab) or math.inf
        self._table[slot] = torch.tensor((params.temperature, top_p, top_k), dtype=torch.float64)
        self._penalties.admit(slot, params, request.prompt_ids)

    def sample(self, logits: Tensor, slots: Sequence[int], allowed: Mapping[int, bytes] | None = None) -> Sampled:
        """Draw one token for each row of ``logits`` [B, V] float32, which is changed; row i belongs to ``slots[i]``.

        ``allowed`` maps slots to bitmasks, see StepPlan. Cost does not depend on how much text there is already.
        """
        raw = {i: torch.log_softmax(logits[i], 0) for i, s in enumerate(slots) if self._rows[s].params.logprobs is not None}
        self._penalties.apply(logits, slots)
        for i, slot in enumerate(slots):
            if allowed and slot in allowed:
                # Never above this bound; also what is infinite by itself does no harm where it is not allowed.
                torch.minimum(logits[i], self._bound(allowed[slot]), out=logits[i])
        failed = self._remove_failed(logits, slots)
        tokens = self._draw(logits, slots)
        if failed:
            tokens[list(failed)] = 0
        self._penalties.record(slots, tokens)
        for slot in slots:
            self._rows[slot].step += 1
        logprobs = {}
        for i, numbers in raw.items():
            if i not in failed:
                logprobs[slots[i]] = token_logprobs(numbers, int(tokens[i]), self._rows[slots[i]].params.logprobs or 0, self._limit)
        return Sampled(tokens, {slots[i]: text for i, text in failed.items()}, logprobs)

    def _bound(self, mask: bytes) -> Tensor:
        """float32 [vocab] from a mask as in StepPlan: infinity where the token is allowed, minus infinity where it is not."""
        octets = torch.frombuffer(bytearray(mask), dtype=torch.uint8).to(self._device)
        return F.embedding(octets.int(), self._bounds).flatten()[: self._vocab]

    def _remove_failed(self, logits: Tensor, slots: Sequence[int]) -> dict[int, str]:
        """Rows without a finite maximum, which are zeroed so that nothing of them reaches the others."""
        maxima = logits.amax(1)
        failed: dict[int, str] = {}
        if not bool(torch.isfinite(maxima).all()):
            for i, value in enumerate(maxima.tolist()):
                if not math.isfinite(value):
                    failed[i] = NOTHING_ALLOWED if value == -math.inf else NOT_FINITE
                    logits[i].zero_()
        return failed

    def _draw(self, logits: Tensor, slots: Sequence[int]) -> Tensor:
        rows = [self._rows[slot] for slot in slots]
        random = [i for i, row in enumerate(rows) if not row.params.greedy]
        if not random:
            return argmax(logits)
        free = [i for i in random if rows[i].params.top_p >= 1 and not rows[i].params.top_k]
        cut = [i for i in random if rows[i].params.top_p < 1 or rows[i].params.top_k]
        tokens = argmax(logits) if len(random) < len(rows) else torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
        for indices, restricted in ((free, False), (cut, True)):
            if not indices:
                continue
            index = torch.tensor(indices, device=logits.device)
            part = logits if len(indices) == len(rows) else logits[index]
            rules = self._rules([slots[i] for i in indices])
            if restricted:
                drawn, widths = draw_restricted(part, rules, [rows[i].width for i in indices])
                for i, width in zip(indices, widths, strict=True):
                    rows[i].width = width
            else:
                drawn = draw_unrestricted(part, rules)
            tokens[index] = drawn
        return tokens

    def _rules(self, slots: Sequence[int]) -> Rules:
        chance = [uniform(self._rows[slot].seed, self._rows[slot].step) for slot in slots]
        temperature, top_p, top_k = self._table[torch.tensor(slots, device=self._device)].unbind(1)
        return Rules(temperature, top_p, top_k, torch.tensor(chance, dtype=torch.float64, device=self._device))


def token_logprobs(numbers: Tensor, token: int, count: int, limit: int) -> TokenLogprobs:
    """The entry for one token from log-softmax ``numbers`` [V]; alternatives are the ``count`` best ids below ``limit``."""
    top = numbers[:limit].topk(count) if count else None
    pairs = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True)) if top is not None else ()
    return TokenLogprobs(token, float(numbers[token]), pairs)
