"""Grammars of JSON answers: what a text may be that follows the masks, which schemas are refused, and what is shared."""

from __future__ import annotations

import gc
import json
import pickle
import random
import shutil
import sys
import threading
import time
from typing import Any

import jsonschema
import pytest

from albatross_plugin.errors import GenerationError, RequestError
from albatross_plugin.grammar import Grammars, JsonGrammar, json_source, shortened
from albatross_plugin.response_format import MAX_SCHEMA_CHARACTERS, ResponseFormat, read_response_format
from albatross_plugin.schema_trial import WALL_SECONDS, SchemaTrial
from albatross_plugin.serving.chunks import error_chunk
from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

SIZE = 65536
TOKENIZER = WorldTokenizer(find_vocabulary(None))
GRAMMARS = Grammars.of(TOKENIZER.vocabulary, SIZE)
PERSON = {
    "$defs": {"Part": {"type": "object", "properties": {"n": {"type": "string", "title": "N"}}, "required": ["n"]}},
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "description": "who", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "nick": {"anyOf": [{"type": "string", "pattern": "^[a-z]{2,5}$"}, {"type": "null"}], "default": None},
        "kind": {"enum": ["a", "b", 3]},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}, "maxItems": 2},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "kind", "parts", "day"],
    "additionalProperties": False,
}
ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], "additionalProperties": False}
# Each pattern is compared with every other.
SLOW = {"type": "object", "patternProperties": {f"^7_{i}_[a-z]+$": {"type": "integer"} for i in range(600)}}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object"},
    PERSON,
    {"type": "array", "items": {"type": ["number", "boolean", "null"]}, "minItems": 2, "maxItems": 3},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": c}}, "required": ["k"], "additionalProperties": False} for c in "xy"]},
    {"$defs": {"t": {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}}, "$ref": "#/$defs/t"},
]


def wanted(schema: Any, **more: Any) -> ResponseFormat:
    found = read_response_format({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}})
    assert found is not None
    return found


def compiled(schema: Any, functions: list[str] | None = None, **more: Any) -> JsonGrammar:
    form = wanted(schema, **more)
    return GRAMMARS.compile(json_source(form.schema, form.lenient, functions or []))


def allowed(mask: bytes) -> list[int]:
    assert len(mask) == SIZE // 8
    return [8 * i + bit for i, octet in enumerate(mask) if octet for bit in range(8) if octet >> bit & 1]


def wander(grammar: JsonGrammar, source: random.Random, most: int = 400) -> bytes | None:
    """A text of tokens that the masks allow, by chance; None if it did not end. Closing quotes and brackets are favoured."""
    matcher, mask = grammar.start()
    tokens: list[int] = []
    for _ in range(most):
        bits = int.from_bytes(mask, "little")
        assert bits and not bits >> TOKENIZER.token_limit, "ids without bytes are never allowed"
        near = [byte + 1 for byte in b'"}],:' if bits >> (byte + 1) & 1]
        if near and source.random() < 0.7:
            token = source.choice(near)
        else:
            rest = bits >> (start := source.randrange(SIZE))
            token = start + (rest & -rest).bit_length() - 1 if rest else (bits & -bits).bit_length() - 1
        if token == 0:
            break
        matcher.accept(token)
        tokens.append(token)
        if matcher.complete:
            break
        (mask,) = grammar.masks([matcher])
    else:
        return None
    assert not matcher.error
    return TOKENIZER.decode_bytes(tokens)


@pytest.mark.parametrize("schema", SCHEMAS, ids=["any", "person", "array", "choice", "tree"])
def test_every_text_that_the_masks_allow_parses_and_validates(schema: dict[str, Any]) -> None:
    grammar, source = compiled(schema), random.Random(5)
    texts = [text for text in (wander(grammar, source) for _ in range(30)) if text is not None]
    assert len(texts) > 15 and len(set(texts)) > 1
    for text in texts:
        jsonschema.validate(json.loads(text.decode()), schema)


def test_masks_of_many_texts_at_once_are_those_of_one_at_a_time() -> None:
    grammars = [compiled(schema) for schema in SCHEMAS[:2]]
    starts = [b"", b'{"', b'{"name', b"{", b'{"name":"x'] * 3
    pairs = []
    for i, start in enumerate(starts):
        two = [grammars[i % 2].start()[0] for _ in range(2)]
        for matcher in two:
            for token in TOKENIZER.encode(start.decode()):
                matcher.accept(token)
        pairs.append(two)
    single = [grammars[0].masks([one])[0] for one, _ in pairs]
    assert grammars[0].masks([other for _, other in pairs]) == single
    assert len(set(single)) > 4


def test_the_end_is_allowed_where_a_text_is_complete_and_may_go_on() -> None:
    grammar = compiled({"type": "integer", "minimum": 0})
    matcher, mask = grammar.start()
    assert 0 not in allowed(mask)
    matcher.accept(ord("7") + 1)
    assert not matcher.complete and 0 in allowed(grammar.masks([matcher])[0])
    constant, _ = compiled({"const": 7}).start()
    constant.accept(ord("7") + 1)
    assert constant.complete and not constant.error


def test_blanks_between_words_come_to_an_end() -> None:
    matcher, _ = (grammar := compiled({"type": "object"})).start()
    matcher.accept(ord("{") + 1)
    for _ in range(40):
        matcher.accept(ord("\n") + 1)
    assert ord("\n") + 1 not in allowed(grammar.masks([matcher])[0])


def test_a_fault_leaves_no_token_and_does_not_look_like_an_end() -> None:
    grammar = compiled({"type": "object"})
    broken, good = grammar.start()[0], grammar.start()[0]
    broken.accept(ord("x") + 1)
    assert "no way to go on" in broken.error and not broken.complete
    fault = GenerationError(broken.error)
    assert fault.param == json.loads(error_chunk(fault))["error"]["param"] == "response_format"
    assert GenerationError("the step failed").param is None
    first, second = grammar.masks([broken, good])
    assert not any(first) and any(second) and grammar.masks([broken]) == [first]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strnig"}, "strnig"),
        ({"$ref": "#/$defs/nowhere"}, "nowhere"),
        ({"$ref": "https://example.com/schema"}, "example.com"),
        ({"$ref": "#"}, "no text fits it"),
        ({"type": "string", "pattern": "(a"}, "regex"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"const": "\ud800"}, "read"),
        (ENDLESS, "no text fits it"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "no text fits it"),
        ({"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#"}, False]}}, "no text fits it"),
        ({"type": "array", "minItems": 2, "prefixItems": [{}, {"$ref": "#"}]}, "no text fits it"),
        ({"type": "string", "pattern": ".{0,60000}"}, "maxLength"),
        ({"patternProperties": {"a.{3000}b": {}}}, "counts beyond"),
        ({"items": {"type": "string", "pattern": "(.?){1500}a{501}"}}, "counts beyond"),
        ({"type": "integer", "multipleOf": 1000003}, "multipleOf"),
        ({"allOf": [{"type": "integer", "multipleOf": 499}, {"type": "integer", "multipleOf": 197}]}, "multipleOf"),
        ({"type": "object", "properties": {f"p{i}": {} for i in range(4000)}}, "oo many items"),
        ({"items": [{"type": "number", "multipleOf": 0.123456}]}, "multipleOf"),
        ({"enum": ["x" * MAX_SCHEMA_CHARACTERS]}, "characters"),
        ({"a": float("nan")}, "JSON"),
        ([], "object"),
        (None, "object"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_enforced_is_refused_in_words(schema: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as raised:
        compiled(schema)
    assert (raised.value.status, raised.value.param) == (400, "response_format")
    assert len(raised.value.message) < 500 and "\n" not in raised.value.message


def test_schemas_that_are_deep_or_made_to_blow_up_are_answered() -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    with pytest.raises(RequestError, match="recursion"):
        compiled(deep)
    for _ in range(5000):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="recursion"):
        compiled(deep)
    wide = {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(10)]} for i in range(12)]}
    with pytest.raises(RequestError, match="too large"):
        compiled(wide)


@pytest.mark.parametrize(
    "value",
    [5, "json_object", [], {}, {"type": None}, {"type": "xml"}, {"type": ["json_object"]}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": 3},
     {"type": "json_schema", "json_schema": {"name": "x"}}, {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}, {"type": "json_object", "schema": []},
     {"type": "json_object", "schema": {"type": "strnig", "$ref": "#"}}],
)  # fmt: skip
def test_malformed_response_formats_are_refused(value: Any) -> None:
    with pytest.raises(RequestError) as raised:
        read_response_format(value)
    assert raised.value.param == "response_format"


@pytest.mark.parametrize(
    ("value", "name"),
    [({"type": "text", "json_schema": {"schema": {}}}, "json_schema"), ({"type": "json_object", "json_schema": {}}, "json_schema"),
     ({"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}}, "schema"), ({"type": "text", "strict": True}, "strict"),
     ({"type": "json_schema", "json_schema": {"schema": {}, "strick": True}}, "strick")],
)  # fmt: skip
def test_members_that_mean_nothing_are_named(value: Any, name: str) -> None:
    with pytest.raises(RequestError, match=f"no member '{name}'") as raised:
        read_response_format(value)
    assert raised.value.param == "response_format"
    assert read_response_format({"type": "text", name + "x": None}) is None, "null is as if it were not there"


def test_an_object_may_come_with_its_schema() -> None:
    found = read_response_format({"type": "json_object", "schema": ENDLESS | {"required": []}})
    assert found is not None and json.loads(found.schema) == ENDLESS | {"required": []} and not found.lenient
    assert read_response_format({"type": "json_object", "schema": {}}) == read_response_format({"type": "json_object"})


@pytest.mark.parametrize(
    "schema",
    [ENDLESS | {"required": []}, ENDLESS | {"type": ["object", "null"]}, {"properties": ENDLESS["properties"], "required": ["a"]},
     {"$defs": {"t": {"anyOf": [{"type": "null"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/t"}}]}}, "$ref": "#/$defs/t"},
     {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{(i * 7 + 1) % 1009}"} if i else {"type": "null"} for i in range(1009)}, "$ref": "#/$defs/d1"},
     {"$defs": {"a~1/%": {"const": 1}}, "$ref": "#/$defs/a~01~1%25"}, {"$ref": "#elsewhere"}, {"type": "array", "items": False}],
)  # fmt: skip
def test_recursion_with_a_way_out_is_taken(schema: dict[str, Any]) -> None:
    assert wanted(schema)


@pytest.mark.parametrize("pattern", [r"^(\w+\s?){1,500}$", "(.?){500}a{500}"])
def test_patterns_that_count_words_last_for_a_long_text(pattern: str) -> None:
    matcher, _ = (grammar := compiled({"type": "string", "pattern": pattern})).start()
    for token in TOKENIZER.encode('"' + "lazy dog and more " * 100):
        matcher.accept(token)
        grammar.masks([matcher])
        assert not matcher.error


def test_half_a_character_in_the_name_of_a_function_is_blamed_on_tools() -> None:
    with pytest.raises(RequestError) as raised:
        compiled({"type": "integer"}, ["good", "b\ud800d"])
    assert (raised.value.status, raised.value.param) == (400, "tools")


def test_a_schema_that_would_take_minutes_is_given_up_and_the_next_one_is_served(caplog: pytest.LogCaptureFixture) -> None:
    own = Grammars(TOKENIZER.vocabulary, SIZE)
    begin = time.monotonic()
    with pytest.raises(RequestError, match="to compile") as raised:
        own.compile(json_source(json.dumps(SLOW), False, []))
    assert (raised.value.status, raised.value.param) == (400, "response_format")
    assert time.monotonic() - begin < 2 * WALL_SECONDS and "refused" in caplog.text
    own._trial.check(json_source('{"type":"null"}', False, []))
    process = own._trial._process
    assert process is not None and process.poll() is None
    del own, raised
    gc.collect()
    assert process.poll() == 0, "it ends with those who use it"


def test_where_no_process_can_be_started_schemas_are_compiled_without_a_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for attribute, value in (("frozen", True), ("executable", "/nowhere/python"), ("executable", shutil.which("false") or "false")):
        with monkeypatch.context() as patch:
            patch.setattr(sys, attribute, value, raising=False)
            trial = SchemaTrial()
            trial.check("")
            assert trial._process is None
    assert caplog.text.count("without a limit of time") == 2


def test_multiples_that_are_easy_to_check_are_taken() -> None:
    for steps in ((0.01,), (0.5, 0.25, 5), (1000, 100, 10), (9973,), (99.73,), (100000,), (0,)):
        assert wanted({"anyOf": [{"type": "number", "multipleOf": step} for step in steps]})


def test_text_and_null_bind_nothing() -> None:
    assert read_response_format(None) is None and read_response_format({"type": "text"}) is None


def test_without_strictness_what_cannot_be_enforced_is_left_out() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 3}
    assert any(compiled(schema, strict=False).start()[1])
    for strict in (None, True):
        with pytest.raises(RequestError, match="uniqueItems"):
            compiled(schema, strict=strict)


def test_one_compilation_serves_all_who_ask_for_the_same() -> None:
    first = compiled(SCHEMAS[1])
    assert compiled(SCHEMAS[1]) is first and compiled(SCHEMAS[2]) is not first
    assert Grammars.of(TOKENIZER.vocabulary, SIZE) is GRAMMARS
    copies: list[JsonGrammar] = []
    threads = [threading.Thread(target=lambda: copies.append(compiled({"const": "in a crowd"}))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(copies) == 8 and len(set(map(id, copies))) == 1


def test_old_ones_are_dropped() -> None:
    own = Grammars(TOKENIZER.vocabulary, SIZE)
    sources = [json_source(json.dumps({"const": i}), False, []) for i in range(70)]
    made = [own.compile(source) for source in sources]
    assert own.compile(sources[-1]) is made[-1] and own.compile(sources[0]) is not made[0]


def test_a_grammar_can_cross_to_another_process() -> None:
    grammar = compiled(SCHEMAS[0])
    other: JsonGrammar = pickle.loads(pickle.dumps(grammar))
    assert other is grammar, "here, where it is compiled already"
    assert other.start()[1] == grammar.start()[1]


def test_a_vocabulary_that_is_smaller_than_the_model_s_and_the_other_way_round() -> None:
    for size in (256, 1000, 65529, 70001):
        own = Grammars(TOKENIZER.vocabulary, size)
        grammar = own.compile(json_source('{"type":"object"}', False, []))
        matcher, mask = grammar.start()
        assert len(mask) == 4 * -(-size // 32)
        matcher.accept(ord("{") + 1)
        follows = grammar.masks([matcher])[0] + grammar.masks([matcher, grammar.start()[0]])[0]
        bits = int.from_bytes(follows[: len(mask)], "little")
        # A text that is given in full is looked up in the vocabulary.
        assert any(own.compile(json_source('{"const":"hello world"}', False, [])).start()[1])
        assert len(follows) == 2 * len(mask) and bits >> (ord('"') + 1) & 1 and not bits >> min(size, 65530)


def test_functions_may_be_called_in_place_of_an_answer() -> None:
    grammar = compiled({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}, ["get_weather", "f2"])
    for text, fits in (
        ('{"a": 5}', True),
        ('get_weather\n```python\ntool_call("city"="Paris", "days"="3")\n```', True),
        ("f2\n```python\ntool_call()\n```", True),
        ("f3\n```python\ntool_call()\n```", False),
        ('{"b": 5}', False),
    ):
        matcher, _ = grammar.start()
        for token in TOKENIZER.encode(text):
            matcher.accept(token)
        assert (matcher.complete, bool(matcher.error)) == (fits, not fits), text


def test_without_the_package_the_answer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"albatross-plugin\[grammar\]") as raised:
        compiled({"type": "object"})
    assert (raised.value.status, raised.value.param) == (400, "response_format")


def test_a_compilation_that_is_stuck_does_not_hold_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("albatross_plugin.grammar.COMPILE_SECONDS", 0.01)
    own = Grammars(TOKENIZER.vocabulary, SIZE)
    with own._compiling, pytest.raises(RequestError) as raised:
        own.compile(json_source('{"type":"object"}', False, []))
    assert raised.value.status == 503
    monkeypatch.setattr("albatross_plugin.grammar.COMPILE_SECONDS", 60)
    monkeypatch.setattr("albatross_plugin.grammar.MAX_WAITING", 0)
    with pytest.raises(RequestError) as raised:
        own.compile(json_source('{"type":"object"}', False, []))
    assert (raised.value.status, raised.value.headers) == (503, {"Retry-After": "2"})
    monkeypatch.undo()
    known = compiled({"const": "ready"})
    with GRAMMARS._compiling:
        assert compiled({"const": "ready"}) is known, "what is compiled already waits for nobody"


def test_errors_are_one_short_line() -> None:
    assert shortened("a\n  b") == "a b" and len(shortened("x" * 1000)) == 300
