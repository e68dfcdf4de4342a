"""Scripts for the script model, each piece one token of the vocabulary, and starts from both routes."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import tiny

from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

TEXT_START = "!"
CHAT_START = ":"
WIDTH = 64
_written: dict[Path, tuple[int | str, ...]] = {}


@lru_cache(maxsize=1)
def world() -> WorldTokenizer:
    return WorldTokenizer(find_vocabulary(None))


@lru_cache(maxsize=1)
def _ids() -> dict[bytes, int]:
    return {raw: token for token, raw in enumerate(world().token_bytes)}


def tokens(*pieces: str) -> list[int]:
    """The token of each piece. Raises KeyError for a piece that is no token of its own."""
    return [_ids()[piece.encode()] for piece in pieces]


def write_script(path: Path, *script: int, also: str = CHAT_START) -> Path:
    """A model that says ``script`` and then the end of text, after "!" and after ``also``, the end of a chat's prompt."""
    assert _written.setdefault(path, (*script, also)) == (*script, also), f"{path.name} says something else already"
    if path.exists():
        return path
    start, other = tokens(TEXT_START, also)
    state = tiny.script_checkpoint([start, *script], layers=1, width=WIDTH)
    assert other not in script
    state["emb.weight"][other] = state["emb.weight"][start]
    return tiny.write(path, state)


def write_four(path: Path) -> Path:
    """A model that goes on after "!" with "a", "b", "c" or "d", with the probabilities .4, .3, .2 and .1."""
    if path.exists():
        return path
    state = tiny.script_checkpoint(tokens(TEXT_START, "x"), layers=1, width=WIDTH)
    state["head.weight"][tokens("x")[0], 0] = 0
    # What the norms make of a unit vector of n numbers: its one number becomes the root of n - 1.
    for token, probability in zip(tokens("a", "b", "c", "d"), (0.4, 0.3, 0.2, 0.1), strict=True):
        state["head.weight"][token, 0] = (40 + math.log(probability)) / math.sqrt(WIDTH - 1)
    return tiny.write(path, state)
