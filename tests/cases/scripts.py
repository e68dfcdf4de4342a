"""Scripts for the script model, each piece one token of the vocabulary, and starts from both routes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import tiny

from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

TEXT_START = "!"
CHAT_START = ":"


@lru_cache(maxsize=1)
def world() -> WorldTokenizer:
    return WorldTokenizer(find_vocabulary(None))


@lru_cache(maxsize=1)
def _ids() -> dict[bytes, int]:
    return {raw: token for token, raw in enumerate(world().token_bytes)}


def tokens(*pieces: str) -> list[int]:
    """The token of each piece. Raises KeyError for a piece that is no token of its own."""
    return [_ids()[piece.encode()] for piece in pieces]


def write_script(path: Path, *script: int) -> Path:
    """A model that says ``script`` and then the end of text, after "!" on the completions route and after ":" in a chat."""
    start, also = tokens(TEXT_START, CHAT_START)
    if path.exists():
        return path
    state = tiny.script_checkpoint([start, *script])
    if also not in script:
        state["emb.weight"][also] = state["emb.weight"][start]
    return tiny.write(path, state)
