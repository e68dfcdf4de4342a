"""Translations in the form that browsers' extensions ask for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import tiny
from cases.scripts import tokens, write_script
from host.live import LiveHost

from albatross_plugin import hooks
from albatross_plugin.errors import RequestError
from albatross_plugin.serving import batch_routes
from albatross_plugin.serving.languages import NAMES, detected, language
from albatross_plugin.serving.translation import read_translation

PATH = "/translate/v1/batch-translate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("translations")


@pytest.fixture(scope="module")
def live() -> Iterator[LiveHost]:
    with pytest.MonkeyPatch.context() as patch, LiveHost(("albatross", hooks)) as running:
        patch.setenv("ALBATROSS_GATHER_MS", "0")
        yield running


def serve(live: LiveHost, path: Path) -> LiveHost:
    if getattr(live, "served", None) != path:
        assert live.switch(path, "albatross device=cpu batch=8").status_code == 200
        live.served = path  # type: ignore[attr-defined]
    return live


@pytest.fixture
def speaker(live: LiveHost, folder: Path) -> LiveHost:
    """Says the same after every prompt that ends with a colon, and goes on after the empty line."""
    return serve(live, write_script(folder / "speaker.pth", *tokens("你", "好", "\n\n", "English")))


@pytest.fixture
def random(live: LiveHost, folder: Path) -> LiveHost:
    path = folder / "random.pth"
    return serve(live, path if path.exists() else tiny.write(path, tiny.random_checkpoint(layers=1, width=64)))


def translate(host: LiveHost, **body: Any) -> list[dict[str, str]]:
    answer = host.client.post(PATH, json={"source_lang": "en", "target_lang": "zh-CN", **body})
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"translations"}
    return list(answer.json()["translations"])


def test_twenty_texts(speaker: LiveHost) -> None:
    texts = [f"Sentence number {i}." for i in range(20)]
    assert translate(speaker, text_list=texts) == [{"detected_source_lang": "en", "text": "你好"}] * 20


def test_a_text_becomes_the_documented_prompt_and_is_generated_greedily(random: LiveHost) -> None:
    texts = ["Good morning", "  one\n \n\ntwo\nthree  ", "晚上好"]
    prompts = ["English: Good morning\n\nJapanese:", "English: one\ntwo\nthree\n\nJapanese:", "Chinese: 晚上好\n\nJapanese:"]
    got = translate(random, source_lang="auto", target_lang="ja", text_list=texts)
    assert [each["detected_source_lang"] for each in got] == ["en", "en", "zh"]
    for each, prompt in zip(got, prompts, strict=True):
        size = len(random.state.model.encode_prompt(prompt))
        body = {"temperature": 0, "frequency_penalty": 0, "presence_penalty": 0, "stop": "\n\n", "max_tokens": max(64, 4 * size)}
        said = random.client.post("/v1/completions", json={"prompt": prompt, **body}).json()["choices"][0]["text"]
        assert each["text"] == said.strip() != ""


def test_short_texts_do_not_queue_behind_work_that_is_done_aside(speaker: LiveHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads for that are few, and schemas of other calls may take seconds in each."""

    async def busy(_: object) -> None:
        raise AssertionError("this waits for a thread")

    monkeypatch.setattr(batch_routes, "in_thread", busy)
    assert translate(speaker, text_list=["one"]) == [{"detected_source_lang": "en", "text": "你好"}]
    body = {"target_lang": "zh", "text_list": ["long " * 10_000] * 2}
    assert "waits for a thread" in speaker.client.post(PATH, json=body).text, "long ones are worked on there"


def test_texts_without_anything_to_translate_come_back_empty(speaker: LiveHost) -> None:
    got = translate(speaker, source_lang=None, text_list=["", " \n ", "Hello"])
    assert [each["text"] for each in got] == ["", "", "你好"]
    assert translate(speaker, text_list=[]) == []
    assert translate(speaker, text_list=[""]) == [{"detected_source_lang": "en", "text": ""}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_list": "Hello"}, "text_list"),
        ({"text_list": [1]}, "text_list"),
        ({"text_list": ["a"] * 1001}, "text_list"),
        ({"text_list": ["\ud800"]}, "text_list"),
        ({"target_lang": "xx"}, "target_lang"),
        ({"target_lang": None}, "target_lang"),
        ({"target_lang": "auto"}, "target_lang"),
        ({"source_lang": 5}, "source_lang"),
        ({"source_lang": "Klingon"}, "source_lang"),
        ({"source_lang": "en-\ud800"}, "source_lang"),
        ({"source_lang": "en-" + "x" * 1000}, "source_lang"),
        ({"target_lang": "en-\0"}, "target_lang"),
        ({"temperature": 1}, "temperature"),
    ],
)
def test_bad_calls_are_refused_by_the_name_of_the_member(speaker: LiveHost, body: dict[str, Any], param: str) -> None:
    import json

    content = json.dumps({"source_lang": "en", "target_lang": "zh", "text_list": ["a"], **body})
    answer = speaker.client.post(PATH, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_blanks_cost_no_time_and_empty_lines_do_not_end_a_text() -> None:
    from types import SimpleNamespace

    prompts: list[str] = []
    encode = lambda prompt: prompts.append(prompt) or [1]  # noqa: E731
    texts = ["a" + " " * 1_000_000 + "b", "a" + " " * 500_000 + "\n" + " " * 500_000 + "b", " one \n two\t\n \r\n\n  three\n\nfour "]
    asked = read_translation({"source_lang": "en", "target_lang": "ja", "text_list": texts})
    began = time.perf_counter()
    asked.call(SimpleNamespace(encode_prompt=encode, options=lambda *_, **__: None))  # type: ignore[arg-type]
    assert time.perf_counter() - began < 5, "a minute, where each blank is tried for a start"
    inner = "one \n two\nthree\nfour"
    assert prompts == [f"English: {text}\n\nJapanese:" for text in (*texts[:2], inner)]


def test_a_language_is_told_back_without_the_blanks_around_it(speaker: LiveHost) -> None:
    answer = translate(speaker, source_lang=" en-GB" + " " * 10_000, text_list=["", ""])
    assert answer == [{"detected_source_lang": "en-GB", "text": ""}] * 2


def test_the_language_of_a_long_text_is_known_from_its_beginning() -> None:
    began = time.perf_counter()
    assert detected(" " * 1_000_000 + "天地玄黄" * 1_000_000) == "zh"
    assert time.perf_counter() - began < 1


def test_a_text_that_cannot_be_translated_is_no_translation(live: LiveHost, folder: Path) -> None:
    path = folder / "speaker.pth"
    live.served = None  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALBATROSS_MAX_PROMPT_TOKENS", "20")
        assert serve(live, path).status()["model"] == "speaker"
    live.served = None  # type: ignore[attr-defined]
    answer = live.client.post(PATH, json={"source_lang": "en", "target_lang": "zh", "text_list": ["short", "long " * 100]})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"


def test_languages_by_code_and_by_name() -> None:
    for code in NAMES:
        assert language(code, "x") == code and language(NAMES[code].upper(), "x") == code
    known = {
        "zh-CN": "zh",
        "zh_Hans": "zh",
        "zh-TW": "zh-hant",
        "zh-Hant-HK": "zh-hant",
        "pt-BR": "pt",
        "EN-us": "en",
        "iw": "he",
        "nb": "no",
    }
    assert {given: language(given, "x") for given in known} == known
    with pytest.raises(RequestError, match="such as en"):
        language("english-ish", "x")


def test_scripts_tell_languages_apart() -> None:
    texts = {
        "Hello there": "en", "Bonjour": "en", "你好，世界": "zh", "こんにちは": "ja", "東京へ行く": "ja", "안녕하세요": "ko", "Привет": "ru", "Привіт, як ти?": "uk",
        "مرحبا": "ar", "سلام چطوری": "fa", "שלום": "he", "Γειά": "el", "नमस्ते": "hi", "สวัสดี": "th", "1234": "en", "": "en",
        "The word 你好 means hello in the language of that country": "en",
    }  # fmt: skip
    assert {text: detected(text) for text in texts} == texts
