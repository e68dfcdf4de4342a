"""Item: one text of a batch, and what it has to say"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from albatross_plugin.completion import AlbatrossCompletion

FINAL = ("done", "aborted", "error")


@dataclass(slots=True)
class Item:
    """``status``: pending, running, or one of ``FINAL``. ``completion`` is there while the engine works on it; ``parts`` grow where the
    batch keeps texts; ``named``: an update has told its seed."""

    index: int
    seed: int
    status: str = "pending"
    tokens: int = 0
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    completion: AlbatrossCompletion | None = None
    named: bool = False
    parts: list[str] = field(default_factory=list)

    def update(self, delta: str) -> dict[str, Any]:
        """How it stands, with the text that is new; the first one tells its seed."""
        said = self._state("delta", delta)
        if not self.named:
            self.named = True
            said["seed"] = self.seed
        return said

    def whole(self) -> dict[str, Any]:
        """All of it, once it has ended."""
        return {**self._state("text", "".join(self.parts)), "seed": self.seed}

    def _state(self, name: str, text: str) -> dict[str, Any]:
        return {
            "id": self.index,
            "status": self.status,
            name: text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "error": self.error,
        }
