"""What the engine asks of a grammar that binds a text; the plugin's own is in `albatross_plugin/grammar.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Matcher(Protocol):
    """One text on its way through a grammar. Nothing here raises: after a fault, ``error`` says what is wrong and masks are empty."""

    @property
    def grammar(self) -> Grammar: ...

    @property
    def error(self) -> str:
        """Why no text can go on from here; empty while one can."""

    @property
    def complete(self) -> bool:
        """Whether the text fits the grammar and nothing may follow."""

    def accept(self, token: int) -> None:
        """Go on by a token that the last mask allowed."""


class Grammar(Protocol):
    """Shared by all requests that are bound to it, and picklable like them. Bitmasks are those of StepPlan.

    ``slow`` is kept by the engine: whether the masks of this grammar are worked out beside the steps.
    """

    slow: bool

    def start(self) -> tuple[Matcher, bytes]:
        """A matcher for a new text, and the mask of its first token. At once."""

    def masks(self, matchers: Sequence[Matcher]) -> list[bytes]:
        """The masks of the next tokens, for matchers of this grammar or of others of its kind."""
