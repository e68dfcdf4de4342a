"""From bytes of tokens to text that may be sent: whole characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Text of one generation. ``stopped`` is True once a stop string was completed; nothing comes out after that."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stopped = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = [stop for stop in dict.fromkeys(stops) if stop]
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, data: bytes) -> str:
        """Text that is now safe. Work depends on the new text and what is held back, not on the length of the answer."""
        if self.stopped:
            return ""
        text = self._held + self._decoder.decode(data)
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back as a possible stop; an unfinished character at the end is dropped."""
        text, self._held = self._held, ""
        return text

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of ``text`` with which some stop string begins."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
