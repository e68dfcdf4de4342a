"""Token ids to text, one token at a time: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

_utf8 = codecs.getincrementaldecoder("utf-8")


@lru_cache(maxsize=1 << 17)
def _whole(raw: bytes) -> str | None:
    """The text of a token that consists of whole characters; None for one that does not."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


# One more than the largest token id there can be.
_IDS = 1 << 16
_NONE_CALM = bytes(_IDS)
_FEW = 8


class _Same:
    """Stands for one object as a key: equal to itself alone."""

    __slots__ = ("_it",)

    def __init__(self, it: object) -> None:
        self._it = it

    def __hash__(self) -> int:
        return id(self._it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._it is other._it


@lru_cache(maxsize=32)
def _calm_table(token_bytes: _Same, starts: frozenset[str]) -> bytearray:
    """By token id: 1 where it is known that the token is whole and none of its characters is in ``starts``. Filled in as tokens come."""
    return bytearray(_IDS)


class _Stop:
    """How much of one stop string the text so far ends with (Knuth, Morris and Pratt).

    The failure table grows with the longest match seen, so that a long stop costs nothing until its text appears.
    """

    __slots__ = ("_failure", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._failure = [0, 0]  # [n]: length of the longest proper prefix that also ends the first n characters

    def advance(self, character: str) -> int:
        """Take one character; the number of characters matched now. A complete match must not be advanced."""
        text, matched = self.text, self.matched
        while matched and text[matched] != character:
            matched = self._fallback(matched)
        if text[matched] == character:
            matched += 1
        self.matched = matched
        return matched

    def _fallback(self, matched: int) -> int:
        text, failure = self.text, self._failure
        while len(failure) <= matched:
            last = text[len(failure) - 1]
            length = failure[-1]
            while length and text[length] != last:
                length = failure[length]
            failure.append(length + 1 if text[length] == last else 0)
        return failure[matched]


class Detokenizer:
    """The text of one choice as its tokens arrive.

    ``token_bytes[id]`` are a token's bytes. Characters come out whole; bytes that are no UTF-8 come out as U+FFFD.
    Of ``stops`` (literal text, empty ones are ignored) the match that completes first ends the text, of those completing
    at one character the longest. Text that may turn out to be the start of a stop is held back.
    """

    __slots__ = ("_active", "_calm", "_decoder", "_held", "_length", "_partial", "_starts", "_token_bytes", "stopped")

    def __init__(self, token_bytes: Sequence[bytes], stops: Sequence[str] = ()) -> None:
        self.stopped = False
        self._token_bytes = token_bytes
        self._decoder = _utf8("replace")
        self._partial = False  # whether the decoder holds the beginning of a character
        self._starts: dict[str, list[_Stop]] = {}
        for text in dict.fromkeys(stops):
            if text:
                self._starts.setdefault(text[0], []).append(_Stop(text))
        self._calm: bytearray | None = None
        self._active: list[_Stop] = []  # stops with a match begun
        self._held: deque[str] = deque()  # text not yet handed out, at least as long as the longest match begun
        self._length = 0  # its characters

    def push(self, token_id: int) -> str:
        """Take one token; the text that can be sent now. After a stop was completed ``stopped`` is True and nothing comes."""
        if self.stopped or token_id >= len(self._token_bytes):
            return ""
        raw = self._token_bytes[token_id]
        text = None if self._partial else _whole(raw)
        if text is None:
            text = self._decode_apart(raw)
        if not self._active and (not self._starts or self._starts.keys().isdisjoint(text)):
            return text
        before = self._length
        self._held.append(text)
        self._length += len(text)
        for offset, character in enumerate(text, start=1):
            completed = self._match(character)
            if completed:
                self.stopped = True
                return self._take(before + offset - completed)
        return self._take(self._length - max((stop.matched for stop in self._active), default=0))

    def push_all(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """Take several tokens: the text that can be sent now, and how many were taken, which are all up to a stop's completion."""
        at, count = 0, len(token_ids)
        if count == 1:
            return self.push(token_ids[0]), 1
        parts: list[str] = []
        # Where nobody asked for ``calm`` no token is known to be calm, and for few it does not pay to look.
        calm = bytes(map(self._calm.__getitem__, token_ids)) if self._calm is not None and count >= _FEW else bytes(count)
        while at < count:
            if calm[at] and not self._active and not self._partial:
                end = calm.find(0, at)
                run = token_ids[at:] if end < 0 else token_ids[at:end]
                parts.append(self._decode_apart(b"".join(map(self._token_bytes.__getitem__, run))))
                at += len(run)
                continue
            parts.append(self.push(token_ids[at]))
            at += 1
            if self.stopped:
                break
        return "".join(parts), at

    def _decode_apart(self, raw: bytes) -> str:
        """Without the cache, for bytes that may begin or end within a character, or come once."""
        text = self._decoder.decode(raw)
        self._partial = bool(self._decoder.getstate()[0])
        return text

    def may_stop(self, token_id: int) -> bool:
        """Whether this token, taken next, could begin a stop or go on with one."""
        if self._active:
            return True
        if self._partial:
            # Bytes that turn out to be no character come out as a mark, which a stop may hold.
            return bool(self._starts)
        if token_id >= len(self._token_bytes):
            return False
        if self._starts:
            text = _whole(self._token_bytes[token_id])
            if text is None or not self._starts.keys().isdisjoint(text):
                return True
        if self._calm is not None:
            self._calm[token_id] = 1
        return False

    def calm(self) -> Sequence[int]:
        """By token id: 1 for those that are known not to be ones that ``may_stop``. Holds until the next token is taken.

        It fills as ``may_stop`` is asked, for all texts with stops that begin alike.
        """
        if self._active or (self._partial and self._starts):
            return _NONE_CALM
        if self._calm is None:
            self._calm = _calm_table(_Same(self._token_bytes), frozenset(self._starts))
        return self._calm

    def finish(self) -> str:
        """The text still held back. Bytes of an unfinished character are dropped."""
        return "" if self.stopped else self._take(self._length)

    def _match(self, character: str) -> int:
        """Advance every stop by one character; the length of the longest that is complete now, or 0."""
        starts = self._starts.get(character, ())
        if not self._active and not starts:
            return 0
        idle = [stop for stop in starts if not stop.matched]
        self._active = [stop for stop in self._active if stop.advance(character)]
        for stop in idle:
            stop.matched = 1
        self._active += idle
        return max((stop.matched for stop in self._active if stop.matched == len(stop.text)), default=0)

    def _take(self, count: int) -> str:
        """Remove the first ``count`` characters of the held text and return them."""
        self._length -= count
        parts: list[str] = []
        while count:
            part = self._held.popleft()
            if len(part) > count:
                self._held.appendleft(part[count:])
                part = part[:count]
            parts.append(part)
            count -= len(part)
        return "".join(parts)
