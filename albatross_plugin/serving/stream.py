"""ChunkStream: the chunks of one streamed answer, one after the other or in batches of those that are ready together."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from types import TracebackType


class ChunkStream(AsyncGenerator[str, None]):
    """An async generator of chunks over one of batches. A reader uses either this object or ``batches()``, not both."""

    def __init__(self, batches: AsyncGenerator[list[str], None]) -> None:
        self._batches = batches
        self._ready: deque[str] = deque()

    def batches(self) -> AsyncGenerator[list[str], None]:
        """Lists of chunks, none of them empty. Chunks of one list are ready at the same time and worth one write to a socket."""
        return self._batches

    async def asend(self, value: None) -> str:
        while not self._ready:
            self._ready.extend(await self._batches.__anext__())
        return self._ready.popleft()

    async def athrow(
        self, kind: type[BaseException] | BaseException, value: BaseException | object = None, trace: TracebackType | None = None, /
    ) -> str:
        self._ready.extend(await self._batches.athrow(value if isinstance(value, BaseException) else kind))
        return await self.asend(None)

    async def aclose(self) -> None:
        self._ready.clear()
        await self._batches.aclose()
