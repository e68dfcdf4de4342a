"""DecodeGroup: the rows that decode together, step after step, until one of them ends or another joins."""

from __future__ import annotations

from collections.abc import Iterable

from albatross_plugin.engine.sequence import Sequence


class DecodeGroup:
    """Rows in slot order, none of them ended or exhausted when the group is made.

    While nothing happens but decoding, a step costs the same for one row as for a thousand: the group counts its steps, and ``planned``
    and ``sampled`` of its sequences are brought up to date by ``settle_planned`` and ``settle_applied`` when somebody wants to know them.
    ``slots`` and ``request_ids`` are handed out with every step and must not be changed. ``intact``: no row has ended since.
    """

    __slots__ = ("_applied", "_horizon", "_planned", "_stops", "intact", "request_ids", "sequences", "slots")

    def __init__(self, sequences: Iterable[Sequence]) -> None:
        self.sequences = sorted(sequences, key=slot_of)
        self.slots = [slot_of(sequence) for sequence in self.sequences]
        self.request_ids = [sequence.request.request_id for sequence in self.sequences]
        self.intact = True
        # A set of few members as a rule: most requests end with token 0 alone.
        self._stops = frozenset[int]().union(*{sequence.stops for sequence in self.sequences})
        self._horizon = min((sequence.max_tokens - sequence.planned for sequence in self.sequences), default=0)
        self._planned = self._applied = 0

    def count_planned(self) -> bool:
        """One more token is planned for every row; whether that was the last one for some of them."""
        self._planned += 1
        return self._planned == self._horizon

    def try_apply(self, tokens: list[int]) -> bool:
        """Count a step's tokens where they end nobody; False if each row must be looked at. Not for a row's last token."""
        assert len(tokens) == len(self.sequences), f"{len(tokens)} tokens for {len(self.sequences)} rows"
        if not self.intact or not self._stops.isdisjoint(tokens):
            return False
        self._applied += 1
        return True

    def settle_planned(self) -> None:
        steps, self._planned = self._planned, 0
        self._horizon -= steps
        if steps:
            for sequence in self.sequences:
                sequence.planned += steps

    def settle_applied(self) -> None:
        steps, self._applied = self._applied, 0
        if steps:
            for sequence in self.sequences:
                sequence.sampled += steps


def slot_of(sequence: Sequence) -> int:
    assert sequence.slot is not None
    return sequence.slot
