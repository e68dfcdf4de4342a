"""Masks: which tokens may come next in the rows that are bound to a grammar, worked out where nobody waits for them."""

from __future__ import annotations

import threading
from time import perf_counter

from albatross_plugin.engine.grammar import Matcher
from albatross_plugin.engine.sequence import Sequence

BUDGET = 0.001
"""Seconds that the masks of one step may hold it up; rows whose masks would take it beyond that sit the step out."""
SLOW = 0.002
"""A grammar with a mask that took longer than this gets its next ones on another thread, until one of them is quick."""
_FIRST_GUESS = 0.00002
_LEARN = 0.2


class Masks:
    """Fills in ``Sequence.mask``. For one scheduler, and called on its thread alone."""

    def __init__(self) -> None:
        self._due: list[Sequence] = []
        self._aside: list[threading.Thread] = []
        self._seconds = _FIRST_GUESS

    def want(self, sequence: Sequence) -> None:
        """The sequence has got a token, and may be planned again once it has a mask."""
        self._due.append(sequence)

    def update(self) -> None:
        """Work out what is due, as far as the budget reaches; start with those that have waited longest."""
        quick: list[Sequence] = []
        slow: list[Sequence] = []
        for sequence in self._due:
            if not sequence.ended:
                (slow if _matcher(sequence).grammar.slow else quick).append(sequence)
        room = max(1, int(BUDGET / self._seconds))
        quick, self._due = quick[:room], quick[room:]
        if slow:
            self._aside = [thread for thread in self._aside if thread.is_alive()]
            thread = threading.Thread(target=_fill_apart, args=(slow,), name="albatross-masks", daemon=True)
            self._aside.append(thread)
            thread.start()
        if quick:
            seconds = _fill(quick)
            if seconds > SLOW + len(quick) * self._seconds:
                # Whose mask it was is not known here; looked at one by one, the others are found quick again.
                for sequence in quick:
                    _matcher(sequence).grammar.slow = True
            else:
                self._seconds += _LEARN * (seconds / len(quick) - self._seconds)

    def wait(self) -> bool:
        """Wait for masks that are worked out aside; False where there are none. For a time when there is nothing else to do."""
        if not self._aside:
            return False
        self._aside.pop(0).join()
        return True


def _matcher(sequence: Sequence) -> Matcher:
    assert sequence.matcher is not None
    return sequence.matcher


def _fill(sequences: list[Sequence]) -> float:
    """Seconds that it took."""
    begin = perf_counter()
    matchers = [_matcher(sequence) for sequence in sequences]
    for sequence, mask in zip(sequences, matchers[0].grammar.masks(matchers), strict=True):
        sequence.mask = mask
    return perf_counter() - begin


def _fill_apart(sequences: list[Sequence]) -> None:
    for sequence in sequences:
        grammar = _matcher(sequence).grammar
        grammar.slow = _fill([sequence]) > SLOW
