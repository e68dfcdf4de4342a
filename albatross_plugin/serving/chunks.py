"""The JSON of answers: stream chunks, whole answers, logprobs. Per-token work is one string dump."""

from __future__ import annotations

import codecs
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from albatross_plugin.engine.messages import TokenLogprobs
from albatross_plugin.engine.request import FinishReason
from albatross_plugin.errors import GenerationError
from albatross_plugin.serving.error_object import error_object

try:
    import orjson
except ImportError:
    quote = json.encoder.encode_basestring

    def dumps(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
else:

    def dumps(value: Any) -> str:
        return orjson.dumps(value).decode()

    quote = dumps


def error_chunk(error: GenerationError) -> str:
    """An error in the form that OpenAI clients raise when they meet it inside a stream."""
    return dumps({"error": error_object(error)})


class TextOffsets:
    """Where each token of one choice stands in its text, in characters. The parts of a character all stand where it stands."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = 0

    def take(self, raw: bytes) -> int:
        """The place of the next token, whose bytes these are."""
        place = self._count
        self._count += len(self._decoder.decode(raw))
        return place


class AnswerWriter:
    """Writes one answer: ``id``, ``created`` and ``model`` are the same in all its chunks."""

    def __init__(self, model: str, *, chat: bool, stream: bool, include_usage: bool, token_bytes: Sequence[bytes]) -> None:
        self.chat = chat
        self._tokens = token_bytes
        kind = ("chat.completion.chunk" if stream else "chat.completion") if chat else "text_completion"
        self.head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex,
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self._head = dumps(self.head)[:-1]
        self._tail = ',"usage":null}' if include_usage else "}"
        self._prefixes: dict[int, str] = {}
        self._suffix = ('},"finish_reason":null}]' if chat else ',"finish_reason":null}]') + self._tail

    def text(self, index: int, text: str, logprobs: dict[str, Any] | None = None) -> str:
        """A chunk with new text of one choice; the first one of a chat choice names the role."""
        prefix = self._prefixes.get(index)
        if prefix is not None and logprobs is None:
            return prefix + quote(text) + self._suffix
        if prefix is None:
            start = f'{self._head},"choices":[{{"index":{index},'
            prefix = self._prefixes[index] = start + ('"delta":{"content":' if self.chat else '"text":')
            if self.chat:
                start += '"delta":{"role":"assistant","content":'
                return start + quote(text) + self._ending(logprobs)
        return prefix + quote(text) + self._ending(logprobs)

    def _ending(self, logprobs: dict[str, Any] | None) -> str:
        if logprobs is None:
            return self._suffix
        close = "}" if self.chat else ""
        return f'{close},"logprobs":{dumps(logprobs)},"finish_reason":null}}]{self._tail}'

    def finish(self, index: int, reason: FinishReason) -> list[str]:
        """The chunk that says why a choice ended; a chat choice without text gets its role first."""
        chunks = [self.text(index, "")] if self.chat and index not in self._prefixes else []
        body = '"delta":{}' if self.chat else '"text":""'
        chunks.append(f'{self._head},"choices":[{{"index":{index},{body},"finish_reason":"{reason.value}"}}]{self._tail}')
        return chunks

    def usage_chunk(self, usage: dict[str, int]) -> str:
        return f'{self._head},"choices":[],"usage":{dumps(usage)}}}'

    def answer(self, choices: Sequence[tuple[str, FinishReason, dict[str, Any] | None]], usage: dict[str, int]) -> dict[str, Any]:
        """The whole answer of a call that does not stream."""
        listed = []
        for index, (text, reason, logprobs) in enumerate(choices):
            choice: dict[str, Any] = {"index": index}
            choice.update({"message": {"role": "assistant", "content": text}} if self.chat else {"text": text})
            if logprobs is not None:
                choice["logprobs"] = logprobs
            choice["finish_reason"] = reason.value
            listed.append(choice)
        return {**self.head, "choices": listed, "usage": usage}

    def logprobs(self, entries: Sequence[TokenLogprobs | None], first_token: int | None, places: TextOffsets) -> dict[str, Any]:
        """Logprobs in the form of the route. ``first_token`` is a prompt's first token, whose probability nobody knows.

        ``places`` is kept from one part of a choice's logprobs to the next.
        """
        known = [entry for entry in entries if entry is not None]
        if self.chat:
            return {"content": [self._chat_entry(entry) for entry in known]}
        names = [self._name(entry.token_id) for entry in known]
        values: list[float | None] = [entry.logprob for entry in known]
        tops: list[dict[str, float] | None] = [{self._name(t): p for t, p in entry.top} for entry in known]
        if first_token is not None:
            names.insert(0, self._name(first_token))
            values.insert(0, None)
            tops.insert(0, None)
        ids = [] if first_token is None else [first_token]
        offsets = [places.take(self._raw(token)) for token in ids + [entry.token_id for entry in known]]
        return {"tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _chat_entry(self, entry: TokenLogprobs) -> dict[str, Any]:
        top = [{"token": self._name(t), "logprob": p, "bytes": list(self._raw(t))} for t, p in entry.top]
        return {
            "token": self._name(entry.token_id),
            "logprob": entry.logprob,
            "bytes": list(self._raw(entry.token_id)),
            "top_logprobs": top,
        }

    def _raw(self, token: int) -> bytes:
        return self._tokens[token] if token < len(self._tokens) else b""

    def _name(self, token: int) -> str:
        """A token's text; the part of a character is named by its bytes, so that two of them do not look the same."""
        raw = self._raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": prompt_tokens + completion_tokens}
