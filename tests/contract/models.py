"""The files that the checks of a host load: F1, a model that calls a tool, one whose third step fails, a state file, and what is only named like a model."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import tiny
import torch

from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

# One token of the vocabulary each, none of them twice; ":" ends the prompt of a chat.
CALL = (
    ":",
    " weather",
    "\n",
    "```",
    "python",
    "\n\t",
    "tool",
    "_",
    "call",
    '("',
    "city",
    '"',
    "=",
    "'",
    "Paris",
    "')",
    "\n\n\n",
    "``",
    "`",
)
SMALL = {"layers": 1, "width": 64}


@dataclass(frozen=True)
class Models:
    f1: Path
    caller: Path
    poison: Path
    state: Path
    wrong_state: Path
    gguf: Path


@lru_cache(maxsize=1)
def models_of_this_run() -> Models:
    """Written once, and gone when this process ends."""
    return write_models(Path(_folder().name))


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def write_models(folder: Path) -> Models:
    """Everything into ``folder``."""
    ids = {raw: token for token, raw in enumerate(WorldTokenizer(find_vocabulary(None)).token_bytes)}
    f1 = tiny.write(folder / "F1.pth", _in_official_order(tiny.random_checkpoint()))
    caller = tiny.write(folder / "caller.pth", tiny.script_checkpoint([ids[piece.encode()] for piece in CALL], **SMALL))
    words = [ids[piece.encode()] for piece in (":", " one", " two", " three")]
    poison = tiny.write(folder / "poison.pth", tiny.poison_checkpoint(words, words[2], **SMALL))
    gguf = folder / "small.gguf"
    gguf.write_bytes(b"GGUF, by name alone")
    return Models(f1, caller, poison, _write_state(folder / "state.pth", 2), _write_state(folder / "wrong.pth", 3), gguf)


def _in_official_order(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Layer after layer: the Runner's own loader tells a version 7 by which key comes after which."""
    places = {key: int(key.split(".")[1]) if key.startswith("blocks.") else -1 if key.startswith("emb") else 2**31 for key in weights}
    return {key: weights[key] for key in sorted(weights, key=lambda key: places[key])}


def _write_state(path: Path, layers: int) -> Path:
    random = torch.Generator().manual_seed(1)
    return tiny.write(path, {f"blocks.{layer}.att.time_state": torch.randn(2, 64, 64, generator=random) for layer in range(layers)})
