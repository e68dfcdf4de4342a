"""Prefixes: prompts that several requests share are fed once; the state before their last token is kept, and copied to the others"""

from __future__ import annotations

from dataclasses import dataclass, field

from albatross_plugin.engine.sequence import Sequence
from albatross_plugin.engine.step import Kept

KEPT_ROWS = 4
"""State rows of a worker beside its slots: so many shared prompts are kept at a time."""
LEAST_TOKENS = 32
"""Shorter prompts are fed by each request: keeping one costs a step of its own."""


@dataclass(eq=False)
class Prefix:
    """One shared prompt. ``open``: its requests without an end. ``row``: where its state is kept, or will be.

    ``leader`` feeds the prompt, ``followers`` hold slots and wait for its state. ``kept``: the state is there for every plan from now on.
    ``unsure``: who copied it before the step that kept it is known to have gone well; None when that is known.
    """

    key: tuple[int, int]
    open: int = 0
    row: int | None = None
    leader: Sequence | None = None
    followers: list[Sequence] = field(default_factory=list)
    kept: bool = False
    unsure: set[Sequence] | None = None


class Prefixes:
    """The shared prompts of one worker. ``feeding``: the scheduler's sequences whose prompts are being fed.

    A prompt is shared but for its last token, whose logits every request samples for itself. A request for which no row is left feeds its
    own prompt.
    """

    def __init__(self, rows: int, feeding: set[Sequence]) -> None:
        self._free = list(range(rows - 1, -1, -1))
        self._feeding = feeding
        self._known: dict[tuple[int, int], Prefix] = {}
        self._copies: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """A request has come; ``Request.shared`` says whose prompt it shares."""
        key = sequence.request.shared
        # Numbers for each token of a prompt need its feeding.
        if key is not None and len(sequence.request.prompt_ids) > 1 and not sequence.request.params.prompt_logprobs:
            sequence.prefix = self._known.setdefault(key, Prefix(key))
            sequence.prefix.open += 1

    def admit(self, sequence: Sequence) -> None:
        """It has a slot now: it feeds its prompt, or what is left of it, or waits for the one that does."""
        prefix = sequence.prefix
        if prefix is not None and prefix.kept:
            self._take(prefix, sequence)
        elif prefix is not None and prefix.leader is not None:
            sequence.waits = True
            prefix.followers.append(sequence)
        else:
            if prefix is not None:
                if prefix.row is None and self._free:
                    prefix.row = self._free.pop()
                if prefix.row is not None:
                    prefix.leader = sequence
            self._feeding.add(sequence)

    def copies(self) -> list[tuple[Prefix, Sequence]]:
        """Those who get a kept state before the next pass."""
        if not self._copies:
            return []
        taken, self._copies = self._copies, []
        return [(sequence.prefix, sequence) for sequence in taken if sequence.prefix is not None]

    def ahead(self, sequence: Sequence) -> int:
        """Prompt tokens that may be fed to it in one piece."""
        prefix = sequence.prefix
        if prefix is not None and prefix.leader is sequence and prefix.open > 1 and sequence.remaining > 1:
            return sequence.remaining - 1
        return sequence.remaining

    def fed(self, sequences: list[Sequence]) -> list[tuple[Prefix, Sequence]]:
        """These were fed in the step that is planned: the prompts whose state is kept after it, and who fed them."""
        kept = []
        for sequence in sequences:
            prefix = sequence.prefix
            if prefix is None or prefix.leader is not sequence or sequence.remaining > 1:
                continue
            if sequence.remaining == 1 and prefix.open > 1:
                prefix.leader, prefix.kept, prefix.unsure = None, True, set()
                kept.append((prefix, sequence))
                followers, prefix.followers = prefix.followers, []
                for follower in followers:
                    self._take(prefix, follower)
            elif sequence.remaining == 0:
                self._lead(prefix)
        return kept

    def confirm(self, prefix: Prefix) -> None:
        """The step that kept it went well."""
        prefix.unsure = None

    def lose(self, prefix: Prefix) -> list[Sequence]:
        """What was kept is not its state: those who copied that, and can only fail too. Those whose copy no plan holds yet wait again."""
        lost, prefix.unsure, prefix.kept = prefix.unsure or set(), None, False
        waiting = [sequence for sequence in self._copies if sequence.prefix is prefix]
        self._copies = [sequence for sequence in self._copies if sequence.prefix is not prefix]
        for sequence in waiting:
            sequence.fed, sequence.waits = 0, True
            self._feeding.discard(sequence)
            prefix.followers.append(sequence)
        if prefix.leader is None:
            self._lead(prefix)
        left = (sequence for sequence in lost.difference(waiting) if not sequence.ended)
        return sorted(left, key=lambda sequence: sequence.request.request_id)

    def end(self, sequence: Sequence) -> None:
        """It has ended, however."""
        prefix = sequence.prefix
        if prefix is None:
            return
        sequence.prefix = None
        prefix.open -= 1
        if sequence.waits:
            prefix.followers.remove(sequence)
        if prefix.unsure is not None:
            prefix.unsure.discard(sequence)
        if prefix.leader is sequence:
            self._lead(prefix)
        if not prefix.open:
            del self._known[prefix.key]
            if prefix.row is not None:
                # Steps run in the order of their plans, so whoever is planned to copy it still finds it.
                self._free.append(prefix.row)

    def _take(self, prefix: Prefix, sequence: Sequence) -> None:
        sequence.waits = False
        sequence.fed = len(sequence.request.prompt_ids) - 1
        self._feeding.add(sequence)
        self._copies.append(sequence)
        if prefix.unsure is not None:
            prefix.unsure.add(sequence)

    def _lead(self, prefix: Prefix) -> None:
        """The first of the followers feeds the prompt in place of its leader, who has ended or is past it."""
        prefix.leader = prefix.followers.pop(0) if prefix.followers else None
        if prefix.leader is not None:
            prefix.leader.waits = False
            self._feeding.add(prefix.leader)


def kept_in(prefix: Prefix, sequence: Sequence) -> Kept:
    """The row of a prompt beside the slot of one that shares it."""
    assert prefix.row is not None and sequence.slot is not None
    return Kept(prefix.row, sequence.slot)
