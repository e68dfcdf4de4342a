"""`response_format`: what form the text shall have, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from albatross_plugin.errors import RequestError

# The time that a schema takes grows with the square of it, for some: some seconds for one of this size.
MAX_SCHEMA_CHARACTERS = 65_536
# The automaton that checks for a multiple has as many states as the digits of `multipleOf` say; those of one place are put together.
MAX_MULTIPLE = 10_000
_KINDS = "text, json_object or json_schema"
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
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat(_ANY_OBJECT)
    if kind != "json_schema":
        raise _refusal(f"response_format.type must be {_KINDS}, got {_shown(kind)}")
    wanted = value.get("json_schema")
    if not isinstance(wanted, Mapping):
        raise _refusal("response_format.json_schema must be an object that holds the schema")
    return _of_schema(wanted)


def _of_schema(wanted: Mapping[str, Any]) -> ResponseFormat:
    schema, strict = wanted.get("schema"), wanted.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _refusal(f"response_format.json_schema.strict must be true or false, got {_shown(strict)}")
    if not isinstance(schema, Mapping):
        raise _refusal("response_format.json_schema.schema must be an object")
    try:
        text = json.dumps(schema, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise _refusal(f"response_format.json_schema.schema cannot be written as JSON: {str(error)[:100]}") from None
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise _refusal(f"response_format.json_schema.schema has {len(text)} characters; at most {MAX_SCHEMA_CHARACTERS} are accepted")
    _check_multiples(schema)
    return ResponseFormat(text, lenient=strict is False)


def _check_multiples(schema: Mapping[str, Any]) -> None:
    common = Fraction(1, 1)
    first = True
    todo: list[Any] = [schema]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            step = item.get("multipleOf")
            if isinstance(step, (int, float)) and not isinstance(step, bool) and step > 0:
                exact = Fraction(repr(step))
                common = exact if first else _least_common_multiple(common, exact)
                first = False
                if _digits(common) > MAX_MULTIPLE:
                    raise _refusal(f"response_format: multipleOf {_shown(step)} cannot be checked, alone or with the others in the schema")
            todo += item.values()
        elif isinstance(item, list):
            todo += item


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


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="response_format")
