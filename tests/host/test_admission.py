"""Who is taken, who is refused, and in which order those who were taken are served; through HTTP, with steps that a test holds up."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch")

from engine.fake_executor import NAME, Stage
from engine.running import stage
from host.live import LiveHost, wait_for

from albatross_plugin import hooks
from albatross_plugin.bench.chosen_executor import ChosenExecutor, strategy

Serve = Callable[..., "Staged"]


class Staged:
    """A host whose engine makes a step only when it is allowed to."""

    def __init__(self, host: LiveHost, control: Stage, pool: ThreadPoolExecutor) -> None:
        self.host, self.control, self._pool = host, control, pool

    def ask(self, path: str = "/v1/completions", **body: Any) -> Future[httpx.Response]:
        """Send a call from a thread of its own; what counts is when it was admitted or refused."""
        body = {"max_tokens": 1, **({"prompt": "a"} if "messages" not in body else {}), **body}
        before = self.decided()
        future = self._pool.submit(lambda: self.host.client.post(path, json=body))
        wait_for(lambda: self.decided() > before or future.done())
        if future.done():
            assert future.result().status_code in (200, 400, 429), future.result().text
        return future

    def engine(self) -> dict[str, Any]:
        return dict(self.host.status()["albatross"])

    def decided(self) -> int:
        requests = self.engine()["requests"]
        return int(requests["accepted"] + requests["rejected"])

    def hold(self, **body: Any) -> Future[httpx.Response]:
        """One request runs, and its first step waits for the test."""
        running = self.ask(**body)
        assert self.control.launched.acquire(timeout=30)
        return running


@pytest.fixture(scope="module")
def live() -> Iterator[LiveHost]:
    with LiveHost(("albatross", hooks), ("executor", ChosenExecutor())) as running:
        yield running


@pytest.fixture
def serve(live: LiveHost, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    (tmp_path / "fake.pth").touch()

    @contextmanager
    def served(batch: int = 1, **config: Any) -> Iterator[Staged]:
        with stage("admission") as control, ThreadPoolExecutor(64) as pool:
            config = {"gather_ms": 0.0, **config}
            answer = live.switch(tmp_path / "fake.pth", strategy(NAME, batch, {"stage": "admission"}, **config))
            assert answer.status_code == 200, answer.text
            try:
                yield Staged(live, control, pool)
            finally:
                control.open()
                live.switch("")

    yield served


def prefilled(control: Stage) -> list[int]:
    """Priorities of the requests in the order in which they got a slot."""
    return [admission.request.priority for plan in list(control.plans) for admission in plan.admit]


def test_r31_exactly_the_surplus_is_refused(serve: Serve) -> None:
    with serve(batch=2, max_queue=3) as staged:
        calls = [staged.ask(stream=number % 2 == 0, max_tokens=3) for number in range(12)]
        requests = staged.engine()["requests"]
        assert (requests["accepted"], requests["rejected"]) == (5, 7)
        staged.control.open()
        answers = [call.result(30) for call in calls]
    assert Counter(answer.status_code for answer in answers) == {200: 5, 429: 7}
    for answer in answers:
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.headers["content-type"] == "application/json" and answer.json()["error"]["code"] == "queue_full"
            assert answer.json()["error"]["type"] == "rate_limit_error"


def test_r31_a_call_is_taken_as_a_whole_or_not_at_all(serve: Serve) -> None:
    with serve(batch=1, max_queue=3) as staged:
        calls = [staged.hold()]
        for body in ({"n": 4}, {"prompt": ["a", "b", "c", "d"]}, {"prompt": ["a", "b"], "n": 2, "stream": True}):
            assert staged.ask(**body).result(30).status_code == 429
            assert staged.engine()["queue"]["length"] == 0, body
        refused = staged.ask(n=5).result(30)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt"), "more than would ever be taken"
        calls.append(staged.ask(n=3))
        assert staged.engine()["queue"]["length"] == 3
        assert staged.ask().result(30).status_code == 429
        staged.control.open()
        assert [len(call.result(30).json()["choices"]) for call in calls] == [1, 3]


def test_a_queue_of_none(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBATROSS_MAX_QUEUE", "0")
    with serve(batch=2) as staged:
        calls = [staged.hold(), staged.ask()]
        refused = staged.ask().result(30)
        assert refused.status_code == 429 and "2 slots and 0 places" in refused.json()["error"]["message"]
        staged.control.open()
        assert [call.result(30).status_code for call in calls] == [200, 200]


def test_waiting_prompts_have_a_bound_in_tokens(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBATROSS_MAX_QUEUE_TOKENS", "100")
    with serve(batch=1) as staged:
        calls = [staged.hold(), staged.ask(prompt=[5] * 300)]
        assert staged.engine()["queue"]["tokens"] == 300, "who waits behind nobody is taken whatever it holds"
        refused = staged.ask(prompt="a").result(30)
        assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 60
        assert "300 of at most 100 tokens" in refused.json()["error"]["message"]
        staged.control.open()
        assert [call.result(30).status_code for call in calls] == [200, 200]
        assert staged.engine()["queue"]["tokens"] == 0
        assert staged.ask(prompt=[5] * 300).result(30).status_code == 200


def test_a_place_is_free_once_its_holder_was_told_to_end(serve: Serve) -> None:
    with serve(batch=1, max_queue=0) as staged:
        staged.control.open()
        first = staged.ask(max_tokens=8).result(30).json()["choices"][0]["text"]
        for _ in range(20):
            # The text is complete long before the engine's last token: whoever was answered may ask again.
            answer = staged.host.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 10**5, "stop": first[0]})
            assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "")


def test_abt_3_clients_that_leave_the_queue_make_room_at_once(serve: Serve) -> None:
    with serve(batch=1, max_queue=2) as staged:
        staged.hold()
        for _ in range(2):
            with staged.host.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
                assert response.status_code == 200
        calls: list[Future[httpx.Response]] = []

        def taken() -> bool:
            before = staged.engine()["requests"]["accepted"]
            call = staged.ask()
            if staged.engine()["requests"]["accepted"] == before:
                return False
            calls.append(call)
            return True

        # The step is still held up, so the engine itself has not yet heard that they left.
        wait_for(taken)
        wait_for(taken)
        assert staged.ask().result(30).status_code == 429
        staged.control.open()
        assert [call.result(30).status_code for call in calls] == [200, 200]
        assert len(prefilled(staged.control)) == 3, "those that left were never fed"


def test_ui_1_a_call_for_a_hundred_does_not_keep_a_chat_waiting(serve: Serve) -> None:
    with serve(batch=1) as staged:
        many = staged.hold(n=100)
        chat = staged.ask("/v1/chat/completions", messages=[{"role": "user", "content": "hello"}])
        staged.control.allow(3)
        assert chat.result(30).status_code == 200
        wait_for(lambda: staged.engine()["queue"]["length"] == 97)
        staged.control.open()
        assert len(many.result(60).json()["choices"]) == 100


def test_r31_lower_priority_numbers_are_served_first(serve: Serve) -> None:
    with serve(batch=1) as staged:
        calls = [staged.hold()]
        calls += [staged.ask(priority=priority) for priority in (5, 0, -3, 0)]
        staged.control.open()
        assert [call.result(30).status_code for call in calls] == [200] * 5
        assert prefilled(staged.control) == [0, -3, 0, 0, 5]
        assert staged.ask(priority=1.5).result(30).json()["error"]["param"] == "priority"


def test_the_queue_in_the_status(serve: Serve) -> None:
    with serve(batch=1) as staged:
        staged.hold()
        for priority, count in ((5, 1), (0, 3), (-3, 1), (0, 1)):
            staged.ask(priority=priority, n=count, prompt="a secret")
        queue = staged.engine()["queue"]
        assert queue["length"] == 6 and queue["limit"] == 4096
        assert [(each["priority"], each["length"]) for each in queue["priorities"]] == [(-3, 1), (0, 4), (5, 1)]
        places = [(each["position"], each["priority"], each["waiting"]) for each in queue["next"]]
        assert places == [(1, -3, 1), (2, 0, 3), (3, 0, 1), (6, 5, 1)]
        waits = [each["wait_s"] for each in queue["next"]]
        assert 0 < waits[3] == queue["oldest_wait_s"] and waits[1] > waits[0] > waits[2] > 0
        assert queue["estimated_wait_s"] == 7.0, "seven requests go before the next one, a second each until one was measured"
        assert "secret" not in json.dumps(staged.host.status())
        # The call for three was served once: the other one of its priority goes before its second.
        staged.control.allow(3)
        wait_for(lambda: len(prefilled(staged.control)) == 4)
        wait_for(lambda: staged.engine()["queue"]["length"] == 3)
        queue = staged.engine()["queue"]
        assert [(each["position"], each["priority"], each["waiting"]) for each in queue["next"]] == [(1, 0, 2), (3, 5, 1)]
        assert 0 < queue["estimated_wait_s"] < 7.0


def test_the_status_stays_small(serve: Serve) -> None:
    with serve(batch=1) as staged:
        staged.hold()
        empty = len(json.dumps(staged.engine()))
        calls = [staged.ask(priority=priority) for priority in range(30)]
        queue = staged.engine()["queue"]
        assert (queue["length"], len(queue["priorities"]), len(queue["next"])) == (30, 8, 8)
        assert len(json.dumps(staged.engine())) < empty + 1500
        staged.control.open()
        assert all(call.result(30).status_code == 200 for call in calls)


def test_prompts_above_the_limit(serve: Serve) -> None:
    with serve(batch=1, max_prompt_tokens=10) as staged:
        staged.control.open()
        fits, large = [5] * 10, [5] * 11
        for prompt in (large, [fits, large], " a" * 40):
            answer = staged.ask(prompt=prompt).result(30)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, "prompt", "context_length_exceeded")
            assert "at most 10" in error["message"]
        assert staged.engine()["requests"]["accepted"] == 0
        assert staged.ask(prompt=fits).result(30).status_code == 200


def test_sch_6_r29_an_idle_host_costs_nothing_and_a_lone_request_hardly_waits(serve: Serve) -> None:
    with serve(batch=4) as staged:
        staged.control.open()
        times = []
        for _ in range(50):
            began = time.monotonic()
            assert staged.host.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
            times.append(time.monotonic() - began)
        assert sorted(times)[25] < 0.02
        began, used = time.monotonic(), time.process_time()
        threading.Event().wait(1.0)
        assert time.process_time() - used < 0.02 * (time.monotonic() - began)
