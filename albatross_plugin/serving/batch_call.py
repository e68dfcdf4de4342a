"""BatchCall: what one call for a batch asks for, checked"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.errors import RequestError, shown
from albatross_plugin.options import GenerationOptions
from albatross_plugin.parameters import says_off

MAX_ITEMS = 1000
# Each is told to the caller, and writers of JSON know no longer numbers.
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
BATCH_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
# Members that a completion does not have; the rest is read as one.
OWN = ("prompt", "count", "seed", "seeds", "stream", "batch_id")
# What a completion has and a batch has not, where its value asks for something.
REFUSED: Mapping[str, tuple[object, ...]] = {"n": (1,), "echo": (False,), "logprobs": (False,)}

Prompt = str | tuple[int, ...]


@dataclass(frozen=True)
class BatchCall:
    """``prompts[i]`` and ``seeds[i]`` belong to item i. ``options`` are those of all items, but for the seed and, where ``limits`` are
    given, the most tokens. ``alike[i]`` is the first item with the prompt of item i; nothing where that is not known.
    """

    prompts: Sequence[Prompt]
    seeds: Sequence[int]
    options: GenerationOptions
    stream: bool = True
    batch_id: str | None = None
    limits: Sequence[int] | None = None
    alike: Sequence[int] = ()

    def options_of(self, index: int) -> GenerationOptions:
        """The options of one item."""
        sampling = replace(self.options.sampling, seed=self.seeds[index])
        if self.limits is not None:
            sampling = replace(sampling, max_tokens=self.limits[index])
        return replace(self.options, sampling=sampling)


def read_call(model: AlbatrossRWKV, body: Mapping[str, Any], defaults: Mapping[str, Any], resolve: Callable[[str], str]) -> BatchCall:
    """Check a body. ``defaults``: the host's saved settings. Raises RequestError 400 that names the parameter at fault.

    May take seconds where ``response_format`` brings a schema.
    """
    for name, off in REFUSED.items():
        if not says_off(body.get(name), off):
            raise RequestError(f"{name} is not supported in a batch", code="unsupported_parameter", param=name)
    state = body.get("state")
    if state is not None and (not isinstance(state, str) or resolve(state) != model.state_path):
        message = "state cannot be set for one request here; use /update-config"
        raise RequestError(message, code="unsupported_parameter", param="state")
    prompts = _prompts(model, body)
    seeds = _seeds(body, len(prompts))
    stream, batch_id = body.get("stream"), body.get("batch_id")
    if stream is not None and not isinstance(stream, bool):
        raise RequestError(f"stream must be true or false, got {shown(stream)}", param="stream")
    if batch_id is not None and (not isinstance(batch_id, str) or not BATCH_ID.fullmatch(batch_id)):
        raise RequestError("batch_id must be 8 to 64 letters, digits, - and _", param="batch_id")
    rest = {name: value for name, value in body.items() if name not in OWN}
    options = model.options(rest, stop=body.get("stop"), stop_token_ids=body.get("stop_token_ids"), defaults=defaults)
    options.sampling.check_vocabulary(model.vocabulary_size)
    return BatchCall(prompts, seeds, options, stream is not False, batch_id, alike=alike(prompts))


def alike(prompts: Sequence[Prompt]) -> list[int]:
    """For each prompt the place of the first one that is equal. Takes as long as the prompts that are different objects are large."""
    places: dict[Prompt, int] = {}
    known: dict[int, int] = {}
    for index, prompt in enumerate(prompts):
        if id(prompt) not in known:
            known[id(prompt)] = places.setdefault(prompt, index)
    return [known[id(prompt)] for prompt in prompts]


def size(prompt: Any) -> int:
    """About how much there is to check in a prompt, of any form: characters and token ids."""
    if not isinstance(prompt, list):
        return len(prompt) if isinstance(prompt, str) else 0
    return len(prompt) + sum(len(each) for each in prompt[:MAX_ITEMS] if isinstance(each, (str, list)))


def _prompts(model: AlbatrossRWKV, body: Mapping[str, Any]) -> list[Prompt]:
    """One prompt for each item, in the items' order."""
    given, count = body.get("prompt"), body.get("count")
    if count is None:
        count = 1
    if type(count) is not int or not 1 <= count <= MAX_ITEMS:
        raise RequestError(f"count must be a whole number from 1 to {MAX_ITEMS}, got {shown(count)}", param="count")
    single = isinstance(given, str) or (isinstance(given, list) and bool(given) and all(type(each) is int for each in given))
    listed = [given] if single else given
    if not isinstance(listed, list) or not listed:
        raise RequestError("prompt must be a text, a list of token ids, or a list of either", param="prompt")
    if len(listed) * count > MAX_ITEMS:
        raise RequestError(f"a batch holds at most {MAX_ITEMS} items, got {len(listed)} prompts {count} times", param="prompt")
    prompts: list[Prompt] = []
    for number, each in enumerate(listed):
        prompts += [_prompt(model, each, "prompt" if single else f"prompt[{number}]")] * count
    return prompts


def _prompt(model: AlbatrossRWKV, given: Any, name: str) -> Prompt:
    if isinstance(given, str):
        check_text(given, name, "prompt")
        return given
    if isinstance(given, list) and given:
        return tuple(model.check_ids(given))
    raise RequestError(f"{name} must be a text or a list of token ids, got {shown(given)}", param="prompt")


def check_text(text: str, name: str, param: str) -> None:
    """Raises RequestError 400 for a text that UTF-8 cannot express. ``name``: which one it is, of those in ``param``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} holds half of a surrogate pair, which is no text", param=param) from None


def _seeds(body: Mapping[str, Any], count: int) -> list[int]:
    """A seed for each item; a random start where the call gives none, so that what it made can be made again."""
    seed, seeds = body.get("seed"), body.get("seeds")
    if seeds is None:
        if seed is not None and type(seed) is not int:
            raise RequestError(f"seed must be a whole number, got {shown(seed)}", param="seed")
        start = secrets.randbits(32) if seed is None else seed
        return _in_range([start + index for index in range(count)], "seed")
    if seed is not None:
        raise RequestError("give seed or seeds, not both", param="seeds")
    if not isinstance(seeds, list) or any(type(each) is not int for each in seeds):
        raise RequestError("seeds must be a list of whole numbers", param="seeds")
    if len(seeds) != count:
        raise RequestError(f"seeds must hold one number for each of the {count} items, got {len(seeds)}", param="seeds")
    return _in_range(seeds, "seeds")


def _in_range(seeds: list[int], param: str) -> list[int]:
    if min(seeds) < MIN_SEED or max(seeds) > MAX_SEED:
        raise RequestError(f"the seed of each item must be a whole number from {MIN_SEED} to {MAX_SEED}", param=param)
    return seeds
