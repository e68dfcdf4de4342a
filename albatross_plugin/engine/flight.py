"""Flight: who takes part in a step that was planned and not yet applied"""

from __future__ import annotations

from dataclasses import dataclass

from albatross_plugin.engine.group import DecodeGroup, slot_of
from albatross_plugin.engine.prefixes import Prefix
from albatross_plugin.engine.sequence import Sequence


@dataclass
class Flight:
    """Who took part in a planned step. Results go to these objects, never to whoever holds the slot by then.

    Rows that are sampled: those of ``group``, then ``guided``, which decode under a grammar, then ``completed``, whose prompt ends in this
    step. ``steady``: but for the guided rows nobody else took part, and it is nobody's last step. ``copied``: who got a kept state before
    it, and may be fed later. ``kept``: shared prompts whose state is kept after it, each with the row that fed it.
    """

    group: DecodeGroup
    guided: list[Sequence]
    fed: list[Sequence]
    completed: list[Sequence]
    admitted: list[Sequence]
    steady: bool
    copied: list[Sequence]
    kept: list[tuple[Prefix, Sequence]]

    @property
    def sampled(self) -> list[Sequence]:
        return self.group.sequences + self.guided + self.completed

    def rows(self) -> dict[int, Sequence]:
        return {slot_of(sequence): sequence for sequence in self.group.sequences + self.guided + self.fed}
