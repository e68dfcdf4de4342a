"""A call as the model writes it: its name, its arguments, and whether it is whole."""

from __future__ import annotations

import json
import re
from typing import Any

HEAD = re.compile(r"(\w+)\s*```\w*\s*tool_call\(")
BLOCK = re.compile(r"(\w+)\s*```\w*\s*tool_call\((.*?)\)?\s*(?:```|\Z)", re.DOTALL)
ARGUMENT = re.compile(r"""(['"])([^'"\n]+)\1\s*[=:]\s*(?:(['"])(.*?)\3(?=\s*(?:,|\Z))|([^,\s]+))""", re.DOTALL)
# An argument whose value has begun and has no end.
BEGUN = re.compile(r"""(['"])([^'"\n]+)\1\s*[=:]\s*['"]?(.*)\Z""", re.DOTALL)
LAST_MARKS = re.compile(r"""(?<=['"])\s*\)\s*`{0,2}\s*\Z""")
CLOSED = re.compile(r"\)\s*```")


def parse_call(text: str) -> tuple[str, dict[str, str]] | None:
    """Name and arguments of the first call in ``text``."""
    found = BLOCK.search(text)
    if found is None:
        return None
    return found.group(1), {m.group(2): _value(m) for m in ARGUMENT.finditer(found.group(2).strip())}


def _value(argument: re.Match[str]) -> str:
    return argument.group(4) if argument.group(3) else argument.group(5)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def parse_cut_call(text: str) -> tuple[str, str] | None:
    """Name and arguments of a call that breaks off, as JSON that breaks off too: it ends within the last value, or lacks its brace."""
    head = HEAD.search(text)
    if head is None:
        return None
    rest, at = LAST_MARKS.sub("", text[head.end() :]), 0
    whole: dict[str, str] = {}
    # A value is whole once its quote is closed, or once something follows where it has none.
    for argument in ARGUMENT.finditer(rest):
        if not argument.group(3) and (argument.group(5)[0] in "'\"" or argument.end() == len(rest)):
            break
        whole[argument.group(2)], at = _value(argument), argument.end()
    parts = [f"{_json(name)}: {_json(value)}" for name, value in whole.items()]
    begun = BEGUN.search(rest, at)
    if begun is not None:
        parts.append(f"{_json(begun.group(2))}: {_json(begun.group(3))[:-1]}")
    return head.group(1), "{" + ", ".join(parts)


def complete(text: str) -> bool:
    after = text[HEAD.search(text).end() :]  # type: ignore[union-attr]
    return CLOSED.search(after) is not None or "\n\n" in after


def read_call(text: str, ended: str | None) -> tuple[str, str, str] | None:
    """Name, arguments and reason of the end of the call in ``text``. One that the limit cut is none to execute: it must not look whole."""
    if ended == "length" and HEAD.search(text) is not None and not complete(text):
        cut = parse_cut_call(text)
        return None if cut is None else (*cut, "length")
    parsed = parse_call(text)
    return None if parsed is None else (parsed[0], _json(parsed[1]), "tool_calls")
