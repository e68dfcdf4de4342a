"""Any value in any parameter gives options that the engine can use, or a refusal that names the parameter."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from fuzz.anything import ANYTHING, objects
from hypothesis import given, settings
from hypothesis import strategies as st

from albatross_plugin import options as module
from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.errors import RequestError
from albatross_plugin.options import GenerationOptions, read_options
from albatross_plugin.parameters import UNSUPPORTED

MODEL = SimpleNamespace(
    user="User", bot="Assistant", interface=":", max_tokens_per_generation=500, temperature=1.0, top_p=0.3, top_k=0,
    penalty_alpha_presence=0.0, penalty_alpha_frequency=1.0, penalty_decay=0.996, global_penalty=False,
)  # fmt: skip
NAMES = (
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "penalty_decay",
    "global_penalty", "seed", "ignore_eos", "logit_bias", "logprobs", "top_logprobs", "echo", "n", "priority", "stream_options",
    "response_format", "user_name", "assistant_name", *UNSUPPORTED,
)  # fmt: skip


def read(body: Any, stop: Any, ids: Any, chat: bool, defaults: Any) -> GenerationOptions | RequestError:
    try:
        found = read_options(body, MODEL, stop=stop, stop_token_ids=ids, chat_mode=chat, defaults=defaults)
        found.sampling.check_vocabulary(65536)
    except RequestError as error:
        return error
    return found


def check(found: GenerationOptions | RequestError, names: set[str]) -> None:
    if isinstance(found, RequestError):
        # A long name is not repeated as a whole.
        names = {name[:80] for name in names}
        assert found.status == 400 and found.message and found.code
        assert found.param is not None and (found.param in names or found.param.split(".")[0].split("[")[0] in names), found.param
        assert len(found.message) < 100_000
        return
    for choice in range(min(found.n, 3)):
        params = found.for_choice(choice)
        Request(1, (5,), params, 1, found.priority)
        assert all(math.isfinite(value) for value in (params.temperature, params.top_p, params.presence_penalty, params.frequency_penalty))
        assert params.max_tokens >= 1 and 0 <= params.penalty_decay <= 1
        assert all(0 <= token < 65536 for token in (*params.stop_token_ids, *(token for token, _ in params.logit_bias)))
    assert all(isinstance(text, str) and text for text in found.stops) and 1 <= found.n <= module.MAX_CHOICES


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None, database=None)
@given(value=ANYTHING, chat=st.booleans())
def test_any_value_of_a_parameter(name: str, value: object, chat: bool) -> None:
    check(read({name: value}, None, None, chat, None), {name, "logprobs"})


@settings(max_examples=300, deadline=None, database=None)
@given(body=objects(*NAMES), defaults=objects(*NAMES), stop=ANYTHING, ids=ANYTHING, chat=st.booleans())
def test_any_body_over_any_saved_settings(body: dict[str, object], defaults: dict[str, object], stop: Any, ids: Any, chat: bool) -> None:
    check(read(body, stop, ids, chat, defaults), {*NAMES, *body, "stop", "stop_token_ids"})


@settings(max_examples=300, deadline=None, database=None)
@given(value=st.sampled_from([{}, {"seed": None}]), top=st.integers(), shift=st.integers(0, 5))
def test_a_seed_of_any_size_moves_by_the_choice(value: dict[str, Any], top: int, shift: int) -> None:
    found = read({**value, "seed": top, "n": 6}, None, None, False, None)
    assert isinstance(found, GenerationOptions)
    assert isinstance(found.for_choice(shift), SamplingParams)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("best_of", True, "best_of"), ("echo", 0, "echo"), ("min_tokens", False, "min_tokens"), ("use_beam_search", 0, "use_beam_search"),
        ("max_completion_tokens", module.MAX_TOKENS + 1, "max_completion_tokens"), ("max_tokens", module.MAX_TOKENS + 1, "max_tokens"),
        ("logit_bias", {str(token): 1 for token in range(4097)}, "logit_bias"), ("metadata", {str(key): "" for key in range(17)}, "metadata"),
        ("metadata", "a", "metadata"), ("stream_options", {"foo": 1}, "stream_options.foo"), ("global_penalty", "no", "global_penalty"),
        ("stream_options", {"include_obfuscation": 0}, "stream_options"), ("n", [1] * 100_000, "n"),
    ],
)  # fmt: skip
def test_limits_and_truth_values_of_a_chat(name: str, value: object, said: str) -> None:
    refused = read({name: value}, None, None, True, None)
    assert isinstance(refused, RequestError) and refused.param == said and len(refused.message) < 200


@pytest.mark.parametrize("ids", [[1] * 4097, [True], ["1"], "12", {"1": 1}, 5])
def test_stop_tokens_are_ids_and_few(ids: object) -> None:
    refused = read({}, None, ids, False, None)
    assert isinstance(refused, RequestError) and refused.param == "stop_token_ids"


def test_what_is_at_a_limit_is_taken() -> None:
    body = {
        "max_tokens": module.MAX_TOKENS,
        "logit_bias": {str(token): 1 for token in range(4096)},
        "metadata": {str(key): "" for key in range(16)},
    }
    found = read({**body, "best_of": 1, "stream_options": {"include_usage": True}}, None, list(range(4096)), True, None)
    assert isinstance(found, GenerationOptions) and found.sampling.max_tokens == module.MAX_TOKENS and found.include_usage
    assert (len(found.sampling.logit_bias), len(found.sampling.stop_token_ids)) == (4096, 4096)
