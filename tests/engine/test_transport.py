"""One suite for every transport; the second one below proves that a process could stand where the thread stands."""

from __future__ import annotations

import pickle
import sys
import threading
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from engine.fake_executor import END_AT, POISON_AT, expected, make_request
from engine.running import LIMIT, ends_of, engine, make_config, make_specs, read_sync, stage, tokens_of

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.messages import (
    Abort,
    Broken,
    Command,
    Down,
    Event,
    Failed,
    Finished,
    Loaded,
    LoadFailed,
    LoadProgress,
    ModelInfo,
    PromptLogprobs,
    Shutdown,
    Started,
    Stats,
    Submit,
    TokenLogprobs,
    Tokens,
)
from albatross_plugin.engine.request import FinishReason
from albatross_plugin.engine.step import WorkerSpec
from albatross_plugin.engine.transport import Emit, ThreadTransport, Transport


class PicklingTransport(ThreadTransport):
    """Everything that passes is taken apart and put together again, as on the way to another process."""

    def __init__(self, spec: WorkerSpec, config: EngineConfig, emit: Emit) -> None:
        def emit_copy(worker: int, events: list[Event]) -> None:
            emit(worker, pickle.loads(pickle.dumps(events)))

        super().__init__(pickle.loads(pickle.dumps(spec)), pickle.loads(pickle.dumps(config)), emit_copy)

    def send(self, command: Command) -> None:
        super().send(pickle.loads(pickle.dumps(command)))


TRANSPORTS = [ThreadTransport, PicklingTransport]
every_transport = pytest.mark.parametrize("kind", TRANSPORTS)


class Wire:
    """One transport, and what came up from it."""

    def __init__(self, kind: type[Transport], config: EngineConfig | None = None, **options: Any) -> None:
        config = config or make_config()
        self.batches: SimpleQueue[list[Event]] = SimpleQueue()
        self.transport = kind(make_specs(config, **options)[0], config, lambda worker, events: self.batches.put(events))
        self.seen: list[Event] = []
        self.transport.start()

    def until(self, kind: type) -> Any:
        """Read batches up to the first event of this kind, and return it."""
        while True:
            found = [event for event in self.seen if isinstance(event, kind)]
            if found:
                return found[0]
            try:
                self.seen += self.batches.get(timeout=LIMIT)
            except Empty:
                raise AssertionError(f"no {kind.__name__} among {self.seen}") from None

    def stop(self) -> list[Event]:
        self.transport.send(Shutdown("enough"))
        self.until(Down)
        assert self.transport.join(LIMIT)
        return self.seen


@every_transport
def test_a_life_from_load_to_down(kind: type[Transport]) -> None:
    wire = Wire(kind)
    assert wire.until(Loaded).info == ModelInfo("fake", 2, 128, 65536, "cpu", "float32", 100, 10)
    request = make_request(1, 5, 3)
    wire.transport.send(Submit((request,)))
    assert wire.until(Finished) == Finished(1, FinishReason.LENGTH, 5, 3)
    kinds = [type(event) for event in wire.stop()]
    assert kinds[:2] == [LoadProgress, Loaded] and kinds[-1] is Down
    assert kinds.index(Started) < kinds.index(Tokens) < kinds.index(Finished)
    assert [token for event in wire.seen if isinstance(event, Tokens) for token in event.token_ids] == expected(request)[0]
    assert wire.seen[-1] == Down("")


@every_transport
def test_one_batch_per_step_with_all_its_rows(kind: type[Transport]) -> None:
    wire = Wire(kind, make_config(batch=8))
    wire.until(Loaded)
    wire.transport.send(Submit(tuple(make_request(n, 3, 4) for n in range(1, 9))))
    batches: list[list[Event]] = []
    while not any(isinstance(event, Finished) for batch in batches for event in batch):
        batches.append(wire.batches.get(timeout=LIMIT))
    assert [type(event) for event in batches.pop(0)] == [Stats], "figures are there before the first request"
    assert [type(event) for event in batches.pop(0)] == [Started] * 8, "told before the first step runs"
    assert len(batches) == 4
    assert all([len(event.token_ids) for event in batch if isinstance(event, Tokens)] == [8] for batch in batches)
    assert sum(isinstance(event, Finished) for event in batches[-1]) == 8
    assert [type(event) for event in batches[-1]][-1] is Stats, "a worker that becomes idle says so"
    wire.stop()


@every_transport
def test_shutdown_fails_what_is_there(kind: type[Transport]) -> None:
    with stage("down") as control:
        wire = Wire(kind, make_config(batch=1), stage="down")
        wire.until(Loaded)
        wire.transport.send(Submit((make_request(1, 3, 10**6), make_request(2))))
        assert control.launched.acquire(timeout=LIMIT)
        wire.transport.send(Shutdown("enough"))
        wire.transport.send(Submit((make_request(3),)))
        control.open()
        wire.until(Down)
        failures = [event for event in wire.seen if isinstance(event, Failed)]
        assert failures == [Failed(n, "enough", 503) for n in (1, 2, 3)]
        assert control.closed == 1 and wire.transport.join(LIMIT)
        wire.transport.send(Abort((1,)))


@every_transport
def test_a_failed_load(kind: type[Transport]) -> None:
    wire = Wire(kind, load_error="ValueError")
    assert wire.until(LoadFailed) == LoadFailed("cannot load this")
    assert wire.until(Down) == Down("") and wire.transport.join(LIMIT)


@every_transport
def test_an_unexpected_load_error_is_told_with_its_type(kind: type[Transport]) -> None:
    wire = Wire(kind, load_error="KeyError")
    assert wire.until(LoadFailed) == LoadFailed("KeyError: 'cannot load this'")
    wire.until(Down)


def test_whatever_ends_the_worker_s_thread_is_told() -> None:
    config, batches = make_config(), SimpleQueue[list[Event]]()
    # Without a configuration the worker cannot even be made.
    transport = ThreadTransport(make_specs(config)[0], None, lambda worker, events: batches.put(events))  # type: ignore[arg-type]
    transport.start()
    failed, down = batches.get(timeout=LIMIT)
    assert isinstance(failed, LoadFailed) and "AttributeError" in failed.message
    assert down == Down(failed.message) and transport.join(LIMIT)


@every_transport
def test_a_load_is_called_off_between_two_reports_of_progress(kind: type[Transport]) -> None:
    with stage("loading") as control:
        wire = Wire(kind, load_stage="loading")
        assert wire.until(LoadProgress) == LoadProgress(10, 100)
        wire.transport.send(Shutdown())
        control.open()
        assert [type(event) for event in wire.stop()] == [LoadProgress, Down]


@every_transport
def test_the_core_over_it(kind: type[Transport]) -> None:
    with engine(make_config(workers=2, batch=2), kind, depth=2) as core:
        prompts = ((1, 2), (3, END_AT + 2), (4, POISON_AT), (5, 6, 7))
        requests = [make_request(core.next_request_id(), prompt, 6, logprobs=1, prompt_logprobs=True) for prompt in prompts]
        deliveries = read_sync(core.submit(requests, loop=None))
        for index in (0, 1, 3):
            assert tokens_of(deliveries, index) == expected(requests[index])[0]
        assert isinstance(ends_of(deliveries, 2)[0], Failed)


def test_a_transport_that_was_never_started_can_be_joined() -> None:
    config = make_config()
    assert ThreadTransport(make_specs(config)[0], config, lambda worker, events: None).join(0.1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("albatross-worker")]


NUMBERS = TokenLogprobs(5, -0.1, ((5, -0.1), (6, -2.5)))
MESSAGES: list[Command | Event] = [
    Submit((make_request(1, 4, priority=2, group=3, initial_state=(1.5,), seed=7, logit_bias=((3, -100.0),)),)),
    Abort((1, 2)),
    Shutdown("bye"),
    LoadProgress(1, 2),
    Loaded(ModelInfo("m", 1, 2, 3, "cpu", "float32", 4, 5)),
    LoadFailed("why"),
    Started(1),
    Tokens([1, 2], [3, 4], [None, NUMBERS]),
    PromptLogprobs(1, (NUMBERS,)),
    Finished(1, FinishReason.STOP, 2, 3),
    Failed(1, "why", 503),
    Stats(1, 2, 3, 4, 5, 6, 7, 0.1, 1.5, 2.5, 8, 9),
    Broken("why"),
    Down("why"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_way_to_another_process(message: Command | Event) -> None:
    assert pickle.loads(pickle.dumps(message)) == message


def test_no_message_was_forgotten() -> None:
    assert {type(message) for message in MESSAGES} == {*Command.__args__, *Event.__args__}  # type: ignore[attr-defined]


def test_turns_at_the_interpreter_s_lock_are_short_while_workers_run() -> None:
    usual = sys.getswitchinterval()
    with engine(make_config(workers=2)):
        assert sys.getswitchinterval() == pytest.approx(min(usual, 0.0005))
    assert sys.getswitchinterval() == pytest.approx(usual)
