"""Detokenizer against a reference that sees the whole text at once."""

from __future__ import annotations

import codecs
import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albatross_plugin.detokenizer import Detokenizer
from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

ASTRONAUT = [3319, 146, 170, 9810, 241, 160, 155, 129]


@pytest.fixture(scope="module")
def world() -> WorldTokenizer:
    return WorldTokenizer(find_vocabulary(None))


def run(token_bytes: Sequence[bytes], ids: Sequence[int], stops: Sequence[str] = ()) -> tuple[list[str], bool]:
    """The pieces that come out, the last one from ``finish``, and whether a stop ended the text."""
    detokenizer = Detokenizer(token_bytes, stops)
    pieces = []
    for token in ids:
        pieces.append(detokenizer.push(token))
        if detokenizer.stopped:
            break
    return [*pieces, detokenizer.finish()], detokenizer.stopped


def reference(token_bytes: Sequence[bytes], ids: Sequence[int], stops: Sequence[str]) -> tuple[str, bool]:
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(token_bytes[i] for i in ids))
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


# --- characters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "text"),
    [([3319, 153, 129, 24136], "😀STOP"), ([241, 161, 175, 184], "\U00020bb7"), (ASTRONAUT, "👩‍🚀"), ([3319, 153, 129] * 3, "😀😀😀")],
)
def test_tok_1_characters_of_several_tokens_come_whole(world: WorldTokenizer, ids: list[int], text: str) -> None:
    pieces, stopped = run(world.token_bytes, ids)
    assert "".join(pieces) == text and "\ufffd" not in text and not stopped


def test_tok_1_known_character(world: WorldTokenizer) -> None:
    pieces, _ = run(world.token_bytes, [3319, 153, 129])
    assert pieces == ["", "", "😀", ""]


def test_tok_1_stop_on_an_emoji(world: WorldTokenizer) -> None:
    pieces, stopped = run(world.token_bytes, [*world.encode("Hi "), 3319, 153, 129, *world.encode("more")], ["😀"])
    assert "".join(pieces) == "Hi " and stopped


def test_an_unfinished_character_is_dropped_at_the_end(world: WorldTokenizer) -> None:
    pieces, _ = run(world.token_bytes, [*world.encode("ok"), 3319])
    assert "".join(pieces) == "ok"


def test_bytes_that_are_no_text_become_one_mark_each(world: WorldTokenizer) -> None:
    pieces, _ = run(world.token_bytes, [3319, *world.encode("x"), 129, *world.encode("y")])
    assert "".join(pieces) == "\ufffdx\ufffdy"


def test_ids_without_bytes_give_nothing(world: WorldTokenizer) -> None:
    assert run(world.token_bytes, [0, 65530, 65535])[0] == ["", "", "", ""]


# --- stops ----------------------------------------------------------------------------------------------------------


def test_tok_3_nothing_of_a_stop_over_several_tokens_comes_out(world: WorldTokenizer) -> None:
    ids = [*world.encode("Hi"), *world.encode("."), 261, 24281, 59, *world.encode("more")]
    pieces, stopped = run(world.token_bytes, ids, ["\n\nUser:"])
    assert [piece for piece in pieces if piece] == ["Hi", "."] and stopped


def test_tok_3_stop_inside_one_token(world: WorldTokenizer) -> None:
    assert world.token_bytes[24136] == b"STOP"
    assert run(world.token_bytes, [24136], ["O"]) == (["ST", ""], True)


def test_tok_3_a_stop_that_does_not_come_is_given_back(world: WorldTokenizer) -> None:
    ids = [*world.encode("Hi"), 261, 24281]
    pieces, stopped = run(world.token_bytes, ids, ["\n\nUser:"])
    assert pieces == ["Hi", "", "", "\n\nUser"] and not stopped
    pieces, _ = run(world.token_bytes, [261, 24281, *world.encode(" x")], ["\n\nUser:"])
    assert pieces == ["", "", "\n\nUser x", ""]


def test_tok_5_empty_stops_are_ignored(world: WorldTokenizer) -> None:
    for stops in ([""], ["", ""], []):
        assert run(world.token_bytes, world.encode("text"), stops) == (["text", ""], False)


def test_tok_5_stops_are_literal(world: WorldTokenizer) -> None:
    for stop in ("(", "[", "\\", ".*", "^", "$"):
        pieces, stopped = run(world.token_bytes, world.encode(f"a+b{stop}c"), ["(", "[", "\\", ".*", "^", "$"])
        assert "".join(pieces) == "a+b" and stopped


@pytest.mark.parametrize("stops", [["b", "a"], ["a", "b"]])
def test_tok_5_the_earliest_match_wins_whatever_the_order(stops: list[str]) -> None:
    assert run([b"yabz"], [0], stops) == (["y", ""], True)


@pytest.mark.parametrize("stops", [["bcd", "cd", "d"], ["d", "cd", "bcd"]])
def test_tok_5_of_those_completing_together_the_longest_wins(stops: list[str]) -> None:
    assert run([b"a", b"b", b"cd"], [0, 1, 2], stops) == (["a", "", "", ""], True)


def test_tok_5_a_match_that_restarts_inside_itself() -> None:
    assert "".join(run([b"a", b"b"], [0, 0, 0, 1, 1], ["aab"])[0]) == "a"
    assert "".join(run([b"a", b"b", b"c"], [0, 1, 0, 1, 0, 2], ["abac"])[0]) == "ab"


def test_nothing_comes_after_a_stop() -> None:
    detokenizer = Detokenizer([b"xSTOPy", b"z"], ["STOP"])
    assert detokenizer.push(0) == "x" and detokenizer.stopped
    assert detokenizer.push(1) == "" and detokenizer.finish() == ""


SYMBOLS = "ab😀é"
TOKEN_TABLES = st.lists(
    st.one_of(st.text(SYMBOLS, min_size=1, max_size=4).map(str.encode), st.binary(min_size=1, max_size=2), st.sampled_from([b"\xf0\x9f", b"\x98\x80", b"\xc3"])),
    min_size=1,
    max_size=8,
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(data=st.data(), table=TOKEN_TABLES, stops=st.lists(st.text(SYMBOLS + "\ufffd", max_size=6), max_size=5))
def test_streamed_text_equals_the_reference(data: st.DataObject, table: list[bytes], stops: list[str]) -> None:
    ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=30))
    pieces, stopped = run(table, ids, stops)
    expected, cut = reference(table, ids, stops)
    text = "".join(pieces)
    assert (text, stopped) == (expected, cut)
    assert not any(stop in text for stop in stops if stop)
    if not stopped:
        # Streamed token by token or decoded from one token that holds all bytes: the same text.
        assert "".join(run([b"".join(table[i] for i in ids)], [0], stops)[0]) == text


@settings(max_examples=300, deadline=None)
@given(data=st.one_of(st.binary(max_size=60), st.text(max_size=20).map(str.encode)), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_any_bytes_however_they_are_split_read_as_one_text(data: bytes, cuts: list[int]) -> None:
    """As decoding all of them at once; only an unfinished character at the end is left out."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    tokens = [data[start:end] for start, end in itertools.pairwise(edges)]
    pieces, _ = run(tokens, range(len(tokens)))
    assert "".join(pieces) == codecs.getincrementaldecoder("utf-8")("replace").decode(data)


@settings(max_examples=100, deadline=None)
@given(table=TOKEN_TABLES, stops=st.lists(st.text(SYMBOLS, min_size=1, max_size=6), max_size=5), data=st.data())
def test_only_possible_starts_of_a_stop_are_held_back(table: list[bytes], stops: list[str], data: st.DataObject) -> None:
    detokenizer = Detokenizer(table, stops)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, sent = "", ""
    for token in data.draw(st.lists(st.integers(0, len(table) - 1), max_size=20)):
        text += decoder.decode(table[token])
        sent += detokenizer.push(token)
        if detokenizer.stopped:
            break
        held = text[len(sent) :]
        assert text.startswith(sent) and (not held or any(stop.startswith(held) for stop in stops))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), table=TOKEN_TABLES, stops=st.lists(st.text(SYMBOLS + "\ufffd", max_size=6), max_size=5))
def test_several_tokens_at_once_give_the_same_text_and_count(data: st.DataObject, table: list[bytes], stops: list[str]) -> None:
    ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=30))
    apart, _ = run(table, ids, stops)
    detokenizer, parts, taken, at = Detokenizer(table, stops), [], 0, 0
    while at < len(ids) and not detokenizer.stopped:
        count = data.draw(st.integers(1, 5))
        text, used = detokenizer.push_all(ids[at : at + count])
        parts.append(text)
        taken += used
        at += count
    assert "".join(parts) + detokenizer.finish() == "".join(apart)
    assert taken == min(len(apart) - 1, len(ids))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), table=TOKEN_TABLES, stops=st.lists(st.text(SYMBOLS + "\ufffd", max_size=6), max_size=5))
def test_no_stop_completes_on_a_token_that_was_called_harmless(data: st.DataObject, table: list[bytes], stops: list[str]) -> None:
    detokenizer = Detokenizer(table, stops)
    waiting: list[int] = []
    for token in data.draw(st.lists(st.integers(0, len(table) - 1), max_size=30)):
        waiting.append(token)
        calm = detokenizer.calm()[token]
        if detokenizer.may_stop(token):
            assert not calm
            detokenizer.push_all(waiting)
            waiting.clear()
            if detokenizer.stopped:
                return
    detokenizer.push_all(waiting)
    assert not detokenizer.stopped


@settings(max_examples=300, deadline=None)
@given(data=st.data(), table=TOKEN_TABLES, stops=st.lists(st.text(SYMBOLS + "\ufffd", max_size=6), max_size=3))
def test_calm_tokens_taken_together_give_the_text_that_they_give_apart(data: st.DataObject, table: list[bytes], stops: list[str]) -> None:
    ids = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=20, max_size=60))
    apart, together = Detokenizer(table, stops), Detokenizer(table, stops)
    together.calm()
    for token in range(len(table)):
        together.may_stop(token)
    count = 0
    text = ""
    for token in ids:
        text += apart.push(token)
        count += 1
        if apart.stopped:
            break
    assert together.push_all(ids) == (text, count)
    assert (together.stopped, together.finish()) == (apart.stopped, apart.finish())


def seconds_per_token(detokenizer: Detokenizer, ids: Sequence[int]) -> float:
    begin = time.process_time()
    for token in ids:
        detokenizer.push(token)
    return (time.process_time() - begin) / len(ids)


def test_tok_5_cost_per_token_does_not_grow_with_the_text(world: WorldTokenizer) -> None:
    stops = ["\n\nUser:", "\n\nAssistant:", "\n\nQuestion:", "\n\nSystem:", "User:", "<|end|>"]
    ids = world.encode("Some words and\n a line. ") * 1000
    detokenizer = Detokenizer(world.token_bytes, stops)
    early = min(seconds_per_token(detokenizer, ids[:2000]) for _ in range(3))
    seconds_per_token(detokenizer, ids * 10)
    late = min(seconds_per_token(detokenizer, ids[:2000]) for _ in range(3))
    # A search of the whole text would be a hundred times slower by now.
    assert late < 5 * early + 20e-6


def test_tok_5_a_hundred_long_stops_are_cheap(world: WorldTokenizer) -> None:
    stops = [f"{'ab' * 5000}{number}" for number in range(100)]
    detokenizer = Detokenizer(world.token_bytes, stops)
    ids = world.encode("plain xyz words without the letters in question, " * 400)
    assert seconds_per_token(detokenizer, ids) < 1e-3
    detokenizer = Detokenizer(world.token_bytes, [stops[7]])
    ids = world.encode("ab" * 5000 + "8" + "ab" * 5000 + "7")
    begin = time.process_time()
    text = "".join([detokenizer.push(token) for token in ids])
    assert detokenizer.stopped and text == "ab" * 5000 + "8"
    assert time.process_time() - begin < 1.0
