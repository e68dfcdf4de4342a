"""The host's own .pth path: PyPI's rwkv package, one request at a time."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

from host_stub.calls import Call, Emit, Piece, unloaded
from host_stub.errors import ApiError
from host_stub.models import AbstractRWKV, FiveTuple, RWKVType
from host_stub.text import TextStream

CHUNK = 256
# Space, tab and digits pay no frequency penalty, as in the package's own generate().
UNCOUNTED = frozenset((33, 10, *range(49, 59)))
# The package sums probabilities in float32, which never reaches 1: at top_p = 1 it would turn greedy.
LARGEST_TOP_P = 0.999


class TextRWKV(AbstractRWKV):
    """A World model in the rwkv package. ``model`` is the package's, ``pipeline`` its PIPELINE."""

    def __init__(self, model: Any, pipeline: Any) -> None:
        super().__init__(model, pipeline)
        self.rwkv_type = RWKVType.World
        self.tokenizer_len = int(model.args.vocab_size)
        self.token_bytes: dict[int, bytes] = pipeline.tokenizer.idx2token
        self.token_limit = max(self.token_bytes) + 1
        # Parameters of a request that this model honours beyond the common ones: none.
        self.options: dict[str, str] = {}
        self._closed = threading.Event()
        self._busy = threading.Lock()

    # --- generation -------------------------------------------------------------------------------------------------

    def run(self, call: Call, emit: Emit) -> None:
        """Generate until the text ends or ``emit`` answers False. Raises ApiError 503 when the model is unloaded meanwhile."""
        with self._busy:
            for piece in self._pieces(call):
                if not emit(piece):
                    return

    def generate(self, body: Any, prompt: str, stop: Any = None, stop_token_ids: Any = None) -> Iterator[FiveTuple]:
        """The host's five-tuples, with the settings that stand in the attributes."""
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        call = Call(prompt, {}, [s for s in stops if s], list(stop_token_ids or ()))
        text = ""
        with self._busy:
            for piece in self._pieces(call):
                text += piece.text
                yield ("text", text, piece.text, piece.prompt_tokens, piece.completion_tokens)

    def _pieces(self, call: Call) -> Iterator[Piece]:
        tokens = self.fix_tokens(self.encode(call.prompt))
        self.model_state = [each.clone() for each in self.state_tuned] if self.state_tuned else None
        self.model_tokens = []
        occurrence: dict[int, float] = {}
        if self.global_penalty:
            for token in tokens:
                self.adjust_occurrence(occurrence, token)
        logits, count = self.run_rnn(tokens)
        stream, ends = TextStream(call.stops), set(call.stop_token_ids) | {self.EOS_ID}
        for done in range(1, self.max_tokens_per_generation + 1):
            self.adjust_forward_logits(logits, occurrence, done - 1)
            token = self.sample(logits)
            if token in ends:
                yield Piece(stream.finish(), count, done, "stop")
                return
            self.adjust_occurrence(occurrence, token)
            text = stream.push(self.token_bytes[token])
            if stream.stopped:
                yield Piece(text, count, done, "stop")
                return
            if done == self.max_tokens_per_generation:
                yield Piece(text + stream.finish(), count, done, "length")
                return
            # Also without text, so that the reader can end it here.
            yield Piece(text, count, done)
            logits, _ = self.run_rnn([token])

    def encode(self, text: str) -> list[int]:
        try:
            tokens: list[int] = self.pipeline.encode(text)
        except UnicodeEncodeError:
            raise ApiError(400, "the prompt holds half of a surrogate pair, which is not text", param="prompt") from None
        return tokens

    def check_ids(self, tokens: list[int]) -> list[int]:
        for token in tokens:
            if not 0 <= token < self.token_limit:
                raise ApiError(400, f"input holds {token}, which is not a token id from 0 to {self.token_limit - 1}", param="input")
        return tokens

    def sample(self, logits: Any) -> int:
        """Draw by the package's own sampler. ``logits [V]``; raises ApiError 500 when they hold no finite maximum."""
        import numpy as np

        logits[self.token_limit :] = -math.inf
        if not math.isfinite(float(logits.max())):
            raise ApiError(500, "the model's output is not finite", code="engine_error")
        top_p = min(self.top_p, LARGEST_TOP_P)
        try:
            with np.errstate(all="ignore"):
                return int(self.pipeline.sample_logits(logits, temperature=self.temperature, top_p=top_p, top_k=self.top_k))
        except ValueError:
            # At a low temperature every power of a small probability is 0 in float32, and the package divides 0 by 0.
            return int(logits.argmax())

    # --- the abstract surface ---------------------------------------------------------------------------------------

    def adjust_occurrence(self, occurrence: dict[int, float], token: int) -> None:
        for each in occurrence:
            occurrence[each] *= self.penalty_decay
        occurrence[token] = occurrence.get(token, 0.0) + (0.0 if token in UNCOUNTED else 1.0)

    def adjust_forward_logits(self, logits: Any, occurrence: dict[int, float], i: int) -> None:
        for token, times in occurrence.items():
            logits[token] -= self.penalty_alpha_presence + times * self.penalty_alpha_frequency

    def fix_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def run_rnn(self, _tokens: list[int], newline_adj: int = 0) -> tuple[Any, int]:
        """Feed tokens in chunks; a request that waits here ends with 503 when the model is taken away."""
        logits = None
        for start in range(0, len(_tokens), CHUNK):
            if self._closed.is_set():
                raise unloaded()
            logits, self.model_state = self.model.forward(_tokens[start : start + CHUNK], self.model_state)
        self.model_tokens += _tokens
        return logits, len(_tokens)

    def delta_postprocess(self, delta: str) -> str:
        return delta

    def get_embedding(self, input: str | list[int], fast_mode: bool) -> tuple[list[float], int]:
        """A vector of ``n_embd`` numbers and length 1: the last layer's normalised input at the last token.

        ``input`` is text, or token ids (ApiError 400 for one outside the vocabulary). ``fast_mode`` is the mean of the
        input embeddings, without a pass through the model.
        """
        import torch

        tokens = self.fix_tokens(self.encode(input) if isinstance(input, str) else self.check_ids(input))
        with self._busy:
            if self._closed.is_set():
                raise unloaded()
            if fast_mode:
                weights = self.model.z if hasattr(self.model, "z") else self.model.w
                vector = weights["emb.weight"][torch.tensor(tokens)].float().mean(dim=0)
            else:
                self.model_state, self.model_tokens = None, []
                self.run_rnn(tokens)
                vector = self.model_state[-1].float()
            vector = vector.flatten()
            return (vector / vector.norm().clamp_min(1e-12)).tolist(), len(tokens)

    def shutdown(self) -> None:
        """End what runs, then drop the weights. Idempotent."""
        self._closed.set()
        with self._busy:
            self.model = self.pipeline = self.model_state = self.state_tuned = None
            self.model_tokens = []
