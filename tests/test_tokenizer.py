"""WorldTokenizer against the tokenizer of the rwkv package, and where vocabulary files are found."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import peers
import pytest
from fresh import run_python
from hypothesis import given, settings
from hypothesis import strategies as st

from albatross_plugin.errors import RequestError, TokenizerError
from albatross_plugin.tokenizer import DEFAULT_VOCABULARY, SLICE_CHARACTERS, LongestMatch, WorldTokenizer, find_vocabulary

PIECES = [
    "Hello",
    " world",
    "\n\n",
    "User:",
    "今天",
    "😀",
    "👩‍🚀",
    "녕",
    "\x00",
    "\t",
    " " * 40,
    "=" * 70,
    "é",
    "\u2028",
    "𠀀",
    "1234",
    "()",
    "'\"\\",
]
TEXTS = st.lists(st.one_of(st.text(max_size=6), st.sampled_from(PIECES)), max_size=12).map("".join)


@pytest.fixture(scope="module")
def world() -> WorldTokenizer:
    return WorldTokenizer(find_vocabulary(None))


@pytest.fixture(scope="module")
def python_encoder(world: WorldTokenizer) -> LongestMatch:
    return LongestMatch(world.token_bytes)


@pytest.fixture(scope="module")
def package_encode() -> Callable[[str], list[int]]:
    """The rwkv package's own tokenizer; its module is loaded alone, because the package imports torch."""
    peers.need("rwkv")
    spec = importlib.util.find_spec("rwkv")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    module_spec = importlib.util.spec_from_file_location("rwkv_package_tokenizer", folder / "rwkv_tokenizer.py")
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    tokenizer = module.TRIE_TOKENIZER(str(folder / "rwkv_vocab_v20230424.txt"))
    return lambda text: list(tokenizer.encode(text))


def vocabulary_lines() -> list[str]:
    return [f"{byte + 1} {bytes([byte])!r} 1" for byte in range(256)] + [
        "257 'ab' 2",
        "258 'abcd' 4",
        "259 '今天' 6",
        "300 b'\\xe4\\xbb' 2",
    ]


def write_vocabulary(folder: Path, lines: list[str], name: str = "small.txt") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_known_ids(world: WorldTokenizer) -> None:
    assert world.encode("\n\nUser:") == [261, 24281, 59]
    assert world.encode("😀") == [3319, 153, 129]
    assert world.decode([3319, 153, 129]) == "😀"
    assert world.token_limit == 65530 and world.token_bytes[0] == b"" and world.token_bytes[65529] == b" " * 128


def test_empty_text(world: WorldTokenizer) -> None:
    assert world.encode("") == [] and world.decode([]) == ""


def test_decode_skips_ids_without_bytes(world: WorldTokenizer) -> None:
    assert world.decode([0, 33, 65530, 65535, 33]) == "  "


def test_decode_of_a_partial_character_is_a_replacement_mark(world: WorldTokenizer) -> None:
    assert world.decode([3319]) == "\ufffd"


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_the_python_encoder_gives_the_same_ids(world: WorldTokenizer, python_encoder: LongestMatch, text: str) -> None:
    peers.need("pyrwkv_tokenizer")
    ids = world.encode(text)
    assert python_encoder.encode(text) == ids
    assert world.decode(ids) == text


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_same_ids_as_the_rwkv_package(world: WorldTokenizer, package_encode: Callable[[str], list[int]], text: str) -> None:
    assert world.encode(text) == package_encode(text)


@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.tuples(TEXTS, st.integers(1, 2500)), min_size=1, max_size=4))
def test_slices_give_the_ids_of_one_pass(world: WorldTokenizer, parts: list[tuple[str, int]]) -> None:
    text = "".join(part * count for part, count in parts)
    text = (text * (1 + SLICE_CHARACTERS // max(1, len(text))))[: 4 * SLICE_CHARACTERS]
    assert world.encode(text) == world._encode(text)


@pytest.mark.parametrize("text", [" " * 100_000, "=" * 50_001, "今" * 40_000, "👩‍🚀" * 20_000, "\n" * 33_000 + "x"])
def test_slices_of_repeated_characters(world: WorldTokenizer, text: str) -> None:
    assert world.encode(text) == LongestMatch(world.token_bytes).encode(text)


def test_slices_grow_where_no_cut_is_safe(tmp_path: Path) -> None:
    # A token as long as a slice: no position inside the first slices is out of its reach.
    lines = [*vocabulary_lines()[:256], f"301 '{'a' * SLICE_CHARACTERS * 3}' {SLICE_CHARACTERS * 3}"]
    tokenizer = WorldTokenizer(write_vocabulary(tmp_path, lines))
    assert tokenizer.encode("a" * SLICE_CHARACTERS * 3 + "b") == [301, 99]
    assert tokenizer.encode("a" * (SLICE_CHARACTERS * 3 - 1)) == [98] * (SLICE_CHARACTERS * 3 - 1)


@pytest.mark.parametrize("text", ["\ud83d", "x" * SLICE_CHARACTERS * 2 + "\udc00"])
def test_lone_surrogate_is_refused(world: WorldTokenizer, text: str) -> None:
    with pytest.raises(RequestError, match="surrogate") as caught:
        world.encode(text)
    assert caught.value.status == 400 and caught.value.param == "prompt"


def test_small_vocabulary_with_gaps(tmp_path: Path) -> None:
    tokenizer = WorldTokenizer(write_vocabulary(tmp_path, vocabulary_lines()))
    assert tokenizer.token_limit == 301 and tokenizer.token_bytes[260] == b""
    assert tokenizer.encode("abcdab今天") == [258, 257, 259]
    assert tokenizer.encode("abc") == [257, 100]
    assert tokenizer.decode(tokenizer.encode("仁")) == "仁"


def test_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "crlf.txt"
    path.write_bytes("\r\n".join(vocabulary_lines()).encode())
    assert WorldTokenizer(path).encode("abcd") == [258]


@pytest.mark.parametrize(
    "line",
    [
        "257",
        "x 'ab' 2",
        "257 'ab' 3",
        "257 'ab'",
        "257 'ab 2",
        "257 '' 0",
        "257 12 2",
        "257 ['ab'] 2",
        "-1 'ab' 2",
        "65536 'ab' 2",
        "1_0 'ab' 2",
        "5 'ab' 2",
        "257 'a' 1",
        "257 __import__('os').getcwd() 2",
        "257 " + "(" * 5000 + " 2",
    ],
)
def test_damaged_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    lines = vocabulary_lines()[:256]
    lines.insert(100, line)
    with pytest.raises(TokenizerError, match=r"small\.txt.* (101|102|258)\b"):
        WorldTokenizer(write_vocabulary(tmp_path, lines))


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "binary.txt"
    path.write_bytes(b"1 'a' 1\n\xff\xfe\x00\n")
    with pytest.raises(TokenizerError, match="line 2"):
        WorldTokenizer(path)


def test_vocabulary_must_cover_every_byte(tmp_path: Path) -> None:
    lines = vocabulary_lines()
    with pytest.raises(TokenizerError, match="single byte 65"):
        WorldTokenizer(write_vocabulary(tmp_path, lines[:65] + lines[66:]))
    with pytest.raises(TokenizerError, match="single byte 0"):
        WorldTokenizer(write_vocabulary(tmp_path, []))


def test_a_vocabulary_file_is_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    lines = [*vocabulary_lines(), f"400 open({str(mark)!r},'w').write('ab') 2"]
    with pytest.raises(TokenizerError, match="line 261"):
        WorldTokenizer(write_vocabulary(tmp_path, lines))
    assert not mark.exists()


def test_a_folder_or_a_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        WorldTokenizer(tmp_path)
    huge = tmp_path / "huge.txt"
    with huge.open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    with pytest.raises(TokenizerError, match="no vocabulary file"):
        WorldTokenizer(huge)


def test_tables_are_shared_until_the_file_changes(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path, vocabulary_lines())
    first = WorldTokenizer(path)
    assert WorldTokenizer(path).token_bytes is first.token_bytes
    write_vocabulary(tmp_path, [*vocabulary_lines(), "301 'zz' 2"])
    assert WorldTokenizer(path).encode("zz") == [301]
    assert first.encode("zz") == [123, 123]


# --- where the file is found ----------------------------------------------------------------------------------------


def test_req_124_default_vocabulary_comes_from_a_package() -> None:
    for given_name in (None, "", "  ", DEFAULT_VOCABULARY, DEFAULT_VOCABULARY + ".txt"):
        found = find_vocabulary(given_name)
        assert found.name == "rwkv_vocab_v20230424.txt" and found.parent.name in ("pyrwkv_tokenizer", "rwkv")


def test_a_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_vocabulary(tmp_path, vocabulary_lines())
    assert find_vocabulary(str(path)) == path.resolve()
    monkeypatch.chdir(tmp_path)
    assert find_vocabulary("small.txt") == path.resolve()
    assert find_vocabulary("./small.txt") == path.resolve()


@pytest.mark.parametrize("place", ["rwkv_pip", "backend-python/rwkv_pip", "backend-python/albatross", "."])
def test_req_125_a_name_is_found_in_the_folders_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    path = write_vocabulary(tmp_path / place, vocabulary_lines(), "rwkv_vocab_own.txt")
    monkeypatch.chdir(tmp_path)
    assert find_vocabulary("rwkv_vocab_own") == path.resolve()
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    if not place.startswith("backend"):
        assert find_vocabulary("rwkv_vocab_own") == path.resolve()


def test_a_path_relative_to_the_backend_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backend-python" / "vocabularies").mkdir(parents=True)
    path = write_vocabulary(tmp_path / "backend-python" / "vocabularies", vocabulary_lines())
    monkeypatch.chdir(tmp_path)
    assert find_vocabulary("vocabularies/small.txt") == path.resolve()


@pytest.mark.parametrize("name", ["no_such_vocabulary", "folder/none.txt"])
def test_a_missing_file_is_refused_with_the_places_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TokenizerError, match="was not found; tried .*" + os.path.basename(name)) as caught:
        find_vocabulary(name)
    assert "backend-python" in str(caught.value)


def test_finding_the_default_imports_no_torch() -> None:
    code = (
        "import sys, albatross_plugin.tokenizer as t; t.WorldTokenizer(t.find_vocabulary(None)).encode('Hi');"
        "assert 'torch' not in sys.modules and 'rwkv' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_without_the_rust_package_the_ids_are_the_same(tmp_path: Path, world: WorldTokenizer) -> None:
    code = f"""
import sys
sys.modules["pyrwkv_tokenizer"] = None  # as where there is no wheel: importing it fails
from pathlib import Path
from albatross_plugin.tokenizer import WorldTokenizer
print(WorldTokenizer(Path({str(world.vocabulary)!r})).encode({"".join(PIECES)!r} * 900))
"""
    assert json.loads(run_python(code, tmp_path)) == world.encode("".join(PIECES) * 900)
