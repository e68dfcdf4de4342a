"""Requests under a grammar among free ones, through the engine's scheduler and an executor. Also run on a pretended card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import llguidance

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.messages import Failed, Finished, Tokens
from albatross_plugin.engine.request import FinishReason, Request, SamplingParams
from albatross_plugin.engine.scheduler import Scheduler
from albatross_plugin.engine.step import StepPlan
from albatross_plugin.grammar import Grammars, JsonGrammar
from albatross_plugin.model.sampler import NOTHING_ALLOWED
from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

TOKENIZER = WorldTokenizer(find_vocabulary(None))
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 6}, "b": {"type": "boolean"}, "c": {"type": "array", "items": {"enum": [1, "x"]}, "maxItems": 3}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}  # fmt: skip


def json_grammar(schema: Any, vocab: int) -> JsonGrammar:
    """Without blanks, so that texts are short whatever a model says."""
    source = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
    return Grammars.of(TOKENIZER.vocabulary, vocab).compile(source)


class Outcome:
    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, Finished | Failed] = {}
        self.plans: list[StepPlan] = []


def serve(executor: Any, requests: Sequence[Request], batch: int) -> Outcome:
    """Run the requests to their ends, as a worker does."""
    scheduler = Scheduler(EngineConfig(batch=batch, device="cpu", prefill_budget=32))
    outcome = Outcome()
    tickets: list[Any] = []
    for request in requests:
        outcome.tokens[request.request_id] = []
        scheduler.add(request)
    while scheduler.busy or tickets:
        plan = scheduler.plan() if len(tickets) < executor.pipeline_depth else None
        if plan is not None:
            outcome.plans.append(plan)
            tickets.append(executor.launch(plan))
        if tickets and (plan is None or len(tickets) == executor.pipeline_depth):
            for event in scheduler.apply(executor.collect(tickets.pop(0))):
                if isinstance(event, Tokens):
                    for number, token in zip(event.request_ids, event.token_ids, strict=True):
                        outcome.tokens[number].append(token)
                elif isinstance(event, (Finished, Failed)):
                    outcome.ends[event.request_id] = event
    return outcome


def bound_among_free(executor: Any, script: Sequence[int], vocab: int) -> None:
    """A script model: every free row says the script from where its prompt stands in it, every bound one JSON."""
    grammar = json_grammar(SCHEMA, vocab)
    params = [
        {"temperature": 0},
        {"temperature": 0, "ignore_eos": True, "logprobs": 2},
        {"seed": 5, "top_p": 1.0, "presence_penalty": 1.0},
        {"seed": 6, "top_p": 1.0, "top_k": 40},
    ]
    bound = [
        Request(100 + i, (*script[: 1 + i], 250), SamplingParams(max_tokens=80, grammar=grammar, **more)) for i, more in enumerate(params)
    ]
    free = [
        Request(i, (5,) * i + (script[i],), SamplingParams(max_tokens=80, temperature=0, frequency_penalty=0))
        for i in range(1, len(script) - 1)
    ]
    banned = tuple((token, -100.0) for token in range(1, min(vocab, 65530)) if TOKENIZER.token_bytes[token].startswith(b"{"))
    stuck = Request(200, (script[0],), SamplingParams(max_tokens=80, grammar=grammar, logit_bias=banned))
    outcome = serve(executor, [*bound, *free, stuck], 8)
    for request in bound:
        end = outcome.ends[request.request_id]
        assert isinstance(end, Finished) and end.reason is FinishReason.STOP, end
        text = TOKENIZER.decode_bytes(outcome.tokens[request.request_id]).decode()
        jsonschema.validate(json.loads(text), SCHEMA)
    for request in free:
        assert outcome.tokens[request.request_id] == [*script[request.request_id + 1 :], 0]
    assert outcome.ends[200] == Failed(200, NOTHING_ALLOWED, 500)
    rows = [plan for plan in outcome.plans if plan.allowed and plan.decode and not plan.prefill]
    assert any(0 < len(plan.allowed or {}) < len(plan.decode) for plan in rows), "masked rows beside free ones in one captured step"


def many_bound(executor: Any, vocab: int, count: int) -> None:
    """More masks in a step than go to the card in one piece."""
    grammar = json_grammar(SCHEMA, vocab)
    requests = [Request(i, (5, 6 + i), SamplingParams(max_tokens=80, seed=i, top_p=1.0, grammar=grammar)) for i in range(count)]
    outcome = serve(executor, requests, count)
    texts = [TOKENIZER.decode_bytes(outcome.tokens[i]).decode() for i in range(count)]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    # The reference on the CPU has 34 different ones of 80; a mask that were shared would leave far fewer.
    assert len(set(texts)) > count // 5
