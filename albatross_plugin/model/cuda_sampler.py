"""CudaSampler: the sampling tables of all slots on the card, and the one kernel that draws, adjusts and records."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from albatross_plugin.engine.messages import TokenLogprobs
from albatross_plugin.engine.request import END_OF_TEXT, MAX_LOGPROBS, Request, SamplingParams
from albatross_plugin.model.kernels import ops as load_kernels
from albatross_plugin.model.penalties import NEVER, UNCOUNTED
from albatross_plugin.model.sampler import NOT_FINITE, NOTHING_ALLOWED

# SampleFlags in kernels/csrc/launch.h.
_GREEDY, _LOGPROBS, _PENALISED, _TOUCHED, _GRAMMAR = 1, 2, 4, 8, 16
_FLAGS_COLUMN = 1
# More would need pieces of pinned memory that are larger than those that are kept from the start.
MASKS_PER_UPLOAD = 32
_COLUMNS = 8
_FAILURES = ("", NOT_FINITE, NOTHING_ALLOWED)
_WORD = (1 << 32) - 1
_LARGEST = (1 << 31) - 1


def _words(vocab: int) -> int:
    return -(-vocab // 32)


def sampler_bytes(rows: int, vocab: int) -> int:
    """What a CudaSampler of this size keeps on the card."""
    per_row = 2 * 4 * _COLUMNS + 2 * 4 * vocab + 4 * 4 * _words(vocab)
    return rows * per_row + 3 * 4 * _words(vocab)


class CudaSampler:
    """``rows`` slots over ``vocab`` tokens, of which only those below ``limit`` may be produced; the last slot is scratch.

    Semantics as of Sampler, but for the generator: a token is drawn as the maximum of logit / temperature + Gumbel noise that
    depends on (seed, step, token) alone. Everything that writes here is queued on the current stream and waits for nothing,
    so it may be called while steps that use the tables are still queued. Raises DeviceError where the kernels do not load.
    """

    def __init__(self, rows: int, vocab: int, limit: int, device: torch.device) -> None:
        self._ops = load_kernels()
        self._device = device
        self._scratch = rows - 1
        self._vocab, self._limit = vocab, min(limit, vocab)
        words = _words(vocab)
        self._numbers = torch.zeros(rows, _COLUMNS, device=device)
        self._settings = torch.zeros(rows, _COLUMNS, dtype=torch.int32, device=device)
        self._bias = torch.zeros(rows, vocab, device=device)
        self._counts = torch.zeros(rows, vocab, device=device)
        self._touched, self._seen, self._allowed, self._grammar = (
            torch.zeros(rows, words, dtype=torch.int32, device=device) for _ in range(4)
        )
        # What may be produced by a request without bans: with and without the end of the text.
        self._open = [_pack(range(self._limit), words), _pack(range(self._limit), words)]
        self._open[1][END_OF_TEXT // 32] &= ~(1 << END_OF_TEXT % 32)
        self._open_masks = torch.stack([self._upload(mask) for mask in self._open])
        self._uncounted = self._upload(_pack([token for token in UNCOUNTED if token < vocab], words))
        self._flags = [0] * rows
        self._wanting: set[int] = set()

    @property
    def memory_bytes(self) -> int:
        tables = (self._numbers, self._settings, self._bias, self._counts, self._touched, self._seen, self._allowed, self._grammar)
        return sum(t.numel() * t.itemsize for t in (*tables, self._open_masks, self._uncounted))

    def admit(self, slot: int, request: Request) -> None:
        """Write the slot's row. Without a seed the request gets a random one here, once."""
        self.admit_many([(slot, request)])

    def admit_many(self, admissions: Sequence[tuple[int, Request]]) -> None:
        """Write the rows of several slots, all different: one upload, and one operation per table."""
        if not admissions:
            return
        count = len(admissions)
        numbers, integers = array("f"), array("I", [slot for slot, _ in admissions])
        integers.extend(int(request.params.ignore_eos) for _, request in admissions)
        for slot, request in admissions:
            self._write_row(slot, request.params, numbers, integers)
        block = self._upload(integers, numbers)
        index = block[: 2 * count].long()
        slots, kinds = index[:count], index[count:]
        for table in (self._bias, self._counts, self._touched, self._seen):
            table.index_fill_(0, slots, 0)
        self._allowed.index_copy_(0, slots, self._open_masks.index_select(0, kinds))
        settings, written = block[2 * count :].view(2, count, _COLUMNS).unbind()
        self._settings.index_copy_(0, slots, settings)
        self._numbers.index_copy_(0, slots, written.view(torch.float32))
        for slot, request in admissions:
            if request.params.logit_bias or request.params.global_penalty:
                self._write_tokens(slot, request.params, request.prompt_ids)

    def sample(self, logits: Tensor, slots: Tensor, last: Tensor, results: Tensor, tops: Tensor) -> None:
        """Draw a token for each row of ``logits`` [B, V] float32 and record it; row i belongs to slot ``slots[i]``, int32 [B].

        Writes ``last`` int32 [rows] at the slots, ``results`` int32 [B or more, 4] and, for rows that want log-probabilities, ``tops``
        int32 [B or more, 2, 20]; ``read`` understands them. The logits stay as they are. One launch, which a graph can hold.
        """
        rows = logits.shape[0]
        self._ops.sample(
            logits,
            slots,
            self._numbers,
            self._settings,
            self._bias,
            self._counts,
            self._touched,
            self._seen,
            self._allowed,
            self._grammar,
            self._uncounted,
            last,
            results[:rows],
            tops[:rows],
            self._scratch,
        )

    def set_masks(self, allowed: Mapping[int, bytes]) -> None:
        """Bind slots to bitmasks (see StepPlan) for the next token that each of them draws, and for that one only."""
        every = list(allowed)
        for first in range(0, len(every), MASKS_PER_UPLOAD):
            slots = every[first : first + MASKS_PER_UPLOAD]
            flags = [self._flags[slot] | _GRAMMAR for slot in slots]
            masks = array("I")
            masks.frombytes(b"".join(allowed[slot] for slot in slots))
            block = self._upload(array("I", slots + flags), masks)
            index = block[: len(slots)].long()
            self._grammar.index_copy_(0, index, block[2 * len(slots) :].view(len(slots), -1))
            self._settings[:, _FLAGS_COLUMN].index_copy_(0, index, block[len(slots) : 2 * len(slots)])

    @property
    def upload_bytes(self) -> int:
        """The most that goes to the card at once while requests run."""
        return 4 * MASKS_PER_UPLOAD * (2 + _words(self._vocab))

    def wants_logprobs(self, slots: Sequence[int]) -> bool:
        """Whether ``tops`` of a step with these slots will be asked for by ``read``."""
        return bool(self._wanting) and not self._wanting.isdisjoint(slots)

    def read(
        self, results: Tensor, tops: Tensor | None, slots: Sequence[int]
    ) -> tuple[list[int], dict[int, str], dict[int, TokenLogprobs]]:
        """(tokens, failures by slot, log-probabilities by slot) from copies of what ``sample`` wrote, on the host."""
        tokens, statuses, _, wanted = results.t().tolist()
        failures = {slots[i]: _FAILURES[status] for i, status in enumerate(statuses) if status} if any(statuses) else {}
        logprobs = {}
        if any(wanted):
            numbers = results[:, 2].view(torch.float32).tolist()
            for i, more in enumerate(wanted):
                if more and not statuses[i]:
                    top = _alternatives(tops[i], more - 1) if tops is not None else ()
                    logprobs[slots[i]] = TokenLogprobs(tokens[i], numbers[i], top)
        return tokens, failures, logprobs

    def _write_row(self, slot: int, params: SamplingParams, numbers: array[float], integers: array[int]) -> None:
        """Append the slot's row of numbers, and its row of settings."""
        seed = secrets.randbits(64) if params.seed is None else params.seed
        flags = _GREEDY if params.greedy else 0
        if params.logprobs is not None:
            flags |= _LOGPROBS
            self._wanting.add(slot)
        else:
            self._wanting.discard(slot)
        if params.presence_penalty or params.frequency_penalty:
            flags |= _PENALISED
        if params.logit_bias:
            flags |= _TOUCHED
        self._flags[slot] = flags
        penalties = (params.presence_penalty, params.frequency_penalty, params.penalty_decay, 1.0)
        numbers.extend((params.temperature, params.top_p, *penalties, 0.0, 0.0))
        top_k, wanted = min(params.top_k, _LARGEST), min(params.logprobs or 0, MAX_LOGPROBS)
        integers.extend((top_k, flags, wanted, 0, seed & _WORD, seed >> 32 & _WORD, self._limit, 0))

    def _write_tokens(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """What is special about single tokens: bias, bans, and the prompt's part in the penalties."""
        bias = dict(params.logit_bias)
        banned = {token for token, value in bias.items() if value <= NEVER}
        if params.ignore_eos:
            banned.add(END_OF_TEXT)
        counts = _count_prompt(prompt, params.penalty_decay) if params.global_penalty else {}
        for token in banned & bias.keys():
            bias[token] = 0.0
        for token in counts:
            bias[token] = bias.get(token, 0.0) - params.presence_penalty
        words = _words(self._vocab)
        if banned:
            mask = self._open[0][:]
            for token in banned:
                mask[token // 32] &= ~(1 << token % 32)
            self._allowed[slot].copy_(self._upload(mask), non_blocking=True)
        self._touched[slot].copy_(self._upload(_pack(bias, words)), non_blocking=True)
        if counts:
            self._seen[slot].copy_(self._upload(_pack(counts, words)), non_blocking=True)
            self._scatter(self._counts[slot], counts)
        self._scatter(self._bias[slot], bias)

    def _scatter(self, row: Tensor, values: Mapping[int, float]) -> None:
        block = self._upload(array("I", values), array("f", values.values()))
        row.index_copy_(0, block[: len(values)].long(), block[len(values) :].view(torch.float32))

    def _upload(self, *parts: array[int] | array[float]) -> Tensor:
        """The parts one after another as int32 on the card; torch keeps the pinned memory until the copy has run."""
        block = torch.frombuffer(bytearray().join(part.tobytes() for part in parts), dtype=torch.int32)
        if self._device.type == "cuda":
            block = block.pin_memory()
        return block.to(self._device, non_blocking=True)


def _pack(tokens: range | Sequence[int] | Mapping[int, float], words: int) -> array[int]:
    """A bitmask of these tokens: bit ``i % 32`` of word ``i // 32`` for token i."""
    if isinstance(tokens, range):
        whole = (1 << len(tokens)) - 1
        return array("I", whole.to_bytes(4 * words, "little"))
    mask = array("I", bytes(4 * words))
    for token in tokens:
        mask[token // 32] |= 1 << token % 32
    return mask


def _count_prompt(prompt: Sequence[int], decay: float) -> dict[int, float]:
    """How much each token of the prompt counts towards the frequency: once per occurrence, less with its age."""
    counts: dict[int, float] = {}
    weight = 1.0
    for token in reversed(prompt):
        counts[token] = counts.get(token, 0.0) + (0.0 if token in UNCOUNTED else weight)
        weight *= decay
    return counts


def _alternatives(tops: Tensor, wanted: int) -> tuple[tuple[int, float], ...]:
    """From one row of ``tops`` [2, 20]; there are fewer than wanted where the vocabulary is that small."""
    ids, values = tops[0, :wanted].tolist(), tops[1, :wanted].view(torch.float32).tolist()
    return tuple((token, value) for token, value in zip(ids, values, strict=True) if token >= 0)
