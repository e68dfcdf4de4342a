"""A card that is not there: what the CUDA engine's modules use of torch.cuda, kept on the CPU, so that their logic runs anywhere.

Nothing of torch itself is replaced: the modules see another ``torch``, which differs in its devices and its pinned memory. Work is done
when it is queued, but a capture only keeps it, with the tensors that it was given, and a replay does what was kept.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model.pretended_kernels import Kernels

from albatross_plugin.model import arena, cuda_executor, cuda_memory, cuda_sampler, cuda_steps, graphs, products

CPU = torch.device("cpu")


class Card:
    """``eager`` counts operators that ran without a graph, ``replays`` the graphs that ran, ``waits`` waits for events and streams.

    Time is random, so that each of the ways to compute a product is the fastest somewhere. After ``refuse_after`` more captures, where
    that is set, none succeeds. ``problem``: what every operator raises from now on; ``lost``: so does everything else.
    """

    def __init__(self, seed: int = 0) -> None:
        self.refuse_after: int | None = None
        self.problem = ""
        self.lost = False
        self.eager = self.replays = self.waits = 0
        self._graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
        self.kernels = Kernels(self.queue)
        self.capturing: list[Callable[[], None]] | None = None
        self.now = 0.0
        # Streams that take part in the capture, and whether they got work that no other stream comes after.
        self._unjoined: dict[Stream, bool] = {}
        self._random = random.Random(seed)
        self._default = Stream(self)
        self._thread = threading.local()

    def queue(self, run: Callable[[], None]) -> None:
        assert self.stream is not self._default, "work on the default stream is ordered with nothing"
        self.check(self.problem)
        if self.capturing is not None:
            assert self.stream in self._unjoined, "a stream that does not follow the one that is captured"
            self._unjoined[self.stream] = True
            self.capturing.append(run)
            return
        self.eager += 1
        run()

    def begin(self) -> None:
        assert self.capturing is None and self.stream is not self._default
        if self.refuse_after is not None:
            self.refuse_after -= 1
            if self.refuse_after < 0:
                raise RuntimeError("no graphs today")
        self.capturing, self._unjoined = [], {self.stream: False}

    def end(self) -> list[Callable[[], None]]:
        kept, self.capturing = self.capturing, None
        self._unjoined.pop(self.stream)
        assert kept is not None and not any(self._unjoined.values()), "work of another stream that nobody waits for"
        return kept

    def follow(self, stream: Stream, other: Stream) -> None:
        """What ``stream`` gets from here on comes after all that ``other`` has got."""
        assert other is not stream
        if self.capturing is not None and other in self._unjoined:
            self._unjoined[other] = False
            self._unjoined.setdefault(stream, False)

    def check(self, problem: str) -> None:
        if problem:
            raise RuntimeError(problem)

    def wait(self) -> None:
        self.check(self.problem if self.lost else "")
        if self.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.waits += 1

    def tick(self) -> float:
        self.now += self._random.random()
        return self.now

    @property
    def graphs(self) -> int:
        """How many can be replayed."""
        return sum(graph.ready for graph in self._graphs)

    @property
    def stream(self) -> Stream:
        found: Stream = getattr(self._thread, "stream", self._default)
        return found

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        before, self._thread.stream = self.stream, stream
        try:
            yield
        finally:
            self._thread.stream = before

    def graph(self) -> Graph:
        made = Graph(self)
        self._graphs.add(made)
        return made

    @property
    def cuda(self) -> SimpleNamespace:
        return SimpleNamespace(
            Stream=lambda device=None: Stream(self),
            Event=lambda **_: Event(self),
            CUDAGraph=self.graph,
            stream=self.use,
            current_stream=lambda device=None: self.stream,
            set_device=lambda device: None,
            synchronize=lambda device=None: self.wait(),
            empty_cache=lambda: None,
            mem_get_info=lambda device=None: (1 << 40, 1 << 41),
            memory_allocated=lambda device=None: 1 << 20,
            max_memory_allocated=lambda device=None: 1 << 21,
        )


class Stream:
    def __init__(self, card: Card) -> None:
        self._card = card

    def synchronize(self) -> None:
        self._card.wait()

    def query(self) -> bool:
        self._card.check(self._card.problem if self._card.lost else "")
        return True

    def wait_stream(self, other: Stream) -> None:
        self._card.follow(self, other)


class Event:
    def __init__(self, card: Card) -> None:
        self._card = card
        self._at: float | None = None

    def record(self, stream: Stream) -> None:
        self._at = self._card.tick()

    def synchronize(self) -> None:
        assert self._at is not None, "an event that nobody recorded"
        self._card.wait()

    def elapsed_time(self, later: Event) -> float:
        assert self._at is not None and later._at is not None
        return later._at - self._at


class Graph:
    """Keeps what was queued during its capture, until ``reset``."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._kept: list[Callable[[], None]] | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self._card.begin()

    def capture_end(self) -> None:
        self._kept = self._card.end()

    @property
    def ready(self) -> bool:
        return self._kept is not None

    def pool(self) -> tuple[int, int]:
        return 0, 1

    def replay(self) -> None:
        assert self._kept, "a graph that was not captured, or was reset"
        self._card.check(self._card.problem)
        self._card.replays += 1
        for run in self._kept:
            run()

    def reset(self) -> None:
        self._kept = None


class _Torch:
    """torch, but for devices, which are the CPU, and for pinned memory, which is any memory."""

    def __init__(self, card: Card) -> None:
        self.cuda = card.cuda
        self._C = SimpleNamespace()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *_: object) -> torch.device:
        return CPU

    def zeros(self, *shape: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        return torch.zeros(*shape, **more)

    def empty(self, *shape: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        return torch.empty(*shape, **more)


def pretend(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Card:
    """From here on CudaExecutor runs on a Card."""
    card = Card(**more)
    for module in (cuda_executor, cuda_memory, cuda_steps, graphs, products):
        monkeypatch.setattr(module, "torch", _Torch(card))
    for module, name in ((cuda_executor, "load_kernels"), (cuda_sampler, "load_kernels"), (arena, "ops")):
        monkeypatch.setattr(module, name, lambda *_, **__: card.kernels)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: self)
    return card
