"""Translation of a list of texts: each becomes a prompt of two paragraphs, of which the model writes the second"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.errors import GenerationError, RequestError, shown
from albatross_plugin.serving.batch_call import MAX_ITEMS, BatchCall, alike, check_text
from albatross_plugin.serving.languages import NAMES, detected, language

MEMBERS = frozenset(("source_lang", "target_lang", "text_list"))
AUTO = ("", "auto")
# A translation has about as many tokens as its text; some pairs of languages take three times as many.
LEAST_LIMIT, TOKENS_PER_TOKEN = 64, 4
# What HTTP calls the ends of an item that are no fault of a step.
STATUSES = {"context_length_exceeded": 400, "model_unavailable": 503}
# Begins with the break: a pattern that began with blanks would try each of a million blanks for a start.
BLANK_LINES = re.compile(r"\n\s*\n\s*")


@dataclass(frozen=True)
class Translation:
    """One call: ``sources[i]`` is the code of text i's language. ``given``: what the caller says that it is."""

    texts: Sequence[str]
    sources: Sequence[str]
    target: str
    given: str | None = None

    def call(self, model: AlbatrossRWKV) -> BatchCall:
        """The batch for the texts that hold something. Greedy, so that a text has one translation."""
        prompts: list[tuple[int, ...]] = []
        limits = []
        for text, source in zip(self.texts, self.sources, strict=True):
            if text.strip():
                # An empty line would end the paragraph.
                inner = "\n".join(map(str.rstrip, BLANK_LINES.split(text.strip())))
                ids = model.encode_prompt(f"{NAMES[source]}: {inner}\n\n{NAMES[self.target]}:")
                prompts.append(tuple(ids))
                limits.append(max(LEAST_LIMIT, TOKENS_PER_TOKEN * len(ids)))
        plain = {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0}
        options = model.options(plain, stop=["\n\n"])
        return BatchCall(prompts, [0] * len(prompts), options, stream=False, limits=limits, alike=alike(prompts))


def read_translation(body: Mapping[str, Any]) -> Translation:
    """Check a body. Raises RequestError 400 that names the member at fault."""
    for name in body:
        if name not in MEMBERS:
            raise RequestError(f"unknown parameter {shown(name)}", code="unknown_parameter", param=name[:80])
    texts = body.get("text_list")
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise RequestError(f"text_list must be a list of texts, got {shown(texts)}", param="text_list")
    if len(texts) > MAX_ITEMS:
        raise RequestError(f"text_list may hold at most {MAX_ITEMS} texts, got {len(texts)}", param="text_list")
    for number, text in enumerate(texts):
        check_text(text, f"text_list[{number}]", "text_list")
    target = language(body.get("target_lang"), "target_lang")
    source = body.get("source_lang")
    if source is None or (isinstance(source, str) and source.strip().lower() in AUTO):
        return Translation(texts, [detected(text) for text in texts], target)
    code = language(source, "source_lang")
    return Translation(texts, [code] * len(texts), target, str(source).strip())


def translations(asked: Translation, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer, a translation for each text in its place. Raises GenerationError of the first text that has none."""
    made = iter(items)
    answers = []
    for text, source in zip(asked.texts, asked.sources, strict=True):
        translated = ""
        if text.strip():
            item = next(made)
            if item["status"] != "done":
                reason = item["error"] or {"message": "the translation was stopped", "code": "aborted"}
                status = STATUSES.get(reason["code"], 500)
                raise GenerationError(f"a text was not translated: {reason['message']}", status=status, code=reason["code"])
            translated = item["text"].strip()
        answers.append({"detected_source_lang": asked.given or source, "text": translated})
    return {"translations": answers}
