"""The stub host against its own OpenAPI document: whatever is sent, the answer is one that the document names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")
schemathesis = pytest.importorskip("schemathesis")

import tiny
from host.live import LiveHost
from hypothesis import HealthCheck, Phase, given, settings
from model import damage
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from albatross_plugin import hooks

STRATEGY = "albatross device=cpu batch=4"
SECONDS = 10.0
QUICK, LONG = 12, 400
OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/switch-model"),
    ("POST", "/update-config"),
    ("POST", "/exit"),
    ("POST", "/albatross/batch/completions"),
    ("POST", "/translate/v1/batch-translate"),
    ("DELETE", "/albatross/batch/{batch_id}"),
    ("GET", "/albatross/status"),
    ("POST", "/albatross/profile/reset"),
    ("GET", "/albatross/profile"),
    ("GET", "/albatross/metrics"),
    ("GET", "/metrics"),
    ("GET", "/status"),
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model_id}"),
]
# The same functions under other paths.
TWINS = {
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/engines/text-embedding-ada-002/embeddings",
    "/v1/engines/text-embedding-ada-002/embeddings",
    "/models",
    "/models/{model_id}",
}
# These would take the server or its model away from the other tests.
ENDING = {"/switch-model", "/exit"}
NAMES = ("status_code_conformance", "content_type_conformance", "response_schema_conformance", "response_headers_conformance")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHost]:
    folder = tmp_path_factory.mktemp("openapi")
    path = tiny.write(folder / "model.pth", tiny.random_checkpoint(layers=1, width=64, vocab=damage.VOCAB))
    with LiveHost(("albatross", hooks)) as running:
        answer = running.switch(path, STRATEGY, tokenizer=str(damage.small_vocabulary(folder)))
        assert answer.status_code == 200, answer.text
        yield running
        engine = running.status()["albatross"]
        assert (engine["slots"]["active"], engine["queue"]["length"]) == (0, 0)
        assert running.client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2, "temperature": 1}).status_code == 200


@pytest.fixture(scope="module")
def empty_host() -> Iterator[LiveHost]:
    """Without a model, and started by somebody else, so that ``/exit`` is refused."""
    with LiveHost(("albatross", hooks)) as running:
        leave, running.state.exit = running.state.exit, None
        yield running
        running.state.exit = leave


def operation_of(host: LiveHost, method: str, path: str) -> Any:
    schema = schemathesis.openapi.from_dict(host.client.get("/openapi.json").json())
    schema.config.update(base_url=host.url)
    return schema[path][method]


def bounded(case: Any) -> Any:
    """A small answer is as good as a long one. What is out of range stays, since it must be refused."""
    body = case.body
    if isinstance(body, dict) and case.path.endswith("completions"):
        for name, most, allowed in (("max_tokens", 3, 102400), ("max_completion_tokens", 3, float("inf")), ("n", 2, 128)):
            value = body.get(name)
            if value is None or (type(value) is int and most < value <= allowed):
                body[name] = most
    return case


def check(case: Any, mode: GenerationMode) -> None:
    began = time.monotonic()
    response = bounded(case).call(timeout=SECONDS)
    assert time.monotonic() - began < SECONDS
    wanted = [*NAMES, "negative_data_rejection"] if mode is GenerationMode.NEGATIVE else NAMES
    case.validate_response(response, checks=CHECKS.get_by_names(list(wanted)))
    content = response.content.decode()
    if response.status_code >= 500:
        # A load that failed is a 500 by RWKV-Runner's contract, and a server that another program started has no exit.
        assert json.loads(content)["error"]["code"] in ("model_load_failed", "unsupported"), content
    if response.status_code >= 400:
        data = json.loads(content)
        assert data["detail"] == data["error"]["message"] != "" and data["error"]["code"], content
    elif "event-stream" in (response.headers.get("content-type") or [""])[0]:
        check_events(content, getattr(response, "stream_cut_short", False))


def check_events(content: str, cut: bool) -> None:
    """Every event is data and a blank line; all but the last hold an object, and the last one is the end or the only error.

    ``cut``: schemathesis stopped reading, as it does after some events.
    """
    *events, rest = content.split("\r\n\r\n")
    assert rest == "" and events and all(event.startswith("data: ") and "\n" not in event for event in events)
    *chunks, last = [event.removeprefix("data: ") for event in events]
    assert cut or last == "[DONE]" or "error" in json.loads(last)
    assert all("error" not in json.loads(chunk) for chunk in chunks)


def fuzz(host: LiveHost, method: str, path: str, examples: int) -> None:
    operation = operation_of(host, method, path)
    fuzz_with(operation, GenerationMode.POSITIVE, examples)
    if (method == "POST" and operation.body) or path == "/albatross/profile":
        fuzz_with(operation, GenerationMode.NEGATIVE, examples)


def fuzz_with(operation: Any, mode: GenerationMode, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples != LONG,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        check(case, mode)

    run()


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path in OPERATIONS if path not in ENDING])
def test_answers_are_those_of_the_document(host: LiveHost, method: str, path: str) -> None:
    fuzz(host, method, path, QUICK if method == "POST" else 4)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_answers_without_a_model_are_those_of_the_document(empty_host: LiveHost, method: str, path: str) -> None:
    fuzz(empty_host, method, path, QUICK // 2 if method == "POST" else 2)
    assert empty_host.status()["status"] == 0


def test_every_operation_of_the_document_is_tried(host: LiveHost) -> None:
    document = host.client.get("/openapi.json").json()
    found = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert {(method, path) for method, path in found if path not in TWINS} == set(OPERATIONS)
    for path in TWINS:
        (method, twin) = next(iter(document["paths"][path].items()))
        whole = document["paths"]["/v1/embeddings" if "embeddings" in path else "/v1" + path][method]
        assert twin["responses"].keys() == whole["responses"].keys() and twin.get("requestBody") == whole.get("requestBody")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path in OPERATIONS if method == "POST" and path not in ENDING])
def test_hundreds_of_answers_are_those_of_the_document(host: LiveHost, method: str, path: str) -> None:
    fuzz(host, method, path, LONG)
