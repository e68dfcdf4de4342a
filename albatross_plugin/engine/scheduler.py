"""Which request does what in the next step. Pure bookkeeping: no clock, no thread, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.feeder import Feeder
from albatross_plugin.engine.flight import Flight
from albatross_plugin.engine.group import DecodeGroup, slot_of
from albatross_plugin.engine.masks import Masks
from albatross_plugin.engine.messages import Event, Failed, Finished, PromptLogprobs, TokenLogprobs, Tokens
from albatross_plugin.engine.prefixes import Prefix, Prefixes, kept_in
from albatross_plugin.engine.request import FinishReason, Request
from albatross_plugin.engine.sequence import Category, Sequence
from albatross_plugin.engine.slots import Slots
from albatross_plugin.engine.step import Admission, Chunk, StepPlan, StepResult
from albatross_plugin.engine.waiting import WaitingQueue


class Scheduler:
    """Slots and queue of one worker.

    ``plan`` may be called again before earlier plans were applied: a row in flight is then continued from the
    token that the device still holds. A sequence is never planned past ``max_tokens``, and frees its slot as soon
    as its last token is planned; a stop that is seen late costs one token, which is dropped. A row under a grammar is planned only when its
    last token is known and the mask for the next one is there; until then it sits the steps out. Requests that share a prompt have it fed
    by one of them, where a row is left to keep its state: ``kept`` is the number of these rows. Every added request ends in exactly one
    Finished or Failed among the events that the methods return.
    """

    def __init__(self, config: EngineConfig, kept: int = 0) -> None:
        self._config = config
        self._waiting = WaitingQueue()
        self._slots = Slots(config.batch)
        self._open: dict[int, Sequence] = {}
        self._feeding: set[Sequence] = set()
        self._prefixes = Prefixes(kept, self._feeding)
        self._feeder = Feeder(config, self._feeding, self._prefixes.ahead)
        self._joining: list[Sequence] = []
        self._guided: set[Sequence] = set()
        self._masks = Masks()
        self._group = self._applying = DecodeGroup(())
        self._flights: dict[int, Flight] = {}
        self._step = 0

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
        self._group.settle_planned()
        decoding = any(s.category(True, True, 1) is Category.DECODE for s in self._slots.held)
        due, length = self._feeder.due(decoding), self._config.min_forward_seq_len
        return [Category.EMPTY if s is None else s.category(decoding, due, length) for s in self._slots.by_number()]

    def add(self, request: Request) -> None:
        assert request.request_id not in self._open, f"request {request.request_id} was added twice"
        sequence = Sequence(request)
        self._open[request.request_id] = sequence
        self._prefixes.add(sequence)
        self._waiting.add(sequence)

    def abort(self, request_ids: Iterable[int]) -> list[Event]:
        """End these at once, wherever they are; ids that are unknown or have ended are passed over."""
        sequences = (self._open.get(request_id) for request_id in request_ids)
        return [self._finish(sequence, FinishReason.ABORT) for sequence in sequences if sequence is not None]

    def plan(self) -> StepPlan | None:
        """The next step, or None when there is nothing to compute before more results or requests arrive."""
        group = self._decoding()
        guided = self._with_masks() if self._guided else []
        decoding = bool(group.sequences or guided)
        admitted = self._admit(self._config.admissions_per_step if decoding else self._slots.free) if self._waiting else []
        copied = self._prefixes.copies()
        # A row under a grammar that sits this step out waits for its end all the same.
        chosen = self._feeder.choose(decoding, decoding or bool(self._guided))
        if not decoding and not chosen:
            # With nothing else to do, masks that are worked out aside are what is missing.
            return self.plan() if not self._flights and self._masks.wait() else None
        decode = group.slots + [slot_of(s) for s in guided] if guided else group.slots
        admissions: list[Admission] = [Admission(slot_of(s), s.request) for s in admitted] if admitted else []
        chunks: list[Chunk] = []
        completed: list[Sequence] = []
        kept: list[tuple[Prefix, Sequence]] = []
        if chosen:
            chunks = [Chunk(slot_of(s), s.feed(count, self._step), s.remaining == 0) for s, count in chosen]
            completed = [sequence for sequence, _ in chosen if sequence.remaining == 0]
            kept = self._prefixes.fed([sequence for sequence, _ in chosen])
        others = guided + completed if guided else completed
        allowed = {slot_of(s): s.mask for s in others if s.mask is not None} if others else None
        keep = [kept_in(prefix, sequence) for prefix, sequence in kept] if kept else []
        copy = [kept_in(prefix, sequence) for prefix, sequence in copied] if copied else []
        plan = StepPlan(self._step, admissions, decode, chunks, allowed, copy, keep)
        last = self._count_planned(group, others)
        fed = [sequence for sequence, _ in chosen] if chosen else []
        steady = not (chosen or admitted or last)
        self._flights[self._step] = Flight(group, guided, fed, completed, admitted, steady, [s for _, s in copied], kept)
        self._step += 1
        return plan

    def _with_masks(self) -> list[Sequence]:
        """The rows under a grammar that can take part in the next step, in slot order."""
        self._masks.update()
        return sorted((sequence for sequence in self._guided if sequence.mask is not None), key=slot_of)

    def _decoding(self) -> DecodeGroup:
        """The rows that decode in the next step: the group of the last one, unless somebody left or joined."""
        group = self._group
        if self._joining or not group.intact:
            group.settle_planned()
            staying = [s for s in group.sequences if not (s.ended or s.released)]
            self._group = DecodeGroup(staying + [s for s in self._joining if not s.ended])
            self._joining.clear()
        return self._group

    def _count_planned(self, group: DecodeGroup, others: list[Sequence]) -> bool:
        """One more token is planned for all rows that are sampled; those with their last one give back their slots. Whether any does."""
        done: list[Sequence] = []
        if group.sequences and group.count_planned():
            group.settle_planned()
            group.intact = False
            done = [sequence for sequence in group.sequences if sequence.exhausted]
        for sequence in others:
            self._feeding.discard(sequence)
            sequence.planned += 1
            if sequence.matcher is not None:
                sequence.mask = None
                self._guided.add(sequence)
            elif not sequence.exhausted:
                self._joining.append(sequence)
            if sequence.exhausted:
                done.append(sequence)
        for sequence in done:
            sequence.released = True
            self._guided.discard(sequence)
            self._slots.give(slot_of(sequence))
        return bool(done)

    def _admit(self, limit: int) -> list[Sequence]:
        """Give up to ``limit`` waiting sequences a slot each."""
        admitted: list[Sequence] = []
        while len(admitted) < limit and self._slots.free and self._waiting:
            sequence = self._waiting.pop()
            sequence.slot = self._slots.take(sequence)
            sequence.last_fed = self._step
            if sequence.request.params.grammar is not None:
                sequence.matcher, sequence.mask = sequence.request.params.grammar.start()
            self._prefixes.admit(sequence)
            admitted.append(sequence)
        return admitted

    def apply(self, result: StepResult) -> list[Event]:
        """Credit a step's tokens to the requests that were planned for them, and end those that are complete."""
        flight = self._flights.pop(result.step)
        if self._applying is not flight.group:
            self._applying.settle_applied()
            self._applying = flight.group
        plain = flight.steady and not (result.failures or result.logprobs)
        if plain and not flight.guided and flight.group.try_apply(result.tokens):
            return [Tokens(flight.group.request_ids, result.tokens)]
        if plain and flight.guided and flight.group.sequences:
            count = len(flight.group.sequences)
            if flight.group.try_apply(result.tokens[:count]):
                free = Tokens(flight.group.request_ids, result.tokens[:count])
                bound, over = self._take_tokens(flight.guided, result.tokens[count:], None)
                return [free, bound, *over] if bound.request_ids else [free]
        flight.group.settle_applied()
        events: list[Event] = []
        ends: list[Event] = []
        if result.failures:
            rows = flight.rows()
            ends += self._lose(flight, {rows[slot]: text for slot, text in result.failures.items()})
            ends += [
                self._fail(rows[slot], _cause(rows[slot], text), 500) for slot, text in result.failures.items() if not rows[slot].ended
            ]
        for prefix, _ in flight.kept:
            self._prefixes.confirm(prefix)
        events += self._prompt_logprobs(flight, result)
        tokens, ended = self._take_tokens(flight.sampled, result.tokens, result.logprobs)
        if tokens.request_ids:
            events.append(tokens)
        return events + ends + ended

    def _take_tokens(
        self, sequences: list[Sequence], sampled: list[int], logprobs: dict[int, TokenLogprobs] | None
    ) -> tuple[Tokens, list[Event]]:
        """The tokens of these rows without those of rows that have ended, and the ends that they bring."""
        ids: list[int] = []
        tokens: list[int] = []
        numbers: list[TokenLogprobs | None] = []
        ends: list[Event] = []
        for sequence, token in zip(sequences, sampled, strict=True):
            if sequence.ended:
                continue
            ids.append(sequence.request.request_id)
            tokens.append(token)
            if logprobs:
                numbers.append(logprobs.get(slot_of(sequence)))
            reason = sequence.take(token)
            if reason is not None:
                ends.append(self._finish(sequence, reason))
            elif sequence.matcher is not None:
                self._masks.want(sequence)
        return Tokens(ids, tokens, numbers or None), ends

    def _prompt_logprobs(self, flight: Flight, result: StepResult) -> list[Event]:
        if result.prompt_logprobs:
            rows = flight.rows()
            for slot, entries in result.prompt_logprobs.items():
                rows[slot].prompt_entries.extend(entries)
        events: list[Event] = []
        for sequence in flight.completed:
            if sequence.request.params.prompt_logprobs and not sequence.ended:
                events.append(PromptLogprobs(sequence.request.request_id, tuple(sequence.prompt_entries)))
                sequence.prompt_entries.clear()
        return events

    def fail_step(self, plan: StepPlan, message: str) -> list[Event]:
        """A step could not be run: its requests fail (500), nobody else does."""
        flight = self._flights.pop(plan.step)
        concerned = dict.fromkeys([*flight.rows().values(), *flight.admitted, *flight.copied], message)
        events = [self._fail(sequence, message, 500) for sequence in concerned if not sequence.ended]
        return events + self._lose(flight, concerned)

    def _lose(self, flight: Flight, failed: Mapping[Sequence, str]) -> list[Event]:
        """These failed in a step: what they leave to be kept, in it or in a later one that is in flight, is not the state of their prompts.

        Whoever got it already fails with them.
        """
        events: list[Event] = []
        for each in (flight, *self._flights.values()):
            lost = [(prefix, failed[sequence]) for prefix, sequence in each.kept if sequence in failed]
            if lost:
                each.kept = [(prefix, sequence) for prefix, sequence in each.kept if sequence not in failed]
            for prefix, message in lost:
                events += [self._fail(sequence, message, 500) for sequence in self._prefixes.lose(prefix)]
        return events

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
        # Before the mark: what was sampled up to now belongs to the figures of this end.
        self._applying.settle_applied()
        sequence.ended = True
        del self._open[sequence.request.request_id]
        self._prefixes.end(sequence)
        if sequence.slot is None:
            self._waiting.remove(sequence)
            return
        self._feeding.discard(sequence)
        self._guided.discard(sequence)
        self._group.intact = False
        for flight in self._flights.values():
            flight.group.intact = False
        if not sequence.released:
            self._slots.give(sequence.slot)
        self._slots.forget(sequence.slot, sequence)


def _cause(sequence: Sequence, failure: str) -> str:
    """Why a row failed: the grammar's own words, where it left the row without a token."""
    return (sequence.matcher.error if sequence.matcher is not None else "") or failure
