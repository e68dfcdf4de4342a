"""Drawing one token per row: nucleus, top-k and temperature, without sorting a vocabulary."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Candidates that are looked at first; rows whose nucleus is larger get the next width, then the histogram.
WIDTHS = (256, 1024)
_BINS = 4096
_BINS_PER_NAT = 64
_LEAST_TEMPERATURE = 1e-30
_TWO_LEVELS_FROM = 8192
_SPAN = 256
_BITS = 53


def uniform(seed: int, step: int) -> float:
    """A number in [0, 1) that depends on ``seed`` and ``step`` alone: 53 bits of BLAKE2b, used as a counter-based generator."""
    digest = hashlib.blake2b(b"%d %d" % (seed, step), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _BITS)) / (1 << _BITS)


@dataclass(frozen=True)
class Rules:
    """One entry per row, float64 [n]: ``temperature`` > 0, ``top_p`` (infinity: off), ``top_k`` (infinity: off), ``u`` in [0, 1)."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    u: Tensor

    def rows(self, index: Tensor) -> Rules:
        return Rules(self.temperature[index], self.top_p[index], self.top_k[index], self.u[index])


def argmax(logits: Tensor) -> Tensor:
    """Index of the maximum of each row [n, V]; several times faster than torch.argmax on the CPU."""
    rows, vocab = logits.shape
    if vocab % _SPAN:
        return logits.argmax(1)
    spans = logits.view(rows, -1, _SPAN)
    best = spans.amax(2).argmax(1)
    inside = spans[torch.arange(rows, device=logits.device), best].argmax(1)
    return best * _SPAN + inside


def draw_unrestricted(logits: Tensor, rules: Rules) -> Tensor:
    """One token per row of [n, V], every token with its tempered probability."""
    if bool((rules.temperature == 1).all()):
        return _pick(torch.softmax(logits, 1), rules.u)
    return _pick(_tempered(logits, logits.amax(1, keepdim=True), rules), rules.u)


def draw_restricted(logits: Tensor, rules: Rules, widths: list[int]) -> tuple[Tensor, list[int]]:
    """One token per row of [n, V] from its nucleus cut to top_k, the temperature applied after the cut.

    ``widths`` are the numbers of candidates to try first, one per row (0: go straight to the histogram): they change the
    time and never the result, since tokens are drawn in the order of their ids. Returns (tokens [n], widths that sufficed).
    """
    tokens = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    probabilities = torch.softmax(logits, 1)
    needed = list(widths)
    for width in WIDTHS:
        rows = [i for i, w in enumerate(needed) if w == width]
        if not rows:
            continue
        index = torch.tensor(rows, device=logits.device)
        part, p = (logits, probabilities) if len(rows) == len(needed) else (logits[index], probabilities[index])
        drawn, covered = _draw_from_candidates(part, p, rules.rows(index), width)
        tokens[index] = drawn
        following = WIDTHS[WIDTHS.index(width) + 1] if width != WIDTHS[-1] else 0
        for row, done in zip(rows, covered.tolist(), strict=True):
            needed[row] = width if done else following
    rows = [i for i, w in enumerate(needed) if w == 0]
    if rows:
        tokens[torch.tensor(rows, device=logits.device)] = _draw_from_all(logits, probabilities, rules, rows)
    return tokens, needed


def _draw_from_candidates(logits: Tensor, probabilities: Tensor, rules: Rules, width: int) -> tuple[Tensor, Tensor]:
    """(tokens, whether the ``width`` most likely tokens held the whole nucleus) per row."""
    values, ids = _top(logits, width)
    width = values.shape[1]
    mass = probabilities.gather(1, ids).double().cumsum(1)
    # Tokens before the one that crosses top_p: their mass is still below it. The crossing token stays.
    crossing = (mass < rules.top_p.unsqueeze(1)).sum(1)
    rank = torch.minimum(crossing, (rules.top_k - 1).clamp(max=width).long())
    cutoff = values.gather(1, rank.clamp(max=width - 1).unsqueeze(1))
    # Where few tokens are allowed, the last candidates are excluded ones, and so is everything behind them.
    last = values[:, -1:]
    covered = ((cutoff > last) | (last == float("-inf"))).squeeze(1) if width < logits.shape[1] else torch.ones_like(rank, dtype=torch.bool)
    kept = int((values >= cutoff).sum(1).max())
    ids, order = ids[:, :kept].sort(1)
    values = values[:, :kept].gather(1, order)
    weights = _tempered(values, values.amax(1, keepdim=True), rules) * _keep(values, cutoff, rules.top_k)
    return ids.gather(1, _pick(weights, rules.u).unsqueeze(1)).squeeze(1), covered


def _top(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` largest values of each row and their ids, largest first.

    They all lie in the ``width`` groups with the largest maxima, so only those groups are searched.
    """
    rows, vocab = logits.shape
    group = max(1, int((vocab / width) ** 0.5))
    if vocab % group or vocab // group <= width:
        return logits.topk(min(width, vocab), 1)
    stride = vocab // group
    best = logits.view(rows, group, stride).amax(1).topk(width, 1, sorted=False).indices
    ids = (best.unsqueeze(1) + torch.arange(0, vocab, stride, device=logits.device).view(1, group, 1)).view(rows, -1)
    values, position = logits.gather(1, ids).topk(width, 1)
    return values, ids.gather(1, position)


def _draw_from_all(logits: Tensor, probabilities: Tensor, rules: Rules, rows: list[int]) -> Tensor:
    """For flat rows. One row at a time: its temporaries stay in the cache."""
    drawn = []
    for row in rows:
        part = slice(row, row + 1)
        one = Rules(rules.temperature[part], rules.top_p[part], rules.top_k[part], rules.u[part])
        values, p = logits[part], probabilities[part]
        cutoff = _cutoff(values[0], p[0], float(one.top_p), float(one.top_k)).view(1, 1)
        weights = p if float(one.temperature) == 1 else _tempered(values, values.amax(1, keepdim=True), one)
        drawn.append(_pick(weights * _keep(values, cutoff, one.top_k), one.u))
    return torch.cat(drawn)


def _cutoff(logits: Tensor, probabilities: Tensor, top_p: float, top_k: float) -> Tensor:
    """The lowest logit of [V] that stays: from a histogram of the mass over the logits, then from the bin it falls into."""
    cutoff = torch.full((), float("-inf"), dtype=logits.dtype, device=logits.device)
    bins = (logits.max() - logits).mul_(_BINS_PER_NAT).clamp_(max=_BINS - 1).to(torch.int64)
    mass = torch.zeros(_BINS, dtype=torch.float64, device=logits.device).scatter_add_(0, bins, probabilities.double()).cumsum(0)
    crossing = int((mass < top_p).sum())
    if crossing < _BINS:
        inside = torch.nonzero(bins == crossing).flatten()
        values, order = logits[inside].sort(descending=True)
        before = mass[crossing - 1] if crossing else 0.0
        share = before + probabilities[inside[order]].double().cumsum(0)
        cutoff = values[min(int((share < top_p).sum()), len(inside) - 1)]
    if top_k < len(logits):
        cutoff = torch.maximum(cutoff, logits.topk(int(top_k)).values[-1])
    return cutoff


def _keep(values: Tensor, cutoff: Tensor, top_k: Tensor) -> Tensor:
    """Which of ``values`` [n, M], in the order of their ids, stay: those above the cutoff, and equals as far as top_k has room."""
    if bool(torch.isinf(top_k).all()):
        return values >= cutoff
    above = values > cutoff
    equal = values == cutoff
    room = top_k.unsqueeze(1) - above.sum(1, keepdim=True)
    return above | (equal & (equal.cumsum(1) <= room))


def _tempered(logits: Tensor, top: Tensor, rules: Rules) -> Tensor:
    temperature = rules.temperature.clamp(min=_LEAST_TEMPERATURE).unsqueeze(1).to(logits.dtype)
    return ((logits - top) / temperature).exp_()


def _pick(weights: Tensor, u: Tensor) -> Tensor:
    """The index per row [n, M] at which the running sum of the weights passes ``u`` times their total."""
    rows, count = weights.shape
    if count < _TWO_LEVELS_FROM:
        return _pick_flat(weights.double().cumsum(1), u)[0]
    spans = F.pad(weights, (0, -count % _SPAN)).view(rows, -1, _SPAN)
    sums = spans.sum(2).double().cumsum(1)
    span, rest = _pick_flat(sums, u)
    inner = spans[torch.arange(rows, device=weights.device), span].double().cumsum(1)
    return span * _SPAN + _pick_flat(inner, None, rest)[0]


def _pick_flat(running: Tensor, u: Tensor | None, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(first index whose running sum is above the target, what of the target lies inside that entry)."""
    total = running[:, -1]
    if target is None:
        assert u is not None
        target = u * total
    # Rounding must not push the target to the very end, where no entry is left that has any weight.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    index = (running <= target.unsqueeze(1)).sum(1)
    before = torch.where(index > 0, running.gather(1, (index - 1).clamp(min=0).unsqueeze(1)).squeeze(1), torch.zeros_like(total))
    return index, target - before
