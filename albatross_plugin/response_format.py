"""`response_format`: what form the text shall have, read and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from albatross_plugin.errors import RequestError, shown
from albatross_plugin.schema_ends import can_end

# Room for any schema that is meant; what one may cost is bounded where it is tried (schema_trial.py).
MAX_SCHEMA_CHARACTERS = 65_536
# The automaton that checks for a multiple has as many states as the digits of `multipleOf` say; those of one place are put together.
MAX_MULTIPLE = 10_000
# A pattern without ^ may begin anywhere: each character of a text adds as many states as the counts in it say.
MAX_COUNT = 2_000
_COUNT = re.compile(r"\{(?:\d*,)?(\d+)\}")
_KINDS = "text, json_object or json_schema"
_MEMBERS: dict[str, tuple[str, ...]] = {"text": (), "json_object": ("schema",), "json_schema": ("json_schema",)}
_ANY_OBJECT = '{"type":"object"}'


@dataclass(frozen=True)
class ResponseFormat:
    """A JSON text. ``schema``: the JSON schema that it fits, as text. ``lenient``: keywords that are not known bind nothing."""

    schema: str
    lenient: bool = False


def read_response_format(value: Any) -> ResponseFormat | None:
    """The form that a call asks for; None for any text. Raises RequestError that names response_format."""
    value = _plain(value)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _refusal(f"response_format must be an object with the type {_KINDS}")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _MEMBERS:
        raise _refusal(f"response_format.type must be {_KINDS}, got {shown(kind)}")
    _check_members(value, "response_format", {"type", *_MEMBERS[kind]}, f" of the type {kind}")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = value.get("schema")
        return ResponseFormat(_ANY_OBJECT) if schema in (None, {}) else ResponseFormat(_text_of(schema, "response_format.schema"))
    wanted = value.get("json_schema")
    if not isinstance(wanted, Mapping):
        raise _refusal("response_format.json_schema must be an object that holds the schema")
    _check_members(wanted, "response_format.json_schema", {"name", "description", "schema", "strict"})
    return _of_schema(wanted)


def _check_members(value: Mapping[str, Any], where: str, known: Collection[str], kind: str = "") -> None:
    """A member that means nothing here would be a wish that is dropped in silence."""
    for name, content in value.items():
        if content is not None and name not in known:
            raise _refusal(f"{where}{kind} has no member {shown(name)}; it takes {', '.join(sorted(known))}")


def _of_schema(wanted: Mapping[str, Any]) -> ResponseFormat:
    schema, strict = wanted.get("schema"), wanted.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _refusal(f"response_format.json_schema.strict must be true or false, got {shown(strict)}")
    return ResponseFormat(_text_of(schema, "response_format.json_schema.schema"), lenient=strict is False)


def _text_of(schema: Any, where: str) -> str:
    if not isinstance(schema, Mapping):
        raise _refusal(f"{where} must be an object")
    try:
        text = json.dumps(schema, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise _refusal(f"{where} cannot be written as JSON: {str(error)[:100]}") from None
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise _refusal(f"{where} has {len(text)} characters; at most {MAX_SCHEMA_CHARACTERS} are accepted")
    _check_multiples(schema)
    _check_patterns(schema)
    if not can_end(schema):
        raise _refusal(f"{where}: no text fits it, for it would have no end")
    return text


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    todo: list[Any] = [schema]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            yield item
            todo += item.values()
        elif isinstance(item, list):
            todo += item


def _check_multiples(schema: Mapping[str, Any]) -> None:
    common = Fraction(1, 1)
    first = True
    for item in _parts(schema):
        step = item.get("multipleOf")
        if isinstance(step, (int, float)) and not isinstance(step, bool) and step > 0:
            exact = Fraction(repr(step))
            common = exact if first else _least_common_multiple(common, exact)
            first = False
            if _digits(common) > MAX_MULTIPLE:
                raise _refusal(f"response_format: multipleOf {shown(step)} cannot be checked, alone or with the others in the schema")


def _check_patterns(schema: Mapping[str, Any]) -> None:
    for item in _parts(schema):
        names = item.get("patternProperties")
        for pattern in (item.get("pattern"), *(names if isinstance(names, Mapping) else ())):
            if isinstance(pattern, str) and not pattern.startswith("^") and sum(map(_number, _COUNT.findall(pattern))) > MAX_COUNT:
                raise _refusal(f"response_format: pattern {shown(pattern)} counts beyond {MAX_COUNT}; begin it with ^, or use maxLength")


def _number(digits: str) -> int:
    return int(digits[:9])


def _least_common_multiple(one: Fraction, other: Fraction) -> Fraction:
    return Fraction(lcm(one.numerator, other.numerator), gcd(one.denominator, other.denominator))


def _digits(number: Fraction) -> int:
    """A decimal fraction without its point and without zeros at its end: 0.25 is 25, and so is 2500."""
    while number.denominator > 1:
        number *= 10
    digits = number.numerator
    while digits and digits % 10 == 0:
        digits //= 10
    return digits


def _plain(value: Any) -> Any:
    """Hosts with request models of their own hand over objects."""
    dump = getattr(value, "model_dump", None)
    return dump(by_alias=True, exclude_unset=True) if callable(dump) else value


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="response_format")
