"""Which strategy strings choose this engine, and what their words mean."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albatross_plugin.strategy import AlbatrossStrategy, is_albatross_strategy, parse_albatross_strategy


def parse(text: str, caplog: pytest.LogCaptureFixture) -> tuple[AlbatrossStrategy, list[str]]:
    """The parsed strategy and the warnings that parsing it logged."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="albatross_plugin.strategy"):
        parsed = parse_albatross_strategy(text)
    return parsed, [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("text", "expected", "ignored"),
    [
        ("albatross", AlbatrossStrategy(1, 32, None), []),
        ("albatross workers=2 batch=64", AlbatrossStrategy(2, 64, None), []),
        ("chirrup batch=4 device=cpu", AlbatrossStrategy(1, 4, "cpu"), []),
        ("ALBATROSS WORKERS=nope batch=-1", AlbatrossStrategy(1, 32, None), ["WORKERS=nope", "batch=-1"]),
    ],
)
def test_req_60_to_64_whole_strings(text: str, expected: AlbatrossStrategy, ignored: list[str], caplog: pytest.LogCaptureFixture) -> None:
    assert is_albatross_strategy(text)
    parsed, warnings = parse(text, caplog)
    assert parsed == expected
    assert [next(part for part in text.split() if repr(part) in line) for line in warnings] == ignored


@pytest.mark.parametrize(
    "text", ["cuda fp16", " ", "", "albatrossx", "x albatross", "albatross=1", "cpu fp32 *10 -> cuda fp16", "alba tross"]
)
def test_req_57_59_other_strategies_are_not_ours(text: str) -> None:
    assert not is_albatross_strategy(text)


@pytest.mark.parametrize("value", [None, 5, b"albatross", ["albatross"]])
def test_what_is_no_string_is_not_ours(value: object) -> None:
    assert not is_albatross_strategy(value)


@pytest.mark.parametrize("text", ["albatross", "chirrup", "Albatross", "CHIRRUP", "  albatross", "\talbatross\n", "albatross\u3000batch=2"])
def test_req_58_59_names_in_any_case(text: str) -> None:
    assert is_albatross_strategy(text)


@pytest.mark.parametrize("key", ["workers", "worker", "worker_num", "Worker_Num"])
def test_req_61_keys_of_the_worker_count(key: str, caplog: pytest.LogCaptureFixture) -> None:
    assert parse(f"albatross {key}=3", caplog) == (AlbatrossStrategy(3, 32, None), [])


@pytest.mark.parametrize("key", ["batch", "batch_size", "BATCH"])
def test_req_62_keys_of_the_batch_size(key: str, caplog: pytest.LogCaptureFixture) -> None:
    assert parse(f"albatross {key}=3", caplog) == (AlbatrossStrategy(1, 3, None), [])


@pytest.mark.parametrize("value", ["nope", "-1", "0", "", "1.5", "1e3", "=2", "9" * 5000, "0x10"])
def test_req_63_a_value_that_is_no_count_keeps_the_default(value: str, caplog: pytest.LogCaptureFixture) -> None:
    parsed, warnings = parse(f"albatross workers={value}", caplog)
    assert parsed == AlbatrossStrategy() and len(warnings) == 1


@pytest.mark.parametrize(("value", "number"), [("01", 1), ("+2", 2), ("２", 2), ("٣", 3), ("100000000000000000000", 10**20)])
def test_req_63_whole_numbers_in_other_spellings(value: str, number: int, caplog: pytest.LogCaptureFixture) -> None:
    assert parse(f"albatross workers={value}", caplog) == (AlbatrossStrategy(number, 32, None), [])


def test_req_64_defaults() -> None:
    assert AlbatrossStrategy() == AlbatrossStrategy(worker_num=1, batch_size=32, device=None)


def test_parts_that_mean_nothing_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    parsed, warnings = parse("albatross turbo turbo speed=9 device=tpu batch=2", caplog)
    assert parsed == AlbatrossStrategy(1, 2, None)
    assert len(warnings) == 3
    assert "'turbo'" in warnings[0] and "batch" in warnings[0]
    assert "'speed=9'" in warnings[1]
    assert "'device=tpu'" in warnings[2] and "cpu or cuda" in warnings[2]


@pytest.mark.parametrize(("text", "device"), [("device=cpu", "cpu"), ("DEVICE=CPU", "cpu"), ("device=cuda", "cuda"), ("batch=2", None)])
def test_device(text: str, device: str | None, caplog: pytest.LogCaptureFixture) -> None:
    parsed, warnings = parse("albatross " + text, caplog)
    assert parsed.device == device and warnings == []


def test_of_a_setting_given_twice_the_later_counts(caplog: pytest.LogCaptureFixture) -> None:
    parsed, warnings = parse("albatross workers=2 worker=3", caplog)
    assert parsed.worker_num == 3
    assert len(warnings) == 1 and "ignored 'workers=2'" in warnings[0]
    parsed, warnings = parse("albatross batch=2 batch=nope", caplog)
    assert parsed.batch_size == 2
    assert len(warnings) == 1 and "'batch=nope'" in warnings[0] and "using 2" in warnings[0]
    parsed, warnings = parse("albatross batch=2 batch=2", caplog)
    assert parsed.batch_size == 2 and warnings == []


KEYS = {
    **dict.fromkeys(("workers", "worker", "worker_num"), "worker_num"),
    **dict.fromkeys(("batch", "batch_size"), "batch_size"),
    "device": "device",
}
COUNTS = st.integers(1, 10**30)


@st.composite
def spelled(draw: st.DrawFn, word: str) -> str:
    """``word`` with each letter in either case."""
    return "".join(letter.upper() if draw(st.booleans()) else letter for letter in word)


@given(data=st.data(), space=st.text(" \t\n\u3000", min_size=1, max_size=3))
def test_req_58_to_62_every_key_and_name_in_any_case(data: st.DataObject, space: str) -> None:
    name = data.draw(st.sampled_from(["albatross", "chirrup"]).flatmap(spelled))
    keys = data.draw(st.lists(st.sampled_from(sorted(KEYS)), unique_by=KEYS.__getitem__))
    parts, wanted = [name], {}
    for key in keys:
        value = data.draw(st.sampled_from(["cpu", "cuda"]) if key == "device" else COUNTS)
        parts.append(f"{data.draw(spelled(key))}={data.draw(spelled(str(value)))}")
        wanted[KEYS[key]] = value
    text = space.join(parts)
    assert is_albatross_strategy(space + text)
    assert parse_albatross_strategy(text) == AlbatrossStrategy(**wanted)


@given(text=st.text(max_size=40))
def test_no_string_makes_the_parser_raise(text: str) -> None:
    parsed = parse_albatross_strategy("albatross " + text)
    assert parsed.worker_num >= 1 and parsed.batch_size >= 1 and parsed.device in (None, "cpu", "cuda")
    assert is_albatross_strategy(text) == (text.split()[:1] != [] and text.split()[0].lower() in ("albatross", "chirrup"))
