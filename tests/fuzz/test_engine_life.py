"""Random lives of a whole engine with a model that costs nothing: every request ends once, whatever comes when."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from engine.fake_executor import END_AT, POISON_AT, expected, make_request
from engine.running import LIMIT, Engine, ends_of, eventually, make_config, tokens_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from albatross_plugin.engine.delivery import Delivery
from albatross_plugin.engine.messages import Failed, Finished
from albatross_plugin.engine.request import FinishReason, Request
from albatross_plugin.errors import RequestError

STEPS = st.lists(st.integers(0, 60), max_size=3)


class Call:
    """One submission, and what was heard of it so far."""

    def __init__(self, requests: list[Request], completion: Any) -> None:
        self.requests, self.completion = requests, completion
        self.heard: list[Delivery] = []
        self.aborted: set[int] = set()
        self.over = False

    def read(self) -> None:
        """The next news; sets ``over`` when there will be none."""
        news = self.completion.next_events_sync(LIMIT)
        self.heard += news
        self.over = not news


class EngineLife(RuleBasedStateMachine):
    """Threads, queues and loops are the real ones; the executor alone is not."""

    @initialize(
        batch=st.integers(1, 4),
        workers=st.integers(1, 2),
        depth=st.integers(1, 2),
        queue=st.integers(1, 12),
        faults=st.fixed_dictionaries(
            {}, optional={"fail_launch": STEPS, "fail_collect": STEPS, "die": st.integers(0, 60), "only": st.just(0)}
        ),
        lost=st.sampled_from([(), (), (), (20,)]),
    )
    def begin(self, batch: int, workers: int, depth: int, queue: int, faults: dict[str, Any], lost: tuple[int, ...]) -> None:
        self.engine = Engine(make_config(batch=batch, workers=workers, max_queue=queue), depth=depth, lose_collect=lost, **faults)
        self.engine.start()
        self.calls: list[Call] = []
        self.faulty = bool(faults.keys() - {"only"} or lost)
        self.down = False

    @rule(
        count=st.integers(1, 3),
        length=st.integers(1, 40),
        tokens=st.integers(1, 30),
        priority=st.integers(-1, 1),
        last=st.sampled_from([0, 0, 0, END_AT, END_AT + 3, POISON_AT + 1]),
    )
    def submit(self, count: int, length: int, tokens: int, priority: int, last: int) -> None:
        core, requests = self.engine.core, []
        group = core.next_request_id()
        for _ in range(count):
            number = core.next_request_id()
            prompt = (*range(number, number + length - 1), last or 500 + number)
            requests.append(make_request(number, prompt, tokens, priority=priority, group=group))
        try:
            completion = core.submit(requests, loop=None)
        except RequestError as error:
            assert error.status in (400, 429, 503)
            assert error.status != 503 or self.down or self.faulty
            assert error.status != 400 or count > 1, "more than could ever wait"
            return
        assert not self.down
        self.calls.append(Call(requests, completion))

    # What is drawn must not hang on how far the engine has come, so these pick by number and may find nothing to do.
    @rule(which=st.integers(0, 50))
    def read_some(self, which: int) -> None:
        running = [call for call in self.calls if not call.over]
        if running:
            running[which % len(running)].read()

    @rule(which=st.integers(0, 50), part=st.one_of(st.none(), st.integers(0, 2)))
    def abort(self, which: int, part: int | None) -> None:
        if self.calls:
            call = self.calls[which % len(self.calls)]
            index = None if part is None else part % len(call.requests)
            call.aborted.update(range(len(call.requests)) if index is None else [index])
            call.completion.abort(index)

    @rule(dice=st.integers(0, 14))
    def shut_down(self, dice: int) -> None:
        if dice == 0 and not self.down:
            self.engine.call(self.engine.core.shutdown())
            self.down = True

    def check(self, call: Call) -> None:
        for index, request in enumerate(call.requests):
            (end,) = ends_of(call.heard, index)
            tokens, reason = expected(request)
            seen = tokens_of(call.heard, index)
            assert seen == tokens[: len(seen)]
            if isinstance(end, Failed):
                assert self.faulty or self.down or request.prompt_ids[-1] > POISON_AT
            else:
                assert isinstance(end, Finished) and end.completion_tokens == len(seen)
                assert end.reason is reason or (end.reason is FinishReason.ABORT and index in call.aborted)
                assert end.reason is FinishReason.ABORT or seen == tokens

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        random.Random(len(self.calls)).shuffle(self.calls)
        for call in self.calls:
            while not call.over:
                call.read()
            self.check(call)
        core = self.engine.core
        eventually(lambda: core.status()["slots"]["active"] == 0 and core.status()["queue"]["length"] == 0)
        figures = core.status()["requests"]
        assert figures["accepted"] == sum(len(call.requests) for call in self.calls)
        assert figures["accepted"] == sum(figures[kind] for kind in ("stop", "length", "abort", "error"))
        self.engine.stop()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("albatross")]


EngineLife.TestCase.settings = settings(max_examples=12, stateful_step_count=25, deadline=None, database=None)
TestEngineLife = EngineLife.TestCase


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_hundreds_of_engine_lives() -> None:
    run_state_machine_as_test(EngineLife, settings=settings(max_examples=500, stateful_step_count=40, deadline=None, database=None))
