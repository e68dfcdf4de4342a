"""Whatever is streamed, a strict reader finds the same chunks, however the bytes were cut on their way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

pytest.importorskip("fastapi")

from cases.strict_sse import SseReader
from hypothesis import given, settings
from hypothesis import strategies as st

from albatross_plugin.engine.request import FinishReason
from albatross_plugin.errors import GenerationError
from albatross_plugin.serving.chunks import AnswerWriter, dumps, error_chunk
from albatross_plugin.serving.sse import encode_sse_batch, encode_sse_data, sse
from host_stub.sse import error_event, frames

# All of Unicode but halves of surrogate pairs, which no text of a model holds; line ends of every kind among it.
TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\r\n\u2028\u2029\x85\x00\ufeff")), max_size=20)
CHUNKS = st.lists(TEXTS, max_size=6)


def read(data: bytes, cuts: Sequence[int]) -> list[str]:
    reader, start = SseReader(), 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        reader.feed(data[start:cut])
        start = cut
    reader.close()
    return reader.events


async def source(chunks: Sequence[str], error: Exception | None = None) -> AsyncIterator[str]:
    for chunk in chunks:
        yield chunk
    if error is not None:
        raise error


async def joined(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])


@settings(max_examples=200, deadline=None, database=None)
@given(texts=CHUNKS, cuts=st.lists(st.integers(0), max_size=5), chat=st.booleans(), choices=st.integers(1, 3))
def test_texts_of_any_kind_arrive_as_they_were(texts: list[str], cuts: list[int], chat: bool, choices: int) -> None:
    writer = AnswerWriter("a \"name\" with '\n'", chat=chat, stream=True, include_usage=False, token_bytes=[])
    chunks = [writer.text(index % choices, text) for index, text in enumerate(texts)]
    for index in range(choices):
        chunks += writer.finish(index, FinishReason.STOP)
    chunks.append("[DONE]")
    expected = encode_sse_batch(chunks)
    assert (
        expected
        == b"".join(map(encode_sse_data, chunks))
        == asyncio.run(joined(sse(source(chunks))))
        == asyncio.run(joined(frames(source(chunks))))
    )
    events = read(expected, cuts)
    assert events == chunks
    found = ["" for _ in range(choices)]
    for event in events[:-1]:
        (choice,) = json.loads(event)["choices"]
        found[choice["index"]] += choice["delta"].get("content", "") if chat else choice["text"]
    assert found == ["".join(texts[index::choices]) for index in range(choices)]


@settings(max_examples=200, deadline=None, database=None)
@given(message=st.text(max_size=30), status=st.sampled_from([400, 429, 500, 503]), before=CHUNKS, cuts=st.lists(st.integers(0), max_size=3))
def test_an_error_of_any_text_is_one_last_event(message: str, status: int, before: list[str], cuts: list[int]) -> None:
    chunks = [json.dumps(text) for text in before]
    for data in (
        asyncio.run(joined(frames(source(chunks, GenerationError(message, status=status))))),
        encode_sse_batch([*chunks, error_chunk(GenerationError(message, status=status))]),
    ):
        *events, last = read(data, cuts)
        assert events == chunks
        error: dict[str, Any] = json.loads(last)["error"]
        assert error["type"] == ("server_error" if status >= 500 else error["type"]) and isinstance(error["message"], str)
    assert json.loads(error_event(ValueError(message)))["error"]["code"] == "internal_error"


@given(text=TEXTS)
def test_json_of_any_text_reads_back(text: str) -> None:
    assert json.loads(dumps({"a": text})) == {"a": text}
