from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from host_stub.text import TextStream

LETTERS = st.text(alphabet="ab\n", max_size=30)


def collect(parts: list[bytes], stops: list[str]) -> tuple[str, bool]:
    stream = TextStream(stops)
    text = "".join(stream.push(part) for part in parts)
    return text + stream.finish(), stream.stopped


@given(LETTERS, st.lists(st.text(alphabet="ab\n", max_size=4), max_size=4), st.integers(1, 5))
def test_tok_5_the_text_ends_where_the_first_stop_was_completed(text: str, stops: list[str], size: int) -> None:
    got, stopped = collect([text[i : i + size].encode() for i in range(0, len(text), size)], stops)
    assert text.startswith(got)
    assert not any(stop and stop in got for stop in stops)
    assert stopped == any(stop and stop in text for stop in stops)
    if not stopped:
        assert got == text


def test_r6_the_earliest_stop_in_the_text_wins() -> None:
    assert collect([b"yabz"], ["b", "a"]) == ("y", True)


def test_tok_1_bytes_become_whole_characters() -> None:
    smile = "😀".encode()
    assert collect([smile[:1], smile[1:2], smile[2:] + b"ok"], []) == ("😀ok", False)
    assert collect([b"a", smile[:3]], []) == ("a", False)
    stream = TextStream()
    assert [stream.push(smile[i : i + 1]) for i in range(4)] == ["", "", "", "😀"]
