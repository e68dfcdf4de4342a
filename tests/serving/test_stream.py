"""Chunks that are ready together, and tokens that gather while a stream's loop is behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from albatross_plugin.completion import AlbatrossCompletion, Piece
from albatross_plugin.engine.delivery import AsyncEngineCompletion, Delivery, deliver
from albatross_plugin.engine.messages import Finished
from albatross_plugin.engine.request import FinishReason, SamplingParams
from albatross_plugin.serving.sse import sse
from albatross_plugin.serving.stream import ChunkStream

TABLE = [b"", b"a", b"b", b"S", b"T", b"ST"]


def stream(*batches: list[str], closed: list[str] | None = None) -> ChunkStream:
    async def source() -> AsyncGenerator[list[str], None]:
        try:
            for batch in batches:
                yield batch
        finally:
            if closed is not None:
                closed.append("yes")

    return ChunkStream(source())


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 10))


def test_a_stream_reads_as_chunks_or_as_batches() -> None:
    async def main() -> None:
        assert [chunk async for chunk in stream(["1", "2"], ["3"])] == ["1", "2", "3"]
        assert [batch async for batch in stream(["1", "2"], ["3"]).batches()] == [["1", "2"], ["3"]]
        framed = [part async for part in sse(stream(["1", "2"], ["3"]))]
        assert framed == [b"data: 1\r\n\r\ndata: 2\r\n\r\n", b"data: 3\r\n\r\n"]

    run(main())


def test_closing_a_stream_closes_its_source() -> None:
    async def main() -> None:
        closed: list[str] = []
        chunks = stream(["1", "2"], ["3"], closed=closed)
        assert await chunks.__anext__() == "1"
        await chunks.aclose()
        assert closed == ["yes"]
        with pytest.raises(StopAsyncIteration):
            await chunks.__anext__()
        await chunks.aclose()
        untouched = stream(["1"])
        await untouched.aclose()
        with pytest.raises(ValueError, match="thrown"):
            await stream(["1"]).athrow(ValueError("thrown"))

    run(main())


class Source:
    """A completion whose engine is the test."""

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self.aborted: list[int] = []
        self.source = AsyncEngineCompletion([1], asyncio.get_running_loop(), self.aborted.extend)
        self.completion = AlbatrossCompletion(self.source, TABLE, stops, [SamplingParams()], [3])

    def give(self, *tokens: int) -> None:
        for token in tokens:
            deliver([self.source], [0], [token], None)

    def end(self, count: int) -> None:
        self.source.receive(Delivery(0, Finished(1, FinishReason.LENGTH, 3, count)))

    async def pieces(self, merge_from: int | None) -> list[tuple[str, int]]:
        return [(piece.text, piece.tokens) for piece in await self.completion.pieces(merge_from)]


def test_few_tokens_stay_apart_and_many_become_one() -> None:
    async def main() -> None:
        source = Source()
        source.give(1, 2, 1)
        assert await source.pieces(4) == [("a", 1), ("b", 2), ("a", 3)]
        source.give(1, 2, 1, 2)
        assert await source.pieces(4) == [("abab", 7)]
        source.give(1, 2, 1, 2, 1)
        assert await source.pieces(None) == [("a", 8), ("b", 9), ("a", 10), ("b", 11), ("a", 12)]
        source.give(1, 0)
        source.end(14)
        assert await source.pieces(1) == [("a", 14), ("", 14)], "the end token is counted and has no text"
        assert await source.pieces(1) == []

    run(main())


@pytest.mark.parametrize("merge_from", [None, 1])
def test_a_stop_among_several_tokens_counts_as_it_does_alone(merge_from: int | None) -> None:
    async def main() -> None:
        source = Source(("ST",))
        source.give(1, 3, 4, 2, 2)
        pieces: list[Piece] = await source.completion.pieces(merge_from)
        assert "".join(piece.text for piece in pieces) == "a"
        assert (pieces[-1].tokens, pieces[-1].finish_reason) == (3, FinishReason.STOP)
        assert source.aborted == [1] and source.source.stopped == {0}
        assert await source.completion.pieces(merge_from) == []

    run(main())


def test_a_patient_reader_waits_for_what_may_complete_a_stop() -> None:
    async def main() -> None:
        source = Source(("ST",))
        source.completion.be_patient()
        waiting = asyncio.create_task(source.completion.pieces(1))
        await asyncio.sleep(0)
        source.give(1, 2, 1, 2)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        source.give(3)
        assert [piece.text for piece in await waiting] == ["abab"]
        waiting = asyncio.create_task(source.completion.pieces(1))
        await asyncio.sleep(0)
        source.give(1)
        assert [piece.text for piece in await waiting] == ["Sa"], "a match that was begun makes every token urgent"
        source.give(5)
        assert (await source.completion.pieces(1))[0].finish_reason is FinishReason.STOP

    run(main())
