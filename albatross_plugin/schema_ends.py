"""Whether any finite value can fit a JSON schema: one that asks for itself inside itself, without a way out, fits none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

_ALWAYS = 0
_SIMPLE = {"string", "number", "integer", "boolean", "null"}


def can_end(schema: Any) -> bool:
    """False if every value that fits would have to be infinite. Takes time in proportion to the schema.

    A least fixed point: a schema can end when all that it asks for can. What is not understood here is taken to end.
    """
    rules = _Rules(schema)
    return rules.holds(rules.of(schema))


class _Rules:
    """Implications ``head <- all of body`` between numbered statements "this schema can end"; number 0 is true."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._numbers: dict[int, int] = {}
        self._count = 1
        self._rules: list[tuple[int, list[int]]] = []
        self._todo: list[tuple[int, Mapping[str, Any]]] = []

    def of(self, schema: Any) -> int:
        if schema is False:
            return self._new()
        if not isinstance(schema, Mapping):
            return _ALWAYS
        if id(schema) not in self._numbers:
            self._numbers[id(schema)] = self._new()
            self._todo.append((self._numbers[id(schema)], schema))
        return self._numbers[id(schema)]

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def holds(self, wanted: int) -> bool:
        while self._todo:
            head, schema = self._todo.pop()
            self._rules.append((head, list(self._needs(schema))))
        missing = [len(set(body)) for _, body in self._rules]
        users: dict[int, list[int]] = defaultdict(list)
        for index, (_, body) in enumerate(self._rules):
            for item in set(body):
                users[item].append(index)
        known: set[int] = set()
        new = [_ALWAYS, *(head for head, body in self._rules if not body)]
        while new:
            item = new.pop()
            if item in known:
                continue
            known.add(item)
            for index in users[item]:
                missing[index] -= 1
                if not missing[index]:
                    new.append(self._rules[index][0])
        return wanted in known

    def _needs(self, schema: Mapping[str, Any]) -> Iterator[int]:
        if "$ref" in schema:
            yield self.of(self._target(schema["$ref"]))
        for item in _list(schema.get("allOf")):
            yield self.of(item)
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list):
                either = self._new()
                self._rules += [(either, [self.of(item)]) for item in schema[name]]
                yield either
        kind = schema.get("type")
        kinds = set(filter(lambda item: isinstance(item, str), kind if isinstance(kind, list) else [kind]))
        if kinds and not kinds & _SIMPLE and "enum" not in schema and "const" not in schema:
            some = self._new()
            if "object" in kinds:
                self._rules.append((some, self._members(schema)))
            if "array" in kinds:
                self._rules.append((some, self._items(schema)))
            if not kinds <= {"object", "array"}:
                self._rules.append((some, []))
            yield some

    def _members(self, schema: Mapping[str, Any]) -> list[int]:
        members = schema.get("properties")
        if not isinstance(members, Mapping):
            return []
        return [self.of(members[name]) for name in _list(schema.get("required")) if isinstance(name, str) and name in members]

    def _items(self, schema: Mapping[str, Any]) -> list[int]:
        least = schema.get("minItems", 0)
        if isinstance(least, bool) or not isinstance(least, (int, float)) or least <= 0:
            return []
        first = _list(schema.get("prefixItems"))
        needs = [self.of(item) for item in first[: int(least)]]
        return needs if least <= len(first) else [*needs, self.of(schema.get("items"))]

    def _target(self, reference: Any) -> Any:
        """What a reference inside this document means; None, which ends, for every other."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        found = self._root
        for part in reference.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, Mapping) and name in found:
                found = found[name]
            else:
                return None
        return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
