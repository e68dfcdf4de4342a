"""Batches through HTTP: every item reaches its end, whatever becomes of its neighbours, of the reader and of the model."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch")

import tiny
from faults.asking import SCRIPT, WORDS
from faults.executor import NAME, seed
from host.live import LiveHost, wait_for
from serving.batches import PATH, begun, streamed, whole

from albatross_plugin import hooks
from albatross_plugin.bench.chosen_executor import ChosenExecutor, strategy
from albatross_plugin.serving import batch_routes
from albatross_plugin.serving.batch_call import alike

# After "!" the model says these words and ends.
TEXT = "".join(WORDS[:-1])
SAID = {"temperature": 0, "max_tokens": 20, "stop": ["User"]}
# Never ends by itself: the script model says nothing after anything else, so token 0 again and again.
ENDLESS = {"prompt": "x", "ignore_eos": True, "temperature": 0, "max_tokens": 1_000_000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="module")
def script(folder: Path) -> Path:
    return tiny.write(folder / "script.pth", tiny.script_checkpoint(SCRIPT, layers=1, width=64))


@pytest.fixture(scope="module")
def random_model(folder: Path) -> Path:
    return tiny.write(folder / "random.pth", tiny.random_checkpoint(layers=1, width=64))


@pytest.fixture(scope="module")
def live() -> Iterator[LiveHost]:
    with LiveHost(("albatross", hooks), ("executor", ChosenExecutor())) as running:
        yield running


def serve(live: LiveHost, model: Path, batch: int = 4, **config: Any) -> LiveHost:
    if getattr(live, "served", None) != (model, batch, config) or live.state.model is None:
        answer = live.switch(model, strategy(NAME, batch, gather_ms=0.0, **config))
        assert answer.status_code == 200, answer.text
        live.served = (model, batch, config)  # type: ignore[attr-defined]
    return live


@pytest.fixture
def host(live: LiveHost, script: Path) -> LiveHost:
    """The script model with four slots."""
    return serve(live, script)


def engine(host: LiveHost) -> dict[str, Any]:
    return dict(host.client.get("/albatross/status").json())


def slot_and_queue(host: LiveHost) -> tuple[int, int]:
    state = engine(host)["engine"]
    return state["slots"]["active"], state["queue"]["length"]


def wait_until_idle(host: LiveHost) -> None:
    wait_for(lambda: (status := engine(host))["batches"] == {"running": 0, "items": 0} and status["engine"]["slots"]["active"] == 0, 5)
    assert engine(host)["engine"]["queue"]["length"] == 0


def refused(host: LiveHost, body: Any, status: int = 400) -> dict[str, Any]:
    answer = host.client.post(PATH, json=body)
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert said["detail"] == said["error"]["message"]
    return dict(said["error"])


def test_ui_1_a_thousand_items_through_one_stream(live: LiveHost, script: Path) -> None:
    host = serve(live, script, 32)
    with httpx.Client(base_url=host.url, limits=httpx.Limits(max_connections=1), timeout=60) as client:
        stream = streamed(client, {**SAID, "prompt": "!", "count": 1000, "seed": 7})
    assert stream.count("done") == 1000 and stream.end is not None and stream.end["status"] == "done"
    for index, item in stream.items.items():
        assert (item.text, item.states[-1], item.finish_reason, item.seed) == (TEXT, "done", "stop", 7 + index)
    # An item that runs and ends between two writes is one update.
    assert {tuple(item.states) for item in stream.items.values()} <= {("running", "done"), ("done",)}
    assert stream.end["usage"]["prompt_tokens"] == 1000
    wait_until_idle(host)


def test_every_state_is_reached_in_a_batch_of_a_thousand(live: LiveHost, script: Path) -> None:
    """Two items fail in the step, one of them with text; a stop comes half way."""
    host = serve(live, script, 8)
    seeds = [seed("not_finite", 0), 5, seed("not_finite", 2), *range(10, 1007)]
    with begun(host.client, {**SAID, "prompt": "!", "count": 1000, "seeds": seeds}) as (stream, parts):
        for part in parts:
            stream.feed(part)
            if stream.count("done") >= 300 and not stream.end and len(stream.items) < 1000:
                answer = httpx.delete(host.url + "/albatross/batch/" + stream.head["id"])
                break
        assert answer.status_code == 200
        at_once = answer.json()
        for part in parts:
            stream.feed(part)
    stream.check_end()
    assert stream.end is not None and stream.end["status"] == "aborted" and stream.end["counts"] == at_once["counts"]
    assert stream.count("done") >= 300 and stream.count("aborted") >= 1
    assert stream.count("done") + stream.count("aborted") == 998
    failed, ended, half = stream.items[0], stream.items[1], stream.items[2]
    assert failed.states[-1] == "error" and failed.text == "" and failed.error is not None
    assert half.states[-1] == "error" and half.text == "".join(WORDS[:2]) and half.tokens == 2
    assert (failed.error["type"], failed.error["code"]) == ("server_error", "engine_error")
    assert ended.states[-1] == "done" and ended.text == TEXT
    for item in stream.items.values():
        if item.states[-1] == "done":
            assert item.text == TEXT
        assert item.finish_reason == {"done": "stop", "aborted": "abort", "error": None}[item.states[-1]]
        assert TEXT.startswith(item.text)
    states = [item.states for item in stream.items.values()]
    assert any("running" in each for each in states)
    assert ["aborted"] in states, "items that never got a slot, and were pending, are told too"
    wait_until_idle(host)
    again = host.client.delete("/albatross/batch/" + stream.head["id"])
    assert (again.status_code, again.json()) == (200, at_once)


def test_one_json_answer_holds_the_same(host: LiveHost) -> None:
    answer = whole(host.client, {**SAID, "prompt": ["!", [SCRIPT[0]], "x"], "count": 2, "seed": 3, "batch_id": "my-own_batch"})
    assert (answer["id"], answer["object"], answer["count"], answer["status"]) == ("my-own_batch", "albatross.batch", 6, "done")
    assert answer["counts"] == {"done": 6, "aborted": 0, "error": 0}
    items = answer["items"]
    assert [item["text"] for item in items] == [TEXT] * 4 + [""] * 2
    assert [(item["id"], item["seed"], item["status"]) for item in items] == [(i, 3 + i, "done") for i in range(6)]
    assert all(item["error"] is None and item["finish_reason"] == "stop" for item in items)
    assert answer["usage"]["completion_tokens"] == sum(item["tokens"] for item in items) == 4 * 6 + 2


def test_an_item_is_what_a_completion_with_its_seed_is(live: LiveHost, random_model: Path) -> None:
    host = serve(live, random_model)
    body = {"temperature": 1, "top_p": 1, "max_tokens": 6, "ignore_eos": True, "frequency_penalty": 0.5, "stop": None}
    answer = whole(host.client, {**body, "prompt": "one", "count": 3})
    seeds = [item["seed"] for item in answer["items"]]
    assert seeds == [seeds[0], seeds[0] + 1, seeds[0] + 2]
    alone = [host.client.post("/v1/completions", json={**body, "prompt": "one", "seed": each}).json()["choices"][0] for each in seeds]
    assert [item["text"] for item in answer["items"]] == [choice["text"] for choice in alone]
    assert len({choice["text"] for choice in alone}) == 3
    assert all(item["finish_reason"] == "length" and item["tokens"] == 6 for item in answer["items"])
    repeated = whole(host.client, {**body, "prompt": ["one", "one"], "seeds": [seeds[1], seeds[1]]})
    assert {item["text"] for item in repeated["items"]} == {alone[1]["text"]}


def test_saved_settings_count_unless_the_call_gives_its_own(host: LiveHost) -> None:
    assert host.client.post("/update-config", json={"max_tokens": 2, "temperature": 0}).status_code == 200
    try:
        assert [item["tokens"] for item in whole(host.client, {"prompt": "!", "count": 2})["items"]] == [2, 2]
        assert [item["text"] for item in whole(host.client, {"prompt": "!", "max_tokens": 1})["items"]] == WORDS[:1]
    finally:
        host.client.post("/update-config", json={"max_tokens": 500, "temperature": 1})


def test_r32_a_stop_frees_the_slots_at_once_and_every_item_hears_of_it(host: LiveHost) -> None:
    with begun(host.client, {**ENDLESS, "count": 10}) as (stream, parts):
        wait_for(lambda: engine(host)["engine"]["slots"]["active"] == 4)
        assert engine(host)["batches"] == {"running": 1, "items": 10}
        stopped = httpx.delete(host.url + "/albatross/batch/" + stream.head["id"]).json()
        assert stopped == {
            "id": stream.head["id"],
            "object": "albatross.batch",
            "status": "aborted",
            "counts": {"done": 0, "aborted": 10, "error": 0},
        }
        for part in parts:
            stream.feed(part)
    stream.check_end()
    assert stream.count("aborted") == 10
    wait_until_idle(host)


def test_r32_an_unknown_batch_cannot_be_stopped_and_a_name_is_used_once(host: LiveHost) -> None:
    answer = host.client.delete("/albatross/batch/nobody-has-this")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "batch_not_found"
    with begun(host.client, {**ENDLESS, "batch_id": "taken-name"}) as (stream, parts):
        other = httpx.post(host.url + PATH, json={"prompt": "!", "batch_id": "taken-name"})
        assert (other.status_code, other.json()["error"]["param"]) == (409, "batch_id")
        httpx.delete(host.url + "/albatross/batch/taken-name")
        for part in parts:
            stream.feed(part)
    # A browser that repeats a call whose connection broke shall not run it again.
    assert refused(host, {**SAID, "prompt": "!", "batch_id": "taken-name"}, 409)["code"] == "batch_exists"
    assert whole(host.client, {**SAID, "prompt": "!", "batch_id": "another-name"})["status"] == "done"


def test_who_leaves_ends_the_batch(host: LiveHost) -> None:
    with begun(host.client, {**ENDLESS, "count": 100}) as (stream, _):
        wait_for(lambda: engine(host)["engine"]["slots"]["active"] == 4)
    wait_until_idle(host)
    ended = httpx.delete(host.url + "/albatross/batch/" + stream.head["id"]).json()
    assert ended["status"] == "aborted" and ended["counts"]["aborted"] == 100
    impatient = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
    impatient.request("POST", PATH, json.dumps({**ENDLESS, "count": 100, "stream": False}), {"Content-Type": "application/json"})
    wait_for(lambda: engine(host)["engine"]["slots"]["active"] == 4)
    impatient.close()
    wait_until_idle(host)


def test_ui_1_a_chat_does_not_wait_for_a_batch_and_a_batch_leaves_room_in_the_queue(live: LiveHost, script: Path) -> None:
    """Two slots and four places to wait, of which the batch takes half; refusals are not even tried."""
    host = serve(live, script, 2, max_queue=4)
    with begun(host.client, {**SAID, "prompt": "!", "count": 400}) as (stream, parts):
        stream.feed(next(parts))
        for _ in range(5):
            answer = httpx.post(host.url + "/v1/completions", json={**SAID, "prompt": "!"})
            assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == TEXT
        assert engine(host)["batches"]["items"] > 0, "the others were served before the end of the batch"
        for part in parts:
            stream.feed(part)
    stream.check_end()
    assert stream.count("done") == 400
    assert engine(host)["engine"]["requests"]["rejected"] == 0


def test_ui_1_many_batches_together_leave_room_in_the_queue_too(live: LiveHost, script: Path) -> None:
    """By number and by the tokens of their prompts: half is left, but for the one item by which each batch has its turns."""
    host = serve(live, script, 1, max_queue=12, max_queue_tokens=400)
    for prompt, half in (("x", 6), ("x " * 40, 4)):
        with ExitStack() as running:
            for number, body in enumerate([{**ENDLESS, "prompt": prompt, "count": 300}] * 3 + [{**SAID, "prompt": "!"}]):
                client = running.enter_context(httpx.Client(base_url=host.url))
                running.enter_context(begun(client, body))
                wait_for(lambda length=half + number: slot_and_queue(host) == (1, length))
            assert engine(host)["engine"]["requests"]["rejected"] == 0
        wait_until_idle(host)


def test_several_batches_end_beside_each_other_in_a_small_queue(live: LiveHost, script: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    host = serve(live, script, 2, max_queue=4)
    with ThreadPoolExecutor(3) as pool:
        body = {**SAID, "prompt": "!", "count": 60}
        for answer in pool.map(lambda _: httpx.post(host.url + PATH, json={**body, "stream": False}, timeout=60), range(3)):
            assert answer.status_code == 200 and answer.json()["counts"]["done"] == 60
    wait_until_idle(host)


def test_a_full_queue_refuses_before_anything_is_sent(live: LiveHost, script: Path) -> None:
    host = serve(live, script, 1, max_queue=0)
    with begun(host.client, ENDLESS):
        wait_for(lambda: engine(host)["engine"]["slots"]["active"] == 1)
        answer = httpx.post(host.url + PATH, json={**SAID, "prompt": "!"})
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "queue_full"
    wait_until_idle(host)


def test_too_many_batches_are_refused(host: LiveHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_routes, "MAX_RUNNING", 1)
    with begun(host.client, ENDLESS):
        answer = httpx.post(host.url + PATH, json={**SAID, "prompt": "!"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_batches")


def test_a_prompt_that_is_too_long_fails_its_own_item_only(live: LiveHost, script: Path) -> None:
    host = serve(live, script, 4, max_prompt_tokens=8)
    answer = whole(host.client, {**SAID, "prompt": ["!", "x y z " * 20, "!"]})
    assert [item["status"] for item in answer["items"]] == ["done", "error", "done"]
    assert [item["text"] for item in answer["items"]] == [TEXT, "", TEXT]
    assert answer["items"][1]["error"]["code"] == "context_length_exceeded"


def test_a_model_that_goes_away_ends_every_item(live: LiveHost, script: Path) -> None:
    host = serve(live, script, 2)
    with begun(host.client, {**ENDLESS, "count": 300}) as (stream, parts):
        wait_for(lambda: engine(host)["engine"]["slots"]["active"] == 2)
        assert httpx.post(host.url + "/switch-model", json={"model": "", "strategy": ""}).status_code == 200
        for part in parts:
            stream.feed(part)
    stream.check_end()
    assert stream.count("error") == 300
    assert {item.error["code"] for item in stream.items.values() if item.error} == {"model_unavailable"}
    live.served = None  # type: ignore[attr-defined]


def test_a_worker_that_dies_ends_every_item(live: LiveHost, script: Path) -> None:
    host = serve(live, script, 2)
    seeds = [seed("die", 2), *range(1, 200)]
    stream = streamed(host.client, {**SAID, "prompt": "!", "count": 200, "seeds": seeds})
    assert stream.count("error") > 100 and stream.items[0].states[-1] == "error"
    live.served = None  # type: ignore[attr-defined]


def test_a_quiet_stream_is_kept_alive(live: LiveHost, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch holds the only slot, the other has nothing to say."""
    monkeypatch.setattr(batch_routes, "KEEP_ALIVE_SECONDS", 0.01)
    host = serve(live, script, 1)
    with begun(host.client, ENDLESS), httpx.Client(base_url=host.url) as other, begun(other, ENDLESS) as (stream, parts):
        while not stream.comments:
            stream.feed(next(parts))
        assert stream.items == {}


def test_items_may_be_bound_to_a_form(live: LiveHost, random_model: Path) -> None:
    pytest.importorskip("llguidance")
    host = serve(live, random_model)
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    stream = streamed(host.client, {"prompt": "!", "count": 6, "max_tokens": 60, "temperature": 1, "top_p": 1, "response_format": form})
    assert {str(json.loads(item.text)) for item in stream.items.values()} <= {"{'a': True}", "{'a': False}"}


@pytest.mark.parametrize("member", ["prompt", "seed", "count", "temperature", "top_k", "state", "stop", "metadata"])
def test_what_is_nested_as_deeply_as_can_be_read_is_refused(host: LiveHost, member: str) -> None:
    """A long body is read in a thread, whose stack is nearly empty: there is less room for the value elsewhere."""
    for depth in range(900, 1000, 4):
        content = f'{{"user": "{"x" * 70_000}", "prompt": "!", "{member}": {"[" * depth}{"]" * depth}}}'
        answer = host.client.post(PATH, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400 and len(answer.content) < 1000, answer.text[:200]


@pytest.mark.parametrize("body", [{"x" * 1_000_000: 1}, {"prompt": [["x" * 1_000_000]]}, {"top_k": "x" * 1_000_000}])
def test_a_refusal_does_not_repeat_what_is_long(host: LiveHost, body: dict[str, Any]) -> None:
    answer = host.client.post(PATH, json={"prompt": "!", **body})
    assert answer.status_code == 400 and len(answer.content) < 1000


def test_seeds_of_64_bits_are_told_in_the_stream(host: LiveHost) -> None:
    stream = streamed(host.client, {**SAID, "prompt": "!", "count": 2, "seeds": [-(2**63), 2**63 - 1]})
    assert [stream.items[index].seed for index in (0, 1)] == [-(2**63), 2**63 - 1]


def test_sch_1_top_k_of_any_size_costs_neighbours_nothing(host: LiveHost) -> None:
    """What cannot be written into the table of a step fails all of its rows."""
    with begun(host.client, {**ENDLESS, "count": 2}) as (stream, _):
        for number in (65_536, 2**63, 10**400):
            with httpx.Client(base_url=host.url) as other:
                answer = whole(other, {"prompt": "!", "temperature": 1, "top_p": 1, "max_tokens": 20, "top_k": number, "count": 2})
            assert [item["status"] for item in answer["items"]] == ["done"] * 2
        assert httpx.delete(host.url + "/albatross/batch/" + stream.head["id"]).json()["counts"] == {"done": 0, "aborted": 2, "error": 0}
    wait_until_idle(host)


REFUSALS = [
    ({}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [[99999999]]}, "prompt"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"prompt": ["a"] * 1001}, "prompt"),
    ({"prompt": ["a"] * 501, "count": 2}, "prompt"),
    ({"count": 0}, "count"),
    ({"count": 1001}, "count"),
    ({"count": 1.5}, "count"),
    ({"count": True}, "count"),
    ({"seed": "x"}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 1, "seeds": [1]}, "seeds"),
    ({"seed": 2**63 - 1, "count": 2}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seeds": [2**64]}, "seeds"),
    ({"state": "a" * 100_000}, "state"),
    ({"\ud800": 1}, "\\ud800"),
    ({"seeds": [1, 2]}, "seeds"),
    ({"seeds": ["1"]}, "seeds"),
    ({"seeds": 1}, "seeds"),
    ({"stream": "yes"}, "stream"),
    ({"batch_id": "short"}, "batch_id"),
    ({"batch_id": "../../etc/passwd"}, "batch_id"),
    ({"batch_id": 12345678}, "batch_id"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"echo": True}, "echo"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprobs": 0}, "logprobs"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"top_k": -1}, "top_k"),
    ({"stop": [3]}, "stop"),
    ({"stop_token_ids": [70000]}, "stop_token_ids"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"best_of": 2}, "best_of"),
    ({"messages": []}, "messages"),
    ({"state": "some.pth"}, "state"),
    ({"tempurature": 1}, "tempurature"),
]


@pytest.mark.parametrize(("body", "param"), REFUSALS, ids=[str(i) for i in range(len(REFUSALS))])
def test_a_bad_body_is_refused_by_the_name_of_the_member(host: LiveHost, body: dict[str, Any], param: str) -> None:
    text = json.dumps({"prompt": "!", "max_tokens": 1, **body} if body else {})
    answer = host.client.post(PATH, content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param and answer.json()["error"]["type"] == "invalid_request_error"


def test_bodies_that_are_no_json_object(host: LiveHost) -> None:
    def status(content: bytes, kind: str = "application/json") -> int:
        return host.client.post(PATH, content=content, headers={"Content-Type": kind}).status_code

    assert [status(b"{"), status(b"[]"), status(b"\xff\xfe"), status(b"[" * 100_000)] == [400] * 4
    assert [status(b'{"prompt": "!"}', "text/plain"), status(b"prompt=x", "application/x-www-form-urlencoded")] == [415, 415]
    assert status(b'{"prompt": [' + b"1," * 1_100_000 + b"1]}") == 400


def test_without_a_model_of_this_engine(live: LiveHost) -> None:
    assert live.switch("", "").status_code == 200
    live.served = None  # type: ignore[attr-defined]
    assert refused(live, {"prompt": "!"})["code"] == "model_not_loaded"
    assert engine(live)["state"] == "offline" and engine(live)["engine"] is None

    class Foreign:
        name = "another"

    live.state.model = Foreign()
    try:
        assert refused(live, {"prompt": "!"})["code"] == "unsupported"
        assert (engine(live)["state"], engine(live)["model"]) == ("foreign", "another")
    finally:
        live.state.model = None


def test_deploy_mode_leaves_batches_open(script: Path) -> None:
    with LiveHost(("albatross", hooks), ("executor", ChosenExecutor())) as deployed:
        assert deployed.switch(script, strategy(NAME, 4, gather_ms=0.0), deploy=True).status_code == 200
        assert streamed(deployed.client, {**SAID, "prompt": "!", "count": 3}).count("done") == 3
        with begun(deployed.client, ENDLESS) as (stream, _):
            assert httpx.delete(deployed.url + "/albatross/batch/" + stream.head["id"]).status_code == 200


def test_sec_3_foreign_pages_cannot_begin_or_stop_a_batch(host: LiveHost) -> None:
    evil = {"Origin": "http://evil.example"}
    assert host.client.post(PATH, json={"prompt": "!"}, headers=evil).status_code == 403
    assert host.client.post(PATH, json={"prompt": "!"}, headers={"Host": "evil.example"}).status_code == 403
    assert host.client.post("/translate/v1/batch-translate", json={"target_lang": "en", "text_list": []}, headers=evil).status_code == 403
    with begun(host.client, {**ENDLESS, "batch_id": "guessable"}):
        assert httpx.delete(host.url + "/albatross/batch/guessable", headers=evil).status_code == 403
        assert engine(host)["batches"]["running"] == 1


def test_a_long_prompt_is_looked_at_once_however_often_it_is_used() -> None:
    """Each look at half a million ids takes milliseconds of the event loop's time."""

    class Ids(tuple):  # type: ignore[type-arg]
        looks = 0

        def __hash__(self) -> int:
            Ids.looks += 1
            return super().__hash__()

    one, other = Ids(range(5)), Ids(range(5))
    assert alike([one] * 500 + ["a", "b", "a"] + [other] * 497) == [0] * 500 + [500, 501, 500] + [0] * 497
    assert Ids.looks == 2
