"""Which request does what in the next step. Pure bookkeeping: no clock, no thread, no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.messages import Event, Failed, Finished, PromptLogprobs, Started, TokenLogprobs, Tokens
from albatross_plugin.engine.request import FinishReason, Request
from albatross_plugin.engine.sequence import Category, Sequence
from albatross_plugin.engine.slots import Slots
from albatross_plugin.engine.step import Admission, Chunk, StepPlan, StepResult
from albatross_plugin.engine.waiting import WaitingQueue


@dataclass(frozen=True)
class _Flight:
    """Who took part in a planned step. Results go to these objects, never to whoever holds the slot by then."""

    rows: dict[int, Sequence]
    sampled: list[Sequence]
    admitted: list[Sequence]


def fair_shares(wants: list[int], budget: int) -> list[int]:
    """Split ``budget`` over ascending ``wants``: nobody gets more than wanted, what is left goes to the larger ones."""
    shares = []
    for index, want in enumerate(wants):
        share = min(want, budget // (len(wants) - index))
        shares.append(share)
        budget -= share
    return shares


class Scheduler:
    """Slots and queue of one worker.

    ``plan`` may be called again before earlier plans were applied: a row in flight is then continued from the
    token that the device still holds. A sequence is never planned past ``max_tokens``, and frees its slot as soon
    as its last token is planned; a stop that is seen late costs one token, which is dropped. Every added request
    ends in exactly one Finished or Failed among the events that the methods return.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._waiting = WaitingQueue()
        self._slots = Slots(config.batch)
        self._open: dict[int, Sequence] = {}
        self._flights: dict[int, _Flight] = {}
        self._step = 0
        self._since_prefill = config.decode_prefill_ratio

    @property
    def busy(self) -> bool:
        """Whether some request has not ended yet."""
        return bool(self._open)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def free_slots(self) -> int:
        return self._slots.free

    def categories(self) -> list[Category]:
        """What each slot would do in the next step, by slot number."""
        decoding = any(s.category(True, True, 1) is Category.DECODE for s in self._slots.held)
        due, length = self._due(decoding), self._config.min_forward_seq_len
        return [Category.EMPTY if s is None else s.category(decoding, due, length) for s in self._slots.by_number()]

    def add(self, request: Request) -> None:
        assert request.request_id not in self._open, f"request {request.request_id} was added twice"
        sequence = Sequence(request)
        self._open[request.request_id] = sequence
        self._waiting.add(sequence)

    def abort(self, request_ids: Iterable[int]) -> list[Event]:
        """End these at once, wherever they are; ids that are unknown or have ended are passed over."""
        sequences = (self._open.get(request_id) for request_id in request_ids)
        return [self._finish(sequence, FinishReason.ABORT) for sequence in sequences if sequence is not None]

    def plan(self) -> StepPlan | None:
        """The next step, or None when there is nothing to compute before more results or requests arrive."""
        decode = [s for s in self._slots.held if s.category(True, True, 1) is Category.DECODE]
        admitted = self._admit(self._config.admissions_per_step if decode else self._slots.free)
        fed = self._choose_chunks(bool(decode))
        if not decode and not fed:
            return None
        plan = StepPlan(step=self._step, decode=[_slot(s) for s in decode])
        plan.admit.extend(Admission(_slot(s), s.request) for s in admitted)
        rows = {_slot(s): s for s in decode}
        sampled = list(decode)
        for sequence, count in fed:
            chunk = Chunk(_slot(sequence), sequence.feed(count, self._step), sequence.remaining == 0)
            plan.prefill.append(chunk)
            rows[chunk.slot] = sequence
            if chunk.final:
                sampled.append(sequence)
        for sequence in sampled:
            sequence.planned += 1
            if sequence.exhausted:
                self._slots.give(_slot(sequence))
        self._flights[self._step] = _Flight(rows, sampled, admitted)
        self._step += 1
        return plan

    def _admit(self, limit: int) -> list[Sequence]:
        """Give up to ``limit`` waiting sequences a slot each."""
        admitted: list[Sequence] = []
        while len(admitted) < limit and self._slots.free and self._waiting:
            sequence = self._waiting.pop()
            sequence.slot = self._slots.take(sequence)
            sequence.last_fed = self._step
            admitted.append(sequence)
        return admitted

    def _due(self, decoding: bool) -> bool:
        return not decoding or self._since_prefill >= self._config.decode_prefill_ratio

    def _choose_chunks(self, decoding: bool) -> list[tuple[Sequence, int]]:
        """(sequence, tokens to feed) in row order: single tokens first, then the pieces of long prompts.

        Shares are equal as far as each can use them, so a short prompt never waits for a long one. With more
        prompts than tokens in the budget, those that were fed longest ago go first: all of them make progress.
        """
        due, limit = self._due(decoding), self._config.chunk_limit(decoding)
        budget, wants = self._config.pass_budget, []
        for sequence in self._slots.held:
            category = sequence.category(decoding, due, self._config.min_forward_seq_len)
            if category in (Category.ONE_PREFILL, Category.SEQ_PREFILL):
                want = 1 if category is Category.ONE_PREFILL else min(sequence.remaining, limit)
                wants.append((category, want, sequence))
        if len(wants) > budget:
            wants = sorted(wants, key=lambda item: item[2].last_fed)[:budget]
        wants.sort(key=lambda item: item[1])
        shares = fair_shares([want for _, want, _ in wants], budget)
        chosen = sorted((category, _slot(sequence), share) for (category, _, sequence), share in zip(wants, shares, strict=True))
        if decoding:
            fed_long = any(category is Category.SEQ_PREFILL for category, _, _ in chosen)
            self._since_prefill = 0 if fed_long else self._since_prefill + 1
        return [(self._slots[slot], share) for _, slot, share in chosen]

    def apply(self, result: StepResult) -> list[Event]:
        """Credit a step's tokens to the requests that were planned for them, and end those that are complete."""
        flight = self._flights.pop(result.step)
        events: list[Event] = [Started(s.request.request_id) for s in flight.admitted if not s.ended]
        ends: list[Event] = []
        for slot, message in result.failures.items():
            if not flight.rows[slot].ended:
                ends.append(self._fail(flight.rows[slot], message, 500))
        events += self._prompt_logprobs(flight, result)
        tokens = Tokens([], [])
        numbers: list[TokenLogprobs | None] = []
        for sequence, token in zip(flight.sampled, result.tokens, strict=True):
            if sequence.ended:
                continue
            tokens.request_ids.append(sequence.request.request_id)
            tokens.token_ids.append(token)
            if result.logprobs:
                numbers.append(result.logprobs.get(_slot(sequence)))
            reason = sequence.take(token)
            if reason is not None:
                ends.append(self._finish(sequence, reason))
        if tokens.request_ids:
            events.append(Tokens(tokens.request_ids, tokens.token_ids, numbers or None))
        return events + ends

    def _prompt_logprobs(self, flight: _Flight, result: StepResult) -> list[Event]:
        for slot, entries in (result.prompt_logprobs or {}).items():
            flight.rows[slot].prompt_entries.extend(entries)
        events: list[Event] = []
        for sequence in flight.sampled:
            if sequence.request.params.prompt_logprobs and sequence.sampled == 0 and not sequence.ended:
                events.append(PromptLogprobs(sequence.request.request_id, tuple(sequence.prompt_entries)))
                sequence.prompt_entries.clear()
        return events

    def fail_step(self, plan: StepPlan, message: str) -> list[Event]:
        """A step could not be run: its requests fail (500), nobody else does."""
        flight = self._flights.pop(plan.step)
        concerned = dict.fromkeys([*flight.rows.values(), *flight.admitted])
        return [self._fail(sequence, message, 500) for sequence in concerned if not sequence.ended]

    def fail_all(self, message: str, status: int = 503) -> list[Event]:
        """End every request, waiting or running; steps in flight are forgotten."""
        return [self._fail(sequence, message, status) for sequence in list(self._open.values())]

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Event:
        self._end(sequence)
        request = sequence.request
        return Finished(request.request_id, reason, len(request.prompt_ids), sequence.sampled)

    def _fail(self, sequence: Sequence, message: str, status: int) -> Event:
        self._end(sequence)
        return Failed(sequence.request.request_id, message, status)

    def _end(self, sequence: Sequence) -> None:
        sequence.ended = True
        del self._open[sequence.request.request_id]
        if sequence.slot is None:
            self._waiting.remove(sequence)
            return
        if not sequence.exhausted:
            self._slots.give(sequence.slot)
        self._slots.forget(sequence.slot, sequence)


def _slot(sequence: Sequence) -> int:
    assert sequence.slot is not None
    return sequence.slot
