"""The official client and a strict reader against the stub host, whatever a call may ask for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
import tiny
from cases.scripts import tokens, write_script
from cases.strict_sse import stream
from host.live import LiveHost, wait_for
from pydantic import BaseModel, ConfigDict

Load = Callable[..., LiveHost]
SAID = ("Hi", ".", "All", " is", " well")
TEXT = "".join(SAID)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
PLAIN: dict[str, Any] = {"prompt": "!", "temperature": 0}
USAGE = {"stream_options": {"include_usage": True}}
CALL = ("weather", "```", "python", "\n", "tool", "_", "call", '("', "city", '"', '="', "Paris", '")', "``", "`", " well")
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
def api(host: LiveHost) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=host.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def script(load: Load, models: Path) -> LiveHost:
    return load(write_script(models / "said.pth", *tokens(*SAID)))


@pytest.fixture
def caller(load: Load, models: Path) -> LiveHost:
    """Its model answers with a call of ``weather``, and a word after it."""
    return load(write_script(models / "call.pth", *tokens(*CALL)))


def both(host: LiveHost, body: dict[str, Any], **more: Any) -> dict[int, str]:
    """The texts of all choices, the same with and without a stream, and the same counts."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    whole = host.client.post(path, json={**body, **more}).json()
    texts = {choice["index"]: choice["message"]["content"] if "message" in choice else choice["text"] for choice in whole["choices"]}
    reasons = {choice["index"]: choice["finish_reason"] for choice in whole["choices"]}
    answer = stream(host.client, path, {**body, **more, **USAGE})
    assert {index: choice.text for index, choice in answer.choices.items()} == texts
    assert {index: choice.finish_reason for index, choice in answer.choices.items()} == reasons
    assert answer.usage == whole["usage"]
    return texts


@pytest.mark.parametrize("body", [CHAT, PLAIN], ids=["chat", "text"])
def test_both_modes_agree_to_the_letter(script: LiveHost, body: dict[str, Any]) -> None:
    assert both(script, body) == {0: TEXT}
    assert both(script, body, n=3) == {0: TEXT, 1: TEXT, 2: TEXT}
    assert both(script, body, max_tokens=2) == {0: "Hi."}
    assert both(script, body, max_tokens=9, max_completion_tokens=2) == {0: "Hi."}, "the newer name wins"
    for stop in (None, [], "", [""]):
        assert both(script, body, stop=stop) == {0: TEXT}
    for stop in ("All", ["All"], ["", "All", "well"]):
        assert both(script, body, stop=stop) == {0: "Hi."}
    assert both(script, body, stop_token_ids=tokens(".")) == {0: "Hi"}
    assert both(script, body, logit_bias={str(tokens(".")[0]): -100})[0].startswith("Hi") is True
    assert both(script, body, ignore_eos=True, max_tokens=8)[0].startswith(TEXT)
    assert both(script, body, priority=-5, user="me", metadata={"a": "b"}, store=True) == {0: TEXT}


def test_api_3_lists_of_prompts_and_of_token_lists(script: LiveHost) -> None:
    start = tokens("!")
    for prompts, count in (["!"], 1), ([start], 1), ([start, start], 2), (["!", "a!", "b!"], 3), (start, 1):
        assert both(script, {**PLAIN, "prompt": prompts}, n=3) == dict.fromkeys(range(3 * count), TEXT)
    assert both(script, {**PLAIN, "prompt": ["!", "a!"]}, echo=True) == {0: "!" + TEXT, 1: "a!" + TEXT}


def test_api_3_the_client_reads_three_streamed_choices(script: LiveHost, api: openai.OpenAI) -> None:
    texts, reasons = ["", "", ""], {}
    for chunk in api.chat.completions.create(model="m", n=3, stream=True, stream_options={"include_usage": True}, **CHAT):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
        usage = chunk.usage
    assert texts == [TEXT] * 3 and reasons == dict.fromkeys(range(3), "stop")
    assert usage is not None and usage.completion_tokens == 3 * (len(SAID) + 1)


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": False}, {}, None, "absent"])
@pytest.mark.parametrize("body", [CHAT, PLAIN], ids=["chat", "text"])
def test_api_2_usage_comes_once_and_only_when_asked_for(script: LiveHost, api: openai.OpenAI, body: dict[str, Any], options: Any) -> None:
    more: dict[str, Any] = {} if options == "absent" else {"stream_options": options}
    wanted = bool((more.get("stream_options") or {}).get("include_usage"))
    answer = stream(script.client, "/v1/chat/completions" if "messages" in body else "/v1/completions", {**body, **more})
    assert (answer.usage is not None) == wanted
    create: Any = api.chat.completions.create if "messages" in body else api.completions.create
    chunks = list(create(model="m", stream=True, **body, **more))
    assert all(chunk.id and chunk.created and chunk.model == "said" for chunk in chunks)
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [wanted]
    assert (chunks[-1].choices == []) == wanted


def test_log_probabilities_in_every_form(script: LiveHost, api: openai.OpenAI) -> None:
    whole = api.chat.completions.create(model="m", logprobs=True, top_logprobs=3, **CHAT).choices[0]
    entries = whole.logprobs.content
    assert [entry.token for entry in entries[:-1]] == list(SAID)
    assert all(len(entry.top_logprobs) == 3 and entry.top_logprobs[0].logprob >= entry.logprob for entry in entries)
    assert all(bytes(entry.bytes) == entry.token.encode() for entry in entries)
    streamed = stream(script.client, "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3})
    parts = [entry for part in streamed.choices[0].logprobs for entry in part["content"]]
    assert [(part["token"], part["logprob"]) for part in parts] == [(entry.token, entry.logprob) for entry in entries]
    text = api.completions.create(model="m", logprobs=2, echo=True, **{**PLAIN, "prompt": "a!"}).choices[0]
    numbers = text.logprobs
    assert numbers.tokens[:4] == ["a", "!", "Hi", "."] and numbers.token_logprobs[0] is None
    assert all(math.isfinite(value) and value <= 0 for value in numbers.token_logprobs[1:])
    assert [text.text[at : at + len(token)] for at, token in zip(numbers.text_offset, numbers.tokens, strict=True)] == numbers.tokens
    assert all(len(top) == 2 for top in numbers.top_logprobs[1:])
    parts = stream(script.client, "/v1/completions", {**PLAIN, "prompt": "a!", "logprobs": 2, "echo": True}).choices[0].logprobs
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [entry for part in parts for entry in part[name]] == getattr(numbers, name)


def test_offsets_count_the_characters_of_the_text(load: Load, models: Path) -> None:
    host = load(write_script(models / "smile.pth", 3319, 153, 129, *tokens("Hi", ".")))
    body = {**PLAIN, "logprobs": 0, "echo": True}
    choice = host.client.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == "!😀Hi."
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == [0, 1, 1, 1, 2, 4, 5], "a token that only begins or goes on with a character stands where that character stands"
    parts = stream(host.client, "/v1/completions", body).choices[0].logprobs
    assert [at for part in parts for at in part["text_offset"]] == offsets


def test_seeds_repeat_and_choices_differ(load: Load, random_model: Path, api: openai.OpenAI) -> None:
    load(random_model)

    def say(**more: Any) -> list[str]:
        options = {"prompt": "a", "temperature": 1, "top_p": 1, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
        return [choice.text for choice in api.completions.create(model="m", **{**options, **more}).choices]

    assert say(n=3, seed=5) == say(n=3, seed=5) and len(set(say(n=3, seed=5))) == 3
    assert say() != say()


def test_content_parts_are_one_text(script: LiveHost, api: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    whole, split = (
        api.chat.completions.create(model="m", messages=[{"role": "user", "content": content}], temperature=0)
        for content in ("hello", parts)
    )
    assert whole.usage == split.usage and split.choices[0].message.content == TEXT
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(model="m", messages=[{"role": "user", "content": picture}])
    assert refused.value.param == "messages[0].content"


def test_abt_1_a_reader_that_breaks_off_frees_its_slot(load: Load, random_model: Path, api: openai.OpenAI) -> None:
    host = load(random_model)
    options: dict[str, Any] = {"prompt": "a", "max_tokens": 5000, "extra_body": {"ignore_eos": True}}
    with api.completions.create(model="m", stream=True, **options) as chunks:
        for _, chunk in zip(range(2), chunks, strict=False):
            assert chunk.choices
    wait_for(lambda: host.status()["albatross"]["slots"]["active"] == 0, 1)


@pytest.mark.parametrize("choice", [None, "auto", {"type": "function", "function": {"name": "weather"}}])
def test_tools_by_the_client(caller: LiveHost, api: openai.OpenAI, choice: Any) -> None:
    more: dict[str, Any] = {"tools": [WEATHER], **({} if choice is None else {"tool_choice": choice})}
    whole = api.chat.completions.create(model="m", **CHAT, **more).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None
    (call,) = whole.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "weather", {"city": "Paris"})
    for options in ({}, USAGE, {"logprobs": True}):
        streamed = stream(caller.client, "/v1/chat/completions", {**CHAT, **more, **options}).choices[0]
        assert streamed.finish_reason == "tool_calls" and streamed.text == ""
        (told,) = streamed.calls
        assert (told["name"], told["arguments"]) == ("weather", call.function.arguments) and told["id"] != call.id
    with api.chat.completions.stream(model="m", **CHAT, **more) as events:
        final = events.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and final.message.tool_calls[0].function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "warm"}
    messages = [*CHAT["messages"], whole.message.model_dump(exclude_none=True), result]
    assert api.chat.completions.create(model="m", messages=messages, tools=[WEATHER], temperature=0).choices[0].message.content


def test_tools_that_are_not_called(script: LiveHost) -> None:
    assert both(script, {**CHAT, "tools": [WEATHER]}) == {0: TEXT}
    assert both(script, {**CHAT, "tools": [WEATHER], "tool_choice": "none", "parallel_tool_calls": False}) == {0: TEXT}


def test_models_by_the_client(script: LiveHost, api: openai.OpenAI) -> None:
    (listed,) = api.models.list().data
    assert (listed.id, listed.object, listed.owned_by) == ("said", "model", "rwkv")
    assert api.models.retrieve("said") == listed == api.models.retrieve("rwkv")
    with pytest.raises(openai.NotFoundError) as missing:
        api.models.retrieve("gpt-4")
    assert missing.value.code == "model_not_found"


def test_r23_embeddings_are_refused_and_nothing_stays_counted(script: LiveHost, api: openai.OpenAI) -> None:
    for _ in range(3):
        with pytest.raises(openai.BadRequestError) as refused:
            api.embeddings.create(model="m", input="hello")
        assert "embeddings" in refused.value.message
    status = script.status()["albatross"]
    assert status["slots"]["active"] == status["queue"]["length"] == 0
    assert both(script, PLAIN) == {0: TEXT}


def test_errors_raise_the_class_that_the_client_has_for_them(script: LiveHost, api: openai.OpenAI, load: Load, models: Path) -> None:
    def post(path: str, body: object = None) -> Any:
        return api.post(path, body=body, cast_to=object)

    cases: list[tuple[type[openai.APIStatusError], int, Callable[[], Any]]] = [
        (openai.NotFoundError, 404, lambda: post("/nowhere", {})),
        (openai.APIStatusError, 405, lambda: api.get("/completions", cast_to=object)),
        (openai.BadRequestError, 400, lambda: post("/completions", {"prompt": 5})),
        (openai.BadRequestError, 400, lambda: post("/completions", {"prompt": "a", "temperature": "hot"})),
        (openai.APIStatusError, 413, lambda: post("/completions", {"prompt": "a" * (17 * 1024 * 1024)})),
        (
            openai.PermissionDeniedError,
            403,
            lambda: api.get("/models", cast_to=object, options={"headers": {"origin": "http://evil.example"}}),
        ),
    ]
    for kind, status, ask in cases:
        with pytest.raises(kind) as raised:
            ask()
        assert raised.value.status_code == status
        assert set(raised.value.body) == {"message", "type", "param", "code"} and raised.value.body["message"]  # type: ignore[arg-type]
    poison = models / "poison.pth"
    if not poison.exists():
        tiny.write(poison, tiny.poison_checkpoint(tokens("!", "Hi", ".", "All"), trigger=tokens(".")[0]))
    load(poison)
    with pytest.raises(openai.InternalServerError, match="finite"):
        api.completions.create(model="m", **PLAIN)
    said = ""
    with pytest.raises(openai.APIError, match="finite"):
        for chunk in api.completions.create(model="m", stream=True, **PLAIN):
            said += chunk.choices[0].text
    assert said == "Hi.", "the text before the failure arrives"
    answer = stream(script.client, "/v1/completions", PLAIN)
    assert answer.error is not None and answer.error["type"] == "server_error"


class Reply(BaseModel):
    """What a model has to fill in; no text in it may run on for ever."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["bird", "fish"]
    legs: Literal[0, 2]
    flies: bool


def test_streams_under_a_json_schema(load: Load, random_model: Path) -> None:
    pytest.importorskip("llguidance")
    host = load(random_model)
    schema = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": Reply.model_json_schema()}}
    # Blanks are unlikely then, so that texts are short.
    blanks = {str(token): -100 for token in tokens("\t", "\n", "\r", " ")}
    options = {
        "n": 3,
        "max_tokens": 300,
        "temperature": 1,
        "top_p": 1,
        "frequency_penalty": 0,
        "seed": 4,
        "logit_bias": blanks,
        "response_format": schema,
    }
    for path, body in (("/v1/chat/completions", {"messages": CHAT["messages"]}), ("/v1/completions", {"prompt": "a"})):
        answer = stream(host.client, path, {**body, **options, **USAGE})
        assert {choice.finish_reason for choice in answer.choices.values()} == {"stop"} and len(answer.choices) == 3
        assert all(Reply.model_validate_json(choice.text) for choice in answer.choices.values())
