"""A grammar without a language: texts of a given length, and masks that say how many tokens they follow."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from albatross_plugin.engine.grammar import Grammar, Matcher


class FakeGrammar:
    """A text is complete after ``length`` tokens; ``dead_end``: no token is allowed after so many.

    A mask is the number of tokens before it, in digits. Masks are held up while ``gate`` is closed, once ``masks`` was called.
    """

    def __init__(self, length: int, dead_end: int = -1, slow: bool = False) -> None:
        self.length, self.dead_end, self.slow = length, dead_end, slow
        self.gate = threading.Event()
        self.gate.set()
        self.threads: list[str] = []

    def start(self) -> tuple[Matcher, bytes]:
        matcher = FakeMatcher(self)
        return matcher, matcher.mask()

    def masks(self, matchers: Sequence[FakeMatcher]) -> list[bytes]:  # type: ignore[override]
        self.threads.append(threading.current_thread().name)
        assert self.gate.wait(20)
        return [matcher.mask() for matcher in matchers]


class FakeMatcher:
    def __init__(self, grammar: FakeGrammar) -> None:
        self._grammar = grammar
        self.tokens: list[int] = []

    @property
    def grammar(self) -> Grammar:
        return self._grammar

    @property
    def error(self) -> str:
        return "the grammar ends here" if len(self.tokens) == self._grammar.dead_end else ""

    @property
    def complete(self) -> bool:
        return len(self.tokens) == self._grammar.length

    def accept(self, token: int) -> None:
        assert not self.complete and not self.error
        self.tokens.append(token)

    def mask(self) -> bytes:
        return b"" if self.error else b"%d" % len(self.tokens)
