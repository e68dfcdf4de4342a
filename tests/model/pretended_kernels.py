"""The operators of kernels/csrc/ops.cpp as torch formulas on the CPU: float32 arithmetic, and outputs changed in place.

What ops.cpp checks is checked here too. What a kernel leaves open is filled with NaN, so that nobody may rely on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HEAD = 64
DECAY_SCALE = -0.606531
CANDIDATES = 2
GREEDY, LOGPROBS, PENALISED, TOUCHED, GRAMMAR = 1, 2, 4, 8, 16
TOPS = 20
NAN, INF = float("nan"), float("inf")
HALF, FLOAT, INT = torch.float16, torch.float32, torch.int32

ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [lambda x: x, torch.tanh, torch.sigmoid, lambda x: torch.relu(x).square()]


def check(tensor: Tensor, kind: torch.dtype, *shape: int) -> None:
    assert tensor.dtype == kind and tuple(tensor.shape) == shape, (tensor.dtype, tensor.shape, kind, shape)
    assert tensor.is_contiguous() and tensor.data_ptr() % 16 == 0, (tensor.stride(), tensor.data_ptr() % 16)


def queued(body: Callable[..., None]) -> Callable[..., None]:
    """An operator that only queues its work, which a capture may keep for later."""

    @functools.wraps(body)
    def call(self: Kernels, *arguments: Any) -> None:
        self._queue(functools.partial(body, self, *arguments))

    return call


class Kernels:
    """Stands for torch.ops.albatross_rwkv7. ``queue`` runs what it is given, now or whenever the card does."""

    def __init__(self, queue: Callable[[Callable[[], None]], None]) -> None:
        self._queue = queue

    def build_info(self) -> str:
        return "pretended"

    @queued
    def embed(self, table: Tensor, ids: Tensor, last: Tensor, x: Tensor) -> None:
        check(ids, INT, x.shape[0])
        check(x, HALF, x.shape[0], table.shape[1])
        check(last, INT, last.shape[0])
        rows = ids.long()
        rows = torch.where(rows < 0, last[(-1 - rows).clamp(min=0)].long(), rows)
        rows[(rows < 0) | (rows >= table.shape[0])] = 0
        x.copy_(table[rows])

    @queued
    def mix(
        self,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        mu: Tensor,
        shift: Tensor,
        slots: Tensor,
        starts: Tensor | None,
        token_row: Tensor | None,
        tail: Tensor | None,
        out: Tensor,
        eps: float,
    ) -> None:
        tokens, width = x.shape
        check(x, HALF, tokens, width)
        check(mu, HALF, mu.shape[0], width)
        check(shift, HALF, shift.shape[0], width)
        check(slots, INT, slots.shape[0])
        check(out, HALF, mu.shape[0], tokens, width)
        xn = _norm(x, gamma, beta, eps)
        end = tokens
        if starts is None or token_row is None or tail is None:
            assert starts is None and token_row is None and tail is None and len(slots) == tokens
            previous = shift[slots.long()]
            shift.index_copy_(0, slots.long(), xn)
        else:
            check(starts, INT, len(slots) + 1)
            check(token_row, INT, tokens)
            check(tail, HALF, len(slots), width)
            previous = torch.cat((xn[:1], xn[:-1]))
            end = int(starts[-1])
            for row, (slot, first, last) in enumerate(zip(slots.tolist(), starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
                if first < last:
                    assert set(token_row[first:last].tolist()) == {row}
                    previous[first] = shift[slot]
                    tail[row] = xn[last - 1]
                else:
                    tail[row] = NAN
        now = xn.float()
        out.copy_(now + (previous.float() - now) * mu.float()[:, None])
        out[:, end:] = NAN

    @queued
    def commit(self, tail: Tensor, slots: Tensor, shift: Tensor) -> None:
        check(tail, HALF, len(slots), shift.shape[1])
        shift.index_copy_(0, slots.long(), tail)

    @queued
    def layer_norm(self, x: Tensor, index: Tensor | None, gamma: Tensor, beta: Tensor, out: Tensor, eps: float) -> None:
        check(out, HALF, out.shape[0], x.shape[1])
        if index is None:
            assert len(x) == len(out)
        else:
            check(index, INT, len(out))
            x = x[index.long()]
        out.copy_(_norm(x, gamma, beta, eps))

    @queued
    def relu_square(self, h: Tensor) -> None:
        check(h, HALF, *h.shape)
        h.copy_(torch.relu(h.float()).square())

    @queued
    def wkv(
        self,
        state: Tensor,
        slots: Tensor,
        starts: Tensor | None,
        r: Tensor,
        k: Tensor,
        v: Tensor,
        w_up: Tensor,
        a_up: Tensor,
        v_up: Tensor | None,
        g: Tensor,
        v_first: Tensor,
        w0: Tensor,
        a0: Tensor,
        v0: Tensor | None,
        k_k: Tensor,
        k_a: Tensor,
        r_k: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        out: Tensor,
        scratch: int,
    ) -> None:
        tokens, width = r.shape
        heads = width // HEAD
        for tensor in (r, k, v, w_up, a_up, g, v_first, out):
            check(tensor, HALF, tokens, width)
        check(state, state.dtype, state.shape[0], heads, HEAD, HEAD)
        if starts is None:
            assert len(slots) == tokens
        bounds = list(range(tokens + 1)) if starts is None else starts.tolist()
        # The longest rows first, so that those still running at any time come first too.
        rows = [(last - first, first, slot) for slot, first, last in zip(slots.tolist(), bounds[:-1], bounds[1:], strict=True)]
        rows = sorted((row for row in rows if row[0] and row[2] != scratch), reverse=True)
        if not rows:
            return
        live = torch.tensor([slot for _, _, slot in rows])
        assert len(live) == len(live.unique()), "two rows of one slot"
        at = torch.tensor([token for length, first, _ in rows for token in range(first, first + length)])

        def part(tensor: Tensor) -> Tensor:
            return tensor[at].float()

        value = part(v)
        if v_up is None or v0 is None:
            assert v_up is None and v0 is None
            v_first[at] = v[at]
        else:
            value += (part(v_first) - value) * torch.sigmoid(v0.float() + part(v_up))
        decay = torch.exp(DECAY_SCALE * torch.sigmoid(w0.float() + part(w_up)))
        rate = torch.sigmoid(a0.float() + part(a_up))
        key = part(k)
        kk = F.normalize((key * k_k.float()).view(-1, heads, HEAD), dim=-1, eps=1e-12)
        key = (key * (1 + (rate - 1) * k_a.float())).view_as(kk)
        read, value, decay, b = part(r).view_as(kk), value.view_as(kk), decay.view_as(kk), kk * rate.view_as(kk)
        here, place = state[live].float(), 0
        firsts = []
        for length, _, _ in rows:
            firsts.append(place)
            place += length
        y = torch.empty_like(read)
        for time in range(rows[0][0]):
            now = torch.tensor([first + time for first, row in zip(firsts, rows, strict=True) if row[0] > time])
            old = here[: len(now)]
            removed = old @ kk[now].unsqueeze(-1)
            old = old * decay[now].unsqueeze(-2) - removed * b[now].unsqueeze(-2) + value[now].unsqueeze(-1) * key[now].unsqueeze(-2)
            here[: len(now)] = old
            y[now] = (old @ read[now].unsqueeze(-1)).squeeze(-1)
        state[live] = here.to(state.dtype)
        bonus = (read * key * r_k.float()).sum(-1, keepdim=True) * value
        normal = F.group_norm(y.view(-1, width), heads, ln_weight.float(), ln_bias.float(), 64e-5)
        out[at] = ((normal + bonus.view(-1, width)) * part(g)).to(HALF)

    @queued
    def gemv(self, weights: Sequence[Tensor], inputs: Sequence[Tensor], outputs: Sequence[Tensor], acts: list[int], add: bool) -> None:
        assert len(inputs[0]) <= 8
        _grouped(weights, inputs, outputs, acts, add, 8, 1)

    @queued
    def grouped_gemm(
        self, weights: Sequence[Tensor], inputs: Sequence[Tensor], outputs: Sequence[Tensor], acts: list[int], add: bool
    ) -> None:
        _grouped(weights, inputs, outputs, acts, add, 32, 8)

    def sparse_partials(self, rows: int, inputs: int, outputs: int) -> int:
        assert 1 <= rows <= 4
        return rows * outputs * 4

    @queued
    def sparse_linear(self, h: Tensor, weight: Tensor, x: Tensor, partial: Tensor, counters: Tensor) -> None:
        inputs, outputs = weight.shape
        check(h, HALF, len(h), inputs)
        check(x, HALF, len(h), outputs)
        assert partial.numel() >= self.sparse_partials(len(h), inputs, outputs) and counters.numel() >= outputs // 64
        assert not counters.any()
        used = (h != 0).any(0)
        x += (h[:, used].float() @ weight[used].float()).to(HALF)

    def matmul_candidates(
        self, input: Tensor, weight: Tensor, transposed: bool, output: Tensor, beta: float, workspace: Tensor, most: int
    ) -> int:
        _check_product(input, weight, transposed, output)
        return min(most, CANDIDATES)

    @queued
    def matmul(self, input: Tensor, weight: Tensor, transposed: bool, output: Tensor, beta: float, workspace: Tensor, choice: int) -> None:
        _check_product(input, weight, transposed, output)
        assert 0 <= choice < CANDIDATES
        workspace[:1] = choice
        product = input.float() @ (weight.float() if transposed else weight.float().mT)
        output.copy_(product + output.float() * beta if beta else product)

    @queued
    def sample(
        self,
        logits: Tensor,
        slots: Tensor,
        numbers: Tensor,
        settings: Tensor,
        bias: Tensor,
        counts: Tensor,
        touched: Tensor,
        seen: Tensor,
        allowed: Tensor,
        grammar: Tensor,
        uncounted: Tensor,
        last: Tensor,
        results: Tensor,
        tops: Tensor,
        scratch: int,
    ) -> None:
        rows, vocab = logits.shape
        pool, words = len(numbers), -(-vocab // 32)
        check(logits, FLOAT, rows, vocab)
        check(slots, INT, rows)
        check(numbers, FLOAT, pool, 8)
        check(settings, INT, pool, 8)
        for table in (bias, counts):
            check(table, FLOAT, pool, vocab)
        for mask in (touched, seen, allowed, grammar):
            check(mask, INT, pool, words)
        check(uncounted, INT, words)
        check(last, INT, pool)
        check(results, INT, rows, 4)
        check(tops, INT, rows, 2, TOPS)
        for row, slot in enumerate(slots.tolist()):
            if slot == scratch:
                results[row] = 0
                continue
            top_k, flags, wanted, step, low, high, limit, _ = settings[slot].tolist()
            temperature, top_p, presence, frequency, decay, scale, _, _ = numbers[slot].tolist()
            x = logits[row].clone()
            if flags & (PENALISED | TOUCHED):
                x += _bits(touched[slot], vocab) * (bias[slot] - frequency * scale * counts[slot])
            opened = _bits(allowed[slot] & grammar[slot] if flags & GRAMMAR else allowed[slot], vocab)
            x.masked_fill_(~opened, -INF)
            token, status, logprob = 0, 0, 0.0
            if not bool((x < INF).all()):
                status = 1
            elif float(x.max()) == -INF:
                status = 1 if bool(opened.any()) else 2
            if not status:
                token = int(x.argmax()) if flags & GREEDY else _draw(x, temperature, top_p, top_k, hash((low, high, step)))
                if flags & LOGPROBS:
                    shares = logits[row].log_softmax(0)
                    logprob = float(shares[token])
                    _write_tops(tops[row], shares[:limit], wanted)
                if flags & PENALISED:
                    scale *= decay
                    word, bit = token // 32, torch.tensor(1, dtype=INT) << token % 32
                    if frequency:
                        if not bool(uncounted[word] & bit):
                            counts[slot, token] += 1 / scale
                        numbers[slot, 5] = scale
                    if not bool(seen[slot, word] & bit):
                        bias[slot, token] -= presence
                        seen[slot, word] |= bit
                    touched[slot, word] |= bit
            settings[slot, 1] = flags & ~GRAMMAR
            settings[slot, 3] += 1
            last[slot] = token
            bits = int(torch.tensor(logprob).view(INT))
            results[row] = torch.tensor([token, status, bits, 1 + wanted if flags & LOGPROBS else 0], dtype=INT)


def _norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x.float(), (x.shape[-1],), gamma.float(), beta.float(), eps).to(HALF)


def _grouped(
    weights: Sequence[Tensor], inputs: Sequence[Tensor], outputs: Sequence[Tensor], acts: list[int], add: bool, most_in: int, most_out: int
) -> None:
    assert 1 <= len(weights) <= 8
    # All groups run at once: none may read what another writes.
    results = []
    for weight, x, out, act in zip(weights, inputs, outputs, acts, strict=True):
        assert weight.shape[1] % most_in == 0 and weight.shape[0] % most_out == 0 and not (add and act)
        check(weight, HALF, *weight.shape)
        check(x, HALF, len(inputs[0]), weight.shape[1])
        check(out, outputs[0].dtype, len(x), weight.shape[0])
        results.append(ACTIVATIONS[act](x.float() @ weight.float().t()))
    for out, result in zip(outputs, results, strict=True):
        out.copy_(out.float() + result if add else result)


def _check_product(x: Tensor, weight: Tensor, transposed: bool, output: Tensor) -> None:
    *batch, rows, inputs = x.shape
    outputs = weight.shape[-1 if transposed else -2]
    assert len(batch) < 2 and inputs % 8 == 0 and outputs % 8 == 0 and rows > 0
    check(x, HALF, *batch, rows, inputs)
    check(weight, HALF, *batch, *((inputs, outputs) if transposed else (outputs, inputs)))
    check(output, output.dtype, *batch, rows, outputs)
    assert output.dtype in (HALF, FLOAT)


def _bits(mask: Tensor, vocab: int) -> Tensor:
    return (mask.unsqueeze(1) >> torch.arange(32, dtype=INT) & 1).flatten()[:vocab].bool()


def _draw(x: Tensor, temperature: float, top_p: float, top_k: int, seed: int) -> int:
    """Nucleus, then top-k, then temperature; noise that depends on the seed alone."""
    shares, order = x.softmax(0).sort(descending=True, stable=True)
    kept = order[: int((shares.cumsum(0) < top_p).sum()) + 1] if top_p < 1 else order
    kept = kept[:top_k] if top_k else kept
    noise = -torch.rand(len(x), generator=torch.Generator().manual_seed(seed)).log_().neg_().log_()
    return int(kept[(x[kept] / max(temperature, 1e-30) + noise[kept]).argmax()])


def _write_tops(tops: Tensor, shares: Tensor, wanted: int) -> None:
    if wanted:
        tops[0] = -1
        values, ids = shares.sort(descending=True, stable=True)
        count = min(wanted, TOPS, len(ids))
        tops[0, :count] = ids[:count].int()
        tops[1, :count] = values[:count].view(INT)
