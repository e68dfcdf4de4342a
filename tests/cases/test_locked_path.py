"""The host's own models, read by the strict reader and the official client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from cases.scripts import tokens, write_script
from cases.strict_sse import stream
from host.live import LiveHost

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hello"}],
    "temperature": 0,
    "max_tokens": 5,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}
PLAIN: dict[str, Any] = {"prompt": "!", "temperature": 0, "max_tokens": 5, "presence_penalty": 0, "frequency_penalty": 0}


@pytest.fixture
def locked(load: Any, models: Path) -> LiveHost:
    return load(write_script(models / "face.pth", 3319, 153, 129, *tokens("Hi", ".", "All")), "cpu fp32")  # type: ignore[no-any-return]


@pytest.mark.parametrize("body", [CHAT, PLAIN], ids=["chat", "text"])
def test_api_2_streams_of_the_hosts_own_models(locked: LiveHost, body: dict[str, Any]) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    whole = locked.client.post(path, json=body).json()
    for options in ({}, {"include_usage": False}, {"include_usage": True, "include_obfuscation": False}):
        answer = stream(locked.client, path, {**body, "stream_options": options})
        text = whole["choices"][0]["message"]["content"] if "messages" in body else whole["choices"][0]["text"]
        assert answer.choices[0].text == text == "😀Hi." and answer.choices[0].finish_reason == "length"
        assert answer.usage == (whole["usage"] if options.get("include_usage") else None)
    for name, value in (
        ("stream_options", {"include_obfuscation": True}),
        ("verbosity", "low"),
        ("response_format", {"type": "json_object"}),
    ):
        refused = locked.client.post(path, json={**body, name: value})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == name


def test_r23_embeddings_are_served_where_the_model_has_them(locked: LiveHost) -> None:
    with openai.OpenAI(base_url=locked.url + "/v1", api_key="none", max_retries=0) as api:
        answer = api.embeddings.create(model="m", input=["hello", "world"])
        assert [len(entry.embedding) for entry in answer.data] == [64, 64] and answer.usage.prompt_tokens == 2
