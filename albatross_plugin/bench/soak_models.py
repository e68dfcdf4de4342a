"""Models that say what is known beforehand: rings of tokens, each of which is greedily followed by the next one.

A prompt that ends in a token of a ring is answered with the rest of the ring, round and round, so a text that holds a word of another
ring came from another request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from albatross_plugin.bench.checkpoints import SHAPES, checkpoint
from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

RINGS, RING_WORDS = 8, 11
# U+1F600 in three tokens, so that characters are cut and put together; a token has one successor, so one ring alone may hold it.
SMILE = (3319, 153, 129)
# The token of the colon in which a chat's prompt ends.
COLON = 59
LOUD = 10.0


@dataclass(frozen=True)
class RingModel:
    """A checkpoint of rings. ``token_bytes`` are those of the vocabulary."""

    path: Path
    rings: Sequence[Sequence[int]]
    token_bytes: Sequence[bytes]

    def text(self, ring: int, start: int, count: int) -> str:
        """What follows the token number ``start`` of a ring: ``count`` tokens; a character that the end cuts is left out."""
        tokens = self.rings[ring]
        return self.decode([tokens[(start + 1 + i) % len(tokens)] for i in range(count)])

    def chat_text(self, count: int) -> str:
        """What a chat is answered: ring 0 from its first token on."""
        return self.text(0, -1, count)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes[i] for i in ids).decode(errors="ignore")


def ring_model(folder: Path, number: int) -> RingModel:
    """Model number 0, 1, ... in ``folder``; no word stands in two rings, nor in the rings of two models."""
    token_bytes = WorldTokenizer(find_vocabulary(None)).token_bytes
    words = [i for i, content in enumerate(token_bytes) if re.fullmatch(rb" [a-z]{4,9}", content)]
    first = number * RINGS * RING_WORDS
    rings = [words[first + i * RING_WORDS : first + (i + 1) * RING_WORDS] for i in range(RINGS)]
    rings[1] = [*rings[1], *SMILE]
    path = folder / f"rings-{number}.pth"
    _write(checkpoint(SHAPES["small"]), path, rings)
    return RingModel(path, rings, token_bytes)


def _write(random: Path, path: Path, rings: Sequence[Sequence[int]]) -> None:
    """Silence the layers of a random model; then the last token alone chooses the next one."""
    import torch

    state = torch.load(random, weights_only=True)
    silent = [key for key in state if key.endswith(("att.output.weight", "ffn.value.weight"))]
    for key in [*silent, "emb.weight", "head.weight", "blocks.0.ln0.bias", "ln_out.bias"]:
        state[key].zero_()
    for key in ("blocks.0.ln0.weight", "ln_out.weight"):
        state[key].fill_(1.0)
    follows = {token: ring[(i + 1) % len(ring)] for ring in rings for i, token in enumerate(ring)}
    follows[COLON] = rings[0][0]
    for direction, (token, following) in enumerate(follows.items()):
        state["emb.weight"][token, direction] = 1.0
        state["head.weight"][following, direction] = LOUD
    torch.save(state, path)
