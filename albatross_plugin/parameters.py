"""Which parameters of a call are known: harmless ones, those that are refused unless switched off, and those of one route alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from albatross_plugin.errors import RequestError, shown

# Read in options.py, on both routes.
_READ = frozenset(
    (
        "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "penalty_decay",
        "global_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "n", "logprobs", "stream", "stream_options",
        "priority", "response_format",
    )
)  # fmt: skip
# What a host reads itself, and what has no influence on the text: notes of the caller, and where or when a call is served.
_HARMLESS = frozenset(
    (
        "model", "state", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "prompt_cache_options",
    )
)  # fmt: skip
_CHAT = frozenset(
    ("messages", "tools", "tool_choice", "parallel_tool_calls", "user_name", "assistant_name", "system_name", "presystem", "top_logprobs")
)
_TEXT = frozenset(("prompt", "echo"))

# Parameters of other servers that would change the text: silence about them would be a wrong answer.
# The values listed with a name are its way of saying "off".
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "min_p": (0,),
    "typical_p": (1,),
    "repetition_penalty": (1,),
    "mirostat": (0,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "grammar": ("",),
    "json_schema": (),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "dry_multiplier": (0,),
    "include_stop_str_in_output": (False,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "reasoning_effort": ("none",),
    "tfs_z": (1,),
    "typical": (1,),
    "xtc_probability": (0,),
}
# The other route's own parameters, where they ask for nothing.
_OTHER_ROUTE: dict[str, tuple[object, ...]] = {"echo": (False,), "top_logprobs": (0,)}
_KNOWN_IN_CHAT = _READ | _HARMLESS | UNSUPPORTED.keys() | _CHAT
_KNOWN_IN_TEXT = _READ | _HARMLESS | UNSUPPORTED.keys() | _TEXT


def says_off(value: Any, off: Collection[object]) -> bool:
    """Whether ``value`` is unset or one of ``off``. For Python true is 1; for the caller it is not."""
    return value is None or any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in off)


def refuse_unsupported(values: Mapping[str, Any], undeclared: Collection[str], *, chat_mode: bool) -> None:
    """Raises RequestError 400 that names the first parameter which this model cannot honour.

    ``values``: the members of the body that can be looked at. ``undeclared``: those of them that the host's request model does not
    declare; a name among them that nobody knows is refused, since the host will not read it either. ``None`` counts as unset.
    """
    for name, off in UNSUPPORTED.items():
        value = values.get(name)
        if not says_off(value, off):
            raise RequestError(f"{name} is not supported by this model", code="unsupported_parameter", param=name)
    known = _KNOWN_IN_CHAT if chat_mode else _KNOWN_IN_TEXT
    for name in undeclared:
        value = values.get(name)
        if name in known or says_off(value, _OTHER_ROUTE.get(name, ())):
            continue
        if name in _CHAT or name in _TEXT:
            route = "a chat" if chat_mode else "completions"
            raise RequestError(f"{name} is not supported in {route}", code="unsupported_parameter", param=name)
        raise RequestError(f"unknown parameter {shown(name)}; this model would ignore it", code="unknown_parameter", param=name[:80])
