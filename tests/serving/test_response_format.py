"""Structured output through HTTP: what is enforced, what it leaves alone, and what is refused before anything runs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import tiny
from serving.conftest import serve
from stub import StubHost

from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}, "n": {"type": "array", "items": {"enum": [1, 22]}, "maxItems": 2}},
    "required": ["name", "ok", "n"],
    "additionalProperties": False,
}  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
# Blanks are unlikely then, so that texts are short.
BIAS = {str(token): -100 for token in (10, 11, 14, 33)}
CALL = {"max_tokens": 300, "temperature": 1, "top_p": 1, "frequency_penalty": 0, "response_format": FORM, "logit_bias": BIAS}
OPENING = [token for token, content in enumerate(WorldTokenizer(find_vocabulary(None)).token_bytes) if content.startswith(b"{")]


@pytest.fixture(scope="module")
def eight(host: StubHost, models: Path) -> StubHost:
    path = models / "eight.pth"
    if not path.exists():
        tiny.write(path, tiny.random_checkpoint(seed=3))
    serve(host, path, "albatross device=cpu batch=8")
    return host


def chat(host: StubHost, **body: Any) -> Any:
    return host.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hello"}], **CALL, **body})


def text(host: StubHost, **body: Any) -> Any:
    return host.client.post("/v1/completions", json={"prompt": "hello", **CALL, **body})


def valid(content: str, schema: Any = SCHEMA) -> Any:
    value = json.loads(content)
    jsonschema.validate(value, schema)
    return value


def test_whole_answers_with_choices_and_prompts(eight: StubHost) -> None:
    answer = chat(eight, n=3, seed=5).json()
    contents = [choice["message"]["content"] for choice in answer["choices"]]
    assert len({content for content in contents if valid(content)}) == 3
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}
    answer = text(eight, prompt=["a", "b"], n=2, temperature=0).json()
    contents = [choice["text"] for choice in answer["choices"]]
    assert all(map(valid, contents)) and contents[0] == contents[1] and len(answer["choices"]) == 4


def test_streams_say_what_whole_answers_say(eight: StubHost) -> None:
    with openai.OpenAI(base_url=eight.url + "/v1", api_key="none", max_retries=0) as client:
        for ask in (client.chat.completions.create, client.completions.create):
            more: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]} if "chat" in ask.__module__ else {"prompt": "hello"}
            call = {
                **more,
                "model": "x",
                "seed": 7,
                "n": 2,
                "max_tokens": 300,
                "top_p": 1,
                "extra_body": {"response_format": FORM, "logit_bias": BIAS},
            }
            parts, reasons = ["", ""], ["", ""]
            for chunk in ask(stream=True, **call):
                for choice in chunk.choices:
                    parts[choice.index] += (choice.delta.content if "chat" in ask.__module__ else choice.text) or ""
                    reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            whole = [choice.message.content if "chat" in ask.__module__ else choice.text for choice in ask(**call).choices]
            assert parts == whole and all(map(valid, whole)) and reasons == ["stop", "stop"]


def test_any_object(eight: StubHost) -> None:
    for seed in range(4):
        answer = chat(eight, response_format={"type": "json_object"}, seed=seed, max_tokens=60).json()["choices"][0]
        if answer["finish_reason"] == "stop":
            assert isinstance(json.loads(answer["message"]["content"]), dict)
    assert chat(eight, response_format={"type": "text"}, max_tokens=3, logit_bias=None).status_code == 200


def test_what_max_tokens_cuts_is_the_beginning_of_it(eight: StubHost) -> None:
    whole = chat(eight, seed=5).json()["choices"][0]["message"]["content"]
    cut = chat(eight, seed=5, max_tokens=4).json()
    assert cut["choices"][0]["finish_reason"] == "length" and cut["usage"]["completion_tokens"] == 4
    assert whole.startswith(cut["choices"][0]["message"]["content"])


def test_the_end_of_the_grammar_ends_a_text_that_ignores_ends(eight: StubHost) -> None:
    answer = chat(eight, seed=5, ignore_eos=True).json()
    assert answer["choices"][0]["finish_reason"] == "stop" and valid(answer["choices"][0]["message"]["content"])
    number = text(
        eight, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}, logit_bias={"0": 100}
    ).json()
    assert number["choices"][0]["finish_reason"] == "stop" and isinstance(json.loads(number["choices"][0]["text"]), int)


def test_stops_of_the_caller_cut_it_too(eight: StubHost) -> None:
    answer = chat(eight, seed=5, stop=['"ok"']).json()["choices"][0]
    assert answer["finish_reason"] == "stop" and "ok" not in answer["message"]["content"] and answer["message"]["content"].startswith("{")
    answer = text(eight, seed=5, stop_token_ids=OPENING).json()["choices"][0]
    assert answer["finish_reason"] == "stop" and answer["text"] == ""


def test_numbers_are_those_of_the_free_text(eight: StubHost) -> None:
    """Log-probabilities are told of the raw scores, whatever is allowed."""
    bound = text(eight, temperature=0, logprobs=2, max_tokens=1).json()["choices"][0]["logprobs"]
    free = text(eight, temperature=0, logprobs=2, max_tokens=1, response_format=None, logit_bias=None).json()["choices"][0]["logprobs"]
    assert bound["tokens"][0].startswith("{") and bound["top_logprobs"][0].items() >= free["top_logprobs"][0].items()
    assert bound["token_logprobs"][0] < min(free["top_logprobs"][0].values())


def test_functions_on_offer_may_be_called(eight: StubHost) -> None:
    tool = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
    # No object, and quotes and a bracket that soon close the call.
    no_object = {**{str(token): -100 for token in OPENING}, "42": 30, "35": 30}
    call = chat(eight, tools=[tool], logit_bias=no_object, seed=1, max_tokens=400).json()["choices"][0]
    assert call["finish_reason"] == "tool_calls", call
    assert call["message"]["tool_calls"][0]["function"]["name"] == "lookup" and call["message"]["content"] is None
    for choice in ("none", "auto"):
        answer = chat(eight, tools=[tool], tool_choice=choice, logit_bias={str(token): 30 for token in OPENING}, seed=2).json()["choices"][
            0
        ]
        assert answer["finish_reason"] == "stop" and valid(answer["message"]["content"])


def test_a_schema_beside_seven_free_texts(eight: StubHost) -> None:
    """Its output validates, and the others say what they say without it."""

    def free(number: int) -> str:
        greedy = {"temperature": 0} if number % 2 else {"seed": number}
        body = {"prompt": f"text {number}", "max_tokens": 60, "ignore_eos": True, "top_p": 0.9, **greedy}
        answer = eight.client.post("/v1/completions", json=body)
        return str(answer.json()["choices"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(free, range(7)))
        bound = [pool.submit(chat, eight, seed=seed) for seed in range(1)]
        beside = list(pool.map(free, range(7)))
        contents = [item.result().json()["choices"][0]["message"]["content"] for item in bound]
    assert alone == beside and len(set(alone)) == 7
    assert all(map(valid, contents))


def test_bans_that_leave_nothing_end_that_text_alone(eight: StubHost) -> None:
    with ThreadPoolExecutor(2) as pool:
        free = pool.submit(text, eight, response_format=None, logit_bias=None, max_tokens=40, temperature=0)
        # Every token that begins with "{" but one of no bytes: the schema allows no other.
        constant = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "x"}}}
        failed = text(eight, response_format=constant, logit_bias={"35": -100, "35416": -100, **{str(i): -100 for i in range(1, 300)}})
        assert failed.status_code == 500 and "response_format" in failed.json()["error"]["message"], failed.text
        assert free.result().status_code == 200
    assert chat(eight, seed=5).status_code == 200


@pytest.mark.parametrize(
    "form",
    [{"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "foo"}}}, {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/x"}}}, {"type": "yaml"}],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_before_anything_runs(eight: StubHost, form: Any) -> None:
    before = eight.engine()["requests"]["accepted"]
    for answer in (chat(eight, response_format=form), chat(eight, response_format=form, stream=True), text(eight, response_format=form)):
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "response_format")
    assert eight.engine()["requests"]["accepted"] == before


def test_a_schema_that_takes_too_long_holds_up_no_other_call(eight: StubHost) -> None:
    slow = {"type": "object", "patternProperties": {f"^7_{i}_[a-z]+$": {"type": "integer"} for i in range(600)}}

    def bound(schema: Any) -> Any:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return text(eight, response_format=form, max_tokens=1, logit_bias=None)

    with ThreadPoolExecutor(46) as pool:
        culprit = pool.submit(bound, slow)
        others = [pool.submit(bound, {"type": "integer", "minimum": i}) for i in range(45)]
        meanwhile = 0
        while not culprit.done():
            # Saving settings takes one of the threads that everybody shares.
            assert eight.client.post("/update-config", json={}).status_code == 200
            meanwhile += 1
        assert meanwhile > 10
        assert (culprit.result().status_code, culprit.result().json()["error"]["param"]) == (400, "response_format")
        assert {answer.result().status_code for answer in others} == {200}


def test_the_official_client_parses_into_a_model(eight: StubHost) -> None:
    from pydantic import BaseModel

    class Thing(BaseModel):
        name: str
        ok: bool

    with openai.OpenAI(base_url=eight.url + "/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.parse(
            model="x",
            messages=[{"role": "user", "content": "hello"}],
            response_format=Thing,
            seed=3,
            max_tokens=400,
            logit_bias=BIAS,
            top_p=0.5,
        )
        assert isinstance(answer.choices[0].message.parsed, Thing)
