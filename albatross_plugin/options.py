"""What one API call asks for: the request body over the host's saved config over the model's defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from albatross_plugin.engine.grammar import Grammar
from albatross_plugin.engine.request import MAX_LOGPROBS, SamplingParams
from albatross_plugin.errors import RequestError, shown
from albatross_plugin.parameters import UNSUPPORTED, refuse_unsupported, says_off
from albatross_plugin.response_format import ResponseFormat, read_response_format

MAX_CHOICES = 128
MAX_STOP_CHARACTERS = 4 * 1024 * 1024
MAX_STOPS = 1024
# Room for any bias that is meant, not for one on each token of the vocabulary, which would cost every step.
MAX_BIASES = 4096
MAX_STOP_IDS = 4096
MAX_METADATA = 16
# No text that is meant is longer; hosts have lower limits of their own.
MAX_TOKENS = 10_000_000


class ModelDefaults(Protocol):
    """The attributes of the host's model object that hold default settings, and what only it can make of a call."""

    user: str
    bot: str
    interface: str
    max_tokens_per_generation: int
    temperature: float
    top_p: float
    top_k: int
    penalty_alpha_presence: float
    penalty_alpha_frequency: float
    penalty_decay: float
    global_penalty: bool

    def grammar(self, wanted: ResponseFormat, functions: Sequence[str]) -> Grammar:
        """What binds a text to this form, or to a call of one of these functions. Raises RequestError that names response_format."""


@dataclass(frozen=True)
class GenerationOptions:
    """One call, checked. ``n`` choices for each prompt; choice i uses ``sampling.seed + i``."""

    sampling: SamplingParams
    stops: tuple[str, ...] = ()
    n: int = 1
    echo: bool = False
    priority: int = 0
    include_usage: bool = False

    def for_choice(self, choice: int) -> SamplingParams:
        """The sampling of one choice: with a seed given, choice i draws from seed + i."""
        if choice == 0 or self.sampling.seed is None:
            return self.sampling
        return replace(self.sampling, seed=self.sampling.seed + choice)


class _Body:
    """Reads a request body that is a pydantic object, a mapping or None; null counts as unset."""

    def __init__(self, body: Any, defaults: Mapping[str, Any] | None) -> None:
        self._body = body
        # A model's members as a mapping: asking it for one that it lacks costs an exception, and dozens of names are asked for.
        extra = getattr(body, "model_extra", None)
        self._members = body if isinstance(body, Mapping) else {**vars(body), **extra} if isinstance(extra, Mapping) else None
        # Names that the host's own request model does not declare; a mapping declares none.
        self.undeclared = tuple(body if isinstance(body, Mapping) else extra if isinstance(extra, Mapping) else ())
        self._defaults = defaults or {}

    def own(self, name: str) -> Any:
        if self._members is not None:
            return self._members.get(name)
        return getattr(self._body, name, None)

    def among(self, names: Iterable[str]) -> Mapping[str, Any]:
        """All members, where they can be listed; else those of ``names``."""
        return self._members if self._members is not None else {name: self.own(name) for name in names}

    def setting(self, name: str, fallback: Any) -> Any:
        for value in (self.own(name), self._defaults.get(name)):
            if value is not None:
                return value
        return fallback

    def flag(self, name: str) -> bool:
        value = self.own(name)
        return value is not None and _truth(name, value)

    def whole(self, name: str, fallback: int, low: int, high: int) -> int:
        value = self.own(name)
        if value is None:
            return fallback
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RequestError(f"{name} must be a whole number from {low} to {high}, got {shown(value)}", param=name)
        return value


def read_options(
    body: Any,
    model: ModelDefaults,
    *,
    stop: str | Sequence[str] | None,
    stop_token_ids: Sequence[int] | None,
    chat_mode: bool,
    defaults: Mapping[str, Any] | None = None,
) -> GenerationOptions:
    """Check and merge every setting of a call. Raises RequestError that names the parameter at fault."""
    source = _Body(body, defaults)
    refuse_unsupported(source.among(UNSUPPORTED), source.undeclared, chat_mode=chat_mode)
    _check_metadata(source.own("metadata"))
    wanted = read_response_format(source.own("response_format"))
    logprobs = _logprobs(source, chat_mode)
    echo = not chat_mode and source.flag("echo")
    bias, ignore_eos = _logit_bias(source.own("logit_bias")), source.flag("ignore_eos")
    sampling = SamplingParams(
        max_tokens=_max_tokens(source, model),
        temperature=source.setting("temperature", model.temperature),
        top_p=source.setting("top_p", model.top_p),
        top_k=source.setting("top_k", model.top_k),
        presence_penalty=source.setting("presence_penalty", model.penalty_alpha_presence),
        frequency_penalty=source.setting("frequency_penalty", model.penalty_alpha_frequency),
        penalty_decay=source.setting("penalty_decay", model.penalty_decay),
        global_penalty=_truth("global_penalty", source.setting("global_penalty", model.global_penalty)),
        seed=source.own("seed"),
        stop_token_ids=_token_ids(stop_token_ids),
        ignore_eos=ignore_eos,
        logit_bias=bias,
        logprobs=logprobs,
        prompt_logprobs=echo and logprobs is not None,
    )
    options = GenerationOptions(
        sampling=sampling,
        stops=_stops(stop, source, model, chat_mode),
        n=source.whole("n", 1, 1, MAX_CHOICES),
        echo=echo,
        priority=source.whole("priority", 0, -(2**31), 2**31 - 1),
        include_usage=_include_usage(source.own("stream_options")),
    )
    if wanted is None:
        return options
    # Last, as it takes longest: a call with another fault in it shall not cost that.
    grammar = model.grammar(wanted, _functions(source) if chat_mode else [])
    return replace(options, sampling=replace(sampling, grammar=grammar))


def _functions(source: _Body) -> list[str]:
    """Names of the functions that the model may call in place of its answer, as the host offers them to it."""
    tools, choice, messages = source.own("tools"), source.own("tool_choice"), source.own("messages")
    last = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    if not isinstance(tools, (list, tuple)) or choice == "none" or (isinstance(last, Mapping) and last.get("role") == "tool"):
        return []
    only = choice["function"].get("name") if isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping) else None
    found = [tool["function"].get("name") for tool in tools if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)]
    return [name for name in found if isinstance(name, str) and name and only in (None, name)]


def _max_tokens(source: _Body, model: ModelDefaults) -> int:
    name = "max_tokens" if source.own("max_completion_tokens") is None else "max_completion_tokens"
    return source.whole(name, source.setting("max_tokens", model.max_tokens_per_generation), 1, MAX_TOKENS)


def _logprobs(source: _Body, chat_mode: bool) -> int | None:
    """Alternatives per token: completions say ``logprobs: 2``, chat says ``logprobs: true, top_logprobs: 2``."""
    if not chat_mode:
        value = source.own("logprobs")
        if value is None or value is False:
            return None
        return source.whole("logprobs", 0, 0, MAX_LOGPROBS)
    asked, top = source.flag("logprobs"), source.whole("top_logprobs", 0, 0, MAX_LOGPROBS)
    if top and not asked:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return top if asked else None


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise RequestError("logit_bias must map token ids to numbers", param="logit_bias")
    if len(value) > MAX_BIASES:
        raise RequestError(f"logit_bias may hold at most {MAX_BIASES} token ids, got {len(value)}", param="logit_bias")
    pairs = []
    for token, bias in value.items():
        digits = str(token)
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise RequestError(f"logit_bias holds {digits[:40]!r}, which is not a token id", param="logit_bias")
        number = int(digits)
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
            raise RequestError(f"logit_bias of {number} must be a number from -100 to 100", param="logit_bias")
        pairs.append((number, float(bias)))
    return tuple(pairs)


def _token_ids(value: Iterable[Any] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    ids = list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)) else None
    if ids is None or any(isinstance(each, bool) or not isinstance(each, int) for each in ids[: MAX_STOP_IDS + 1]):
        raise RequestError("stop_token_ids must be a list of token ids", param="stop_token_ids")
    if len(ids) > MAX_STOP_IDS:
        raise RequestError(f"stop_token_ids may hold at most {MAX_STOP_IDS} token ids, got {len(ids)}", param="stop_token_ids")
    return frozenset(ids)


def _stops(stop: Any, source: _Body, model: ModelDefaults, chat_mode: bool) -> tuple[str, ...]:
    """The caller's stops without empties and repeats; in chat the next turn of either side ends the answer too."""
    if stop is not None and not isinstance(stop, (str, list, tuple)):
        raise RequestError(f"stop must be a string or a list of strings, got {shown(stop)}", param="stop")
    given: list[Any] = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    if len(given) > MAX_STOPS:
        raise RequestError(f"stop may hold at most {MAX_STOPS} strings, got {len(given)}", param="stop")
    for item in given:
        if not isinstance(item, str):
            raise RequestError(f"stop must be a string or a list of strings, got {shown(item)}", param="stop")
    if sum(map(len, given)) > MAX_STOP_CHARACTERS:
        raise RequestError(f"stop holds more than {MAX_STOP_CHARACTERS} characters", param="stop")
    if chat_mode:
        user = source.own("user_name") or model.user
        bot = source.own("assistant_name") or model.bot
        given += [f"\n\n{user}{model.interface}", f"\n\n{bot}{model.interface}"]
    return tuple(dict.fromkeys(item for item in given if item))


def _check_metadata(value: Any) -> None:
    """It is not read, and has OpenAI's limit."""
    if value is not None and (not isinstance(value, Mapping) or len(value) > MAX_METADATA):
        raise RequestError(f"metadata must be an object of at most {MAX_METADATA} pairs", param="metadata")


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, got {shown(value)}", param=name)
    return value


def _include_usage(value: Any) -> bool:
    if value is None:
        return False
    if not isinstance(value, Mapping) and not hasattr(value, "include_usage"):
        raise RequestError(f"stream_options must be an object, got {shown(value)}", param="stream_options")
    for name in value if isinstance(value, Mapping) else ():
        if name not in ("include_usage", "include_obfuscation") and value[name] is not None:
            raise RequestError(
                f"unknown parameter stream_options.{name[:80]}", code="unknown_parameter", param=f"stream_options.{name[:80]}"
            )
    asked = value.get("include_usage") if isinstance(value, Mapping) else value.include_usage
    padding = value.get("include_obfuscation") if isinstance(value, Mapping) else getattr(value, "include_obfuscation", None)
    if not says_off(padding, (False,)):
        message = "stream_options.include_obfuscation is not supported by this model"
        raise RequestError(message, code="unsupported_parameter", param="stream_options")
    if asked is not None and not isinstance(asked, bool):
        raise RequestError(f"stream_options.include_usage must be true or false, got {shown(asked)}", param="stream_options")
    return bool(asked)
