"""What clients rely on in a host with this engine in it, each as a check that any served host can be put through.

A check raises AssertionError. Its docstring is its name in the table. Checks run in the order of ``CHECKS``, on one host, which the last ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
from contract.models import Models
from contract.served import Served

STRATEGY = "albatross batch=4 device=cpu"
GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {"type": "object", "properties": {}}}}
]
COMPLETIONS, CHATS, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
BATCHES = "/albatross/batch/completions"

Check = Callable[[Served, Models], None]


def ok(response: httpx.Response) -> Any:
    assert response.status_code == 200, f"{response.status_code}: {response.text[:300]}"
    return response.json()


def text_of(server: Served, **more: Any) -> str:
    return str(ok(server.post(COMPLETIONS, {"prompt": "Hello", **GREEDY, **more}))["choices"][0]["text"])


def chunks(events: list[str]) -> list[dict[str, Any]]:
    assert events[-1] == "[DONE]", events[-1]
    return [json.loads(event) for event in events[:-1]]


def load(server: Served, models: Models) -> None:
    """load"""
    assert ok(server.switch(models.f1, STRATEGY)) == "success"
    status = server.client.get("/status").json()
    assert status["status"] == 3 and status["albatross"]["phase"] == "ready"
    assert ok(server.client.get("/v1/models"))["data"][0]["id"] == "F1"


def chat(server: Served, _: Models) -> None:
    """chat"""
    answer = ok(server.post(CHATS, {**CHAT, **GREEDY}))
    assert answer["object"] == "chat.completion" and answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["message"]["content"] and answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 6


def completion(server: Served, _: Models) -> None:
    """completion"""
    answer = ok(server.post(COMPLETIONS, {"prompt": "Hello", **GREEDY}))
    assert answer["object"] == "text_completion" and answer["usage"]["total_tokens"] == 7
    both = ok(server.post(COMPLETIONS, {"prompt": ["Hello", "World"], "n": 2, **GREEDY}))
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert both["choices"][0]["text"] == both["choices"][1]["text"] == answer["choices"][0]["text"] != both["choices"][2]["text"]


def stream(server: Served, _: Models) -> None:
    """stream"""
    whole = ok(server.post(CHATS, {**CHAT, **GREEDY}))["choices"][0]["message"]["content"]
    parts = chunks(server.events(CHATS, {**CHAT, **GREEDY, "stream_options": {"include_usage": True}}))
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts[:-1]) == whole
    assert parts[-2]["choices"][0]["finish_reason"] == "length" and parts[-1]["usage"]["completion_tokens"] == 6
    # The Runner stops reading at the end of a call, before the usage is known; an answer in words has it.
    parts = chunks(server.events(CHATS, {**CHAT, **GREEDY, "tools": TOOLS, "stream_options": {"include_usage": True}}))
    assert parts[-1]["choices"] == [] and parts[-1]["usage"]["completion_tokens"] == 6, parts[-1]
    parts = chunks(server.events(COMPLETIONS, {"prompt": "Hello", **GREEDY}))
    assert "".join(part["choices"][0]["text"] for part in parts) == text_of(server)


def overlap(server: Served, _: Models) -> None:
    """two streams at once"""
    times: list[list[float]] = [[], []]
    body = {"prompt": "Hello", **GREEDY, "max_tokens": 80}
    threads = [threading.Thread(target=server.events, args=(COMPLETIONS, body, each)) for each in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(times) and max(each[0] for each in times) < min(each[-1] for each in times), "one stream waited for the other"


def refusal(server: Served, _: Models) -> None:
    """refusal with its status"""
    for path, body in ((COMPLETIONS, {"prompt": "Hello"}), (CHATS, CHAT), (CHATS, {**CHAT, "tools": TOOLS})):
        for streamed in (False, True):
            answer = server.post(path, {**body, "best_of": 3, "stream": streamed})
            assert answer.status_code == 400, (path, streamed, answer.status_code)
            assert answer.json()["error"]["param"] == "best_of"


def large(server: Served, _: Models) -> None:
    """large bodies"""
    body = {"prompt": "Hello", **GREEDY, "user": "x" * 70_000}
    assert ok(server.post(COMPLETIONS, body))["choices"][0]["text"] == text_of(server)
    assert "".join(part["choices"][0]["text"] for part in chunks(server.events(COMPLETIONS, body))) == text_of(server)
    for more in ({"prompt": "Hello"}, CHAT, {**CHAT, "tools": TOOLS}):
        for streamed in (False, True):
            path = COMPLETIONS if "prompt" in more else CHATS
            answer = server.post(path, {**body, **more, "best_of": 3, "stream": streamed})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "best_of", answer.text[:300]


def settings(server: Served, _: Models) -> None:
    """saved settings"""
    ok(server.post("/update-config", {"max_tokens": 3, "temperature": 0}))
    answers = [ok(server.post(COMPLETIONS, {"prompt": "Hello", "ignore_eos": True})) for _ in range(2)]
    assert answers[0]["usage"]["completion_tokens"] == 3
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"] == text_of(server, max_tokens=3)
    ok(server.post("/update-config", {"max_tokens": 500, "temperature": 1}))


def state(server: Served, models: Models) -> None:
    """state file"""
    before = text_of(server)
    ok(server.post("/update-config", {"state": str(models.state)}))
    assert text_of(server) != before
    assert server.post("/update-config", {"state": str(models.wrong_state)}).status_code == 400
    ok(server.post("/update-config", {"state": ""}))
    assert text_of(server) == before


def state_before_load(server: Served, models: Models) -> None:
    """state file chosen before the load"""
    ok(server.switch("", ""))
    ok(server.post("/update-config", {"state": str(models.state)}))
    ok(server.switch(models.f1, STRATEGY))
    with_state = text_of(server)
    ok(server.post("/update-config", {"state": ""}))
    assert text_of(server) != with_state


def embeddings(server: Served, _: Models) -> None:
    """embeddings refused"""
    for value in ("Hello", ["Hello"], [[1, 2]]):
        answer = server.post(EMBEDDINGS, {"input": value})
        assert answer.status_code == 400 and "embeddings" in answer.json()["error"]["message"], answer.text[:300]


def tools(server: Served, models: Models) -> None:
    """tools"""
    ok(server.switch(models.caller, STRATEGY))
    choice = ok(server.post(CHATS, {**CHAT, "tools": TOOLS, "temperature": 0}))["choices"][0]
    assert choice["finish_reason"] == "tool_calls", choice
    function = choice["message"]["tool_calls"][0]["function"]
    assert function["name"] == "weather" and json.loads(function["arguments"]) == {"city": "Paris"}
    check_forced_calls_refused(server)


def tool_stream(server: Served, _: Models) -> None:
    """tools in a stream"""
    asked = {**CHAT, "tools": TOOLS, "temperature": 0, "stream_options": {"include_usage": True}}
    for more in ({}, {"user": "x" * 70_000}):
        check_call([part["choices"][0] for part in chunks(server.events(CHATS, {**asked, **more})) if part["choices"]])


def check_forced_calls_refused(server: Served) -> None:
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    for param, more in (("tool_choice", {"tool_choice": "required"}), ("tools[0].function.strict", {"tools": strict})):
        for streamed in (False, True):
            answer = server.post(CHATS, {**CHAT, "tools": TOOLS, **GREEDY, "stream": streamed, **more})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text[:300]


def check_call(choices: list[dict[str, Any]]) -> None:
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "weather" and choices[-1]["finish_reason"] == "tool_calls"
    assert "Paris" in "".join(call["function"].get("arguments", "") for call in calls)


def other_strategy(server: Served, models: Models) -> None:
    """other strategy"""
    ok(server.switch(models.f1, "cpu fp32"))
    assert "albatross" not in server.client.get("/status").json()
    answer = ok(server.post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 12, "temperature": 1}))
    assert answer["choices"][0]["text"] and 0 < answer["usage"]["completion_tokens"] <= 12, "the host's own path answers"
    assert "lbatross" not in server.post(EMBEDDINGS, {"input": "Hello"}).text, "the host's own model is asked"


def gguf(server: Served, models: Models) -> None:
    """.gguf"""
    ok(server.switch(models.gguf, STRATEGY))
    answer = ok(server.post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 3}))
    assert answer["choices"][0]["text"] == "llama has it"


def gguf_of_old(server: Served, models: Models) -> None:
    """.gguf"""
    answer = server.switch(models.gguf, STRATEGY)
    assert answer.status_code == 500 and "lbatross" not in answer.text, "the host's own loader, which knows no such file"


def batch(server: Served, _: Models) -> None:
    """batch, translation and page"""
    body = {"prompt": "Hello", "count": 5, **GREEDY}
    events = server.events(BATCHES, body)
    assert events[-1] == "[DONE]", events[-1]
    first, *updates, last = map(json.loads, events[:-1])
    assert first["batch"]["status"] == "running" and last["batch"]["counts"] == {"done": 5, "aborted": 0, "error": 0}
    texts = ["".join(each["delta"] for each in updates if each["id"] == index) for index in range(5)]
    assert texts == [text_of(server)] * 5
    assert [item["text"] for item in ok(server.post(BATCHES, {**body, "stream": False}))["items"]] == texts
    bad = server.post(BATCHES, {**body, "count": 0})
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "count" and bad.json()["detail"], bad.text[:300]
    asked = {"source_lang": "auto", "target_lang": "zh-CN", "text_list": ["Hello", "World"]}
    assert len(ok(server.post("/translate/v1/batch-translate", asked))["translations"]) == 2
    status = ok(server.client.get("/albatross/status"))
    assert status["state"] == "ready" and status["batches"] == {"running": 0, "items": 0}
    page = server.client.get("/albatross/ui")
    assert page.status_code == 200 and "script-src 'self'" in page.headers["content-security-policy"], page.status_code
    code = server.client.get("/albatross/ui/app.js")
    assert code.status_code == 200 and code.headers["content-type"].startswith("text/javascript"), code.headers


def other_sites(server: Served, _: Models) -> None:
    """pages of other sites"""
    for path, body in (
        (BATCHES, {"prompt": "Hello", **GREEDY}),
        ("/translate/v1/batch-translate", {"target_lang": "en", "text_list": ["Hello"]}),
    ):
        for origin in ("http://evil.example", "https://127.0.0.1.evil.example", "null", "http://[evil"):
            answer = server.client.post(path, json=body, headers={"Origin": origin})
            assert answer.status_code == 403 and answer.json()["error"]["code"] == "origin_not_allowed", (origin, answer.text[:300])
        plain = server.client.post(path, content=json.dumps(body), headers={"Content-Type": "text/plain"})
        assert plain.status_code == 415, plain.text[:300]
    own = {"Origin": str(server.client.base_url).rstrip("/")}
    assert ok(server.client.post(BATCHES, json={"prompt": "Hello", **GREEDY, "stream": False}, headers=own))["counts"]["done"] == 1
    # A page of a site whose name was made to point here is of the same origin, for its browser.
    name = "evil.example"
    pointing = {"Host": f"{name}:{server.client.base_url.port}"}
    asked = {"Origin": f"http://{name}", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    for method, path, headers in (
        ("POST", BATCHES, {"Origin": f"http://{name}"}),
        ("POST", BATCHES, pointing),
        ("POST", BATCHES, {**pointing, "Origin": f"http://{pointing['Host']}"}),
        ("DELETE", "/albatross/batch/whatever", {"Origin": f"http://{name}"}),
        ("DELETE", "/albatross/batch/whatever", pointing),
        ("GET", "/albatross/status", {"Origin": f"http://{name}"}),
        ("GET", "/albatross/status", pointing),
        ("GET", "/albatross/ui", pointing),
        ("OPTIONS", BATCHES, asked),
        ("OPTIONS", "/albatross/status", {**asked, **pointing}),
    ):
        body = {"prompt": "Hello", **GREEDY} if method == "POST" else None
        answer = server.client.request(method, path, json=body, headers=headers)
        assert answer.status_code == 403 and answer.json()["error"]["code"].endswith("_not_allowed"), (
            method,
            path,
            headers,
            answer.text[:300],
        )
        assert not [each for each in answer.headers if each.startswith("access-control-")], (method, path, headers, answer.headers)
    for near in ("localhost", "127.0.0.1", "192.168.1.7", "[::1]"):
        answer = server.client.get("/albatross/status", headers={"Host": f"{near}:{server.client.base_url.port}"})
        assert answer.status_code == 200, (near, answer.text[:300])


def fault(server: Served, models: Models) -> None:
    """fault in the middle"""
    ok(server.switch(models.poison, STRATEGY))
    for more in ({}, {"tools": TOOLS}):
        asked = {**CHAT, **GREEDY, **more}
        whole = server.post(CHATS, asked)
        assert whole.status_code == 500 and whole.json()["error"]["type"] == "server_error", whole.text[:300]
        events = [json.loads(event) for event in server.events(CHATS, asked)]
        # The host holds text back that may be a call; one that knows no tools does not.
        assert "error" in events[-1] and len(events) in ((1, 3) if more else (3,))
    assert text_of(server, prompt=" one", max_tokens=1) == " two", "others are served"


def leaving(server: Served, models: Models) -> None:
    """a client that leaves"""
    ok(server.switch(models.f1, STRATEGY))
    body = {"prompt": "Hello", **GREEDY, "max_tokens": 100_000}
    with httpx.stream("POST", server.url + COMPLETIONS, json={**body, "stream": True}) as response:
        next(response.iter_lines())
    wait_for_aborted(server, 1)
    address = httpx.URL(server.url)
    whole = http.client.HTTPConnection(address.host, address.port or 80, timeout=30)
    whole.request("POST", COMPLETIONS, json.dumps(body), {"Content-Type": "application/json"})
    wait_for_requests(server, "accepted", 2, "a whole answer was not begun")
    whole.close()
    wait_for_aborted(server, 2)


def wait_for_aborted(server: Served, count: int) -> None:
    wait_for_requests(server, "abort", count, "a request goes on for a client that has gone")


def wait_for_requests(server: Served, outcome: str, count: int, otherwise: str) -> None:
    deadline = time.monotonic() + 5
    while server.client.get("/status").json()["albatross"]["requests"][outcome] < count:
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def unload(server: Served, models: Models) -> None:
    """unload"""
    ok(server.switch(models.f1, STRATEGY))
    before = resident(server)
    with httpx.stream(
        "POST", server.url + COMPLETIONS, json={"prompt": "Hello", **GREEDY, "max_tokens": 100_000, "stream": True}
    ) as running:
        lines = running.iter_lines()
        next(lines)
        ok(server.switch("", ""))
        assert '"error"' in [line for line in lines if line][-1], "a running stream is told"
    status = server.client.get("/status").json()
    assert status["status"] == 0 and "albatross" not in status
    assert server.post(COMPLETIONS, {"prompt": "Hello"}).status_code == 400
    assert before - resident(server) > 40_000_000, "the weights, 69 MB, are still held"


def switch(server: Served, models: Models) -> None:
    """switch between models"""
    ok(server.switch(models.caller, STRATEGY))
    ok(server.switch(models.f1, STRATEGY))
    before = resident(server)
    for _ in range(2):
        ok(server.switch(models.f1, STRATEGY))
    assert resident(server) - before < 40_000_000, "an old model is still held"
    assert server.switch(models.gguf.with_name("none.pth"), STRATEGY).status_code == 500
    ok(server.switch(models.f1, STRATEGY))


def leave(server: Served, _: Models) -> None:
    """/exit"""
    with contextlib.suppress(httpx.TransportError):
        server.post("/exit", {})
    server.process.wait(10)


def deploy(server: Served, models: Models) -> None:
    """deploy mode, --webui"""
    assert "front end" in server.client.get("/").text
    assert "tokens" in ok(server.client.get("/albatross/profile"))
    assert server.client.get("/metrics").headers["content-type"].startswith(("text/plain", "application/json"))
    ok(server.switch(models.f1, STRATEGY, deploy=True))
    assert server.switch("", "").status_code == 403
    assert server.post("/exit", {}).status_code == 403
    assert server.post("/albatross/profile/reset", {}).status_code == 403
    assert text_of(server)


def resident(server: Served) -> int:
    """Bytes that the host's process holds."""
    import psutil

    return int(psutil.Process(server.process.pid).memory_info().rss)


CHECKS: tuple[Check, ...] = (
    load, chat, completion, stream, overlap, refusal, large, settings, state, state_before_load, embeddings, tools, tool_stream, batch, other_sites, fault, leaving, unload,
    switch, other_strategy, gguf, leave,
)  # fmt: skip
