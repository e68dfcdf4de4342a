"""Text to token ids and back, over an RWKV World vocabulary file; and where that file is found."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from albatross_plugin.errors import RequestError, TokenizerError

logger = logging.getLogger(__name__)

DEFAULT_VOCABULARY = "rwkv_vocab_v20230424"
SLICE_CHARACTERS = 16384
MAX_TOKEN_ID = 65535
MAX_FILE_BYTES = 64 * 1024 * 1024

_PACKAGES = ("pyrwkv_tokenizer", "rwkv")
_HOST_FOLDERS = ("", "rwkv_pip", "albatross")


def find_vocabulary(tokenizer: str | None) -> Path:
    """The vocabulary file that ``tokenizer`` means: a path, a name, or the default for None and "".

    Looked for in this order: the path itself, the packages pyrwkv_tokenizer and rwkv, the folders of a host that runs in
    the current folder. Raises TokenizerError that names every place tried.
    """
    wanted = (tokenizer or "").strip() or DEFAULT_VOCABULARY
    places = [Path(wanted)]
    with contextlib.suppress(RuntimeError):
        # A name like "~x" of a user who is not there stays as it is, and is not found.
        places = [places[0].expanduser()]
    if places[0].name == wanted:
        # No folder in it, so this may be a name; the suffix of the file is optional then.
        name = wanted if wanted.endswith(".txt") else wanted + ".txt"
        places += [folder / name for folder in _package_folders()]
        places += [base / folder / name for base in _host_bases() for folder in _HOST_FOLDERS]
    else:
        places += [base / places[0] for base in _host_bases()]
    for place in places:
        # A name that no file can have, being too long for instance, is an error of the system's.
        with contextlib.suppress(OSError):
            if place.is_file():
                return place.resolve()
    tried = ", ".join(dict.fromkeys(map(str, places)))
    raise TokenizerError(f"the vocabulary file of the tokenizer {wanted!r} was not found; tried {tried}")


def _package_folders() -> list[Path]:
    """Folders of the packages that ship a vocabulary. They are not imported: rwkv would bring in torch."""
    specs = [importlib.util.find_spec(name) for name in _PACKAGES]
    return [Path(folder) for spec in specs if spec is not None for folder in spec.submodule_search_locations or ()]


def _host_bases() -> list[Path]:
    """A runner starts either in its own root or in its backend-python folder."""
    here = Path.cwd()
    return [here, here / "backend-python", here.parent, here.parent / "backend-python"]


class _Vocabulary(NamedTuple):
    token_bytes: list[bytes]
    longest: int
    encode: Callable[[str], list[int]]


class WorldTokenizer:
    """Greedy longest-match tokenizer. Objects over the same unchanged file share their tables.

    ``token_bytes[id]`` are the bytes of a token, b"" for id 0 (end of text) and for ids the file leaves out;
    ids from ``token_limit`` on do not exist. Raises TokenizerError with the line number for a damaged file.
    """

    def __init__(self, vocabulary: Path) -> None:
        tables = _load(Path(vocabulary))
        self.vocabulary = Path(vocabulary)
        self.token_bytes = tables.token_bytes
        self.token_limit = len(tables.token_bytes)
        self._longest = tables.longest
        self._encode = tables.encode

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``. Raises RequestError (400) for a lone surrogate, which UTF-8 cannot carry.

        The encoder holds the interpreter's lock, so a long text goes through it in slices, between which other threads run.
        """
        try:
            return self._encode(text) if len(text) <= SLICE_CHARACTERS else self._encode_slices(text)
        except UnicodeEncodeError:
            raise RequestError("the prompt holds a lone surrogate, which is not a character", param="prompt") from None

    def _encode_slices(self, text: str) -> list[int]:
        ids: list[int] = []
        start, size = 0, SLICE_CHARACTERS
        while start + size < len(text):
            piece = text[start : start + size]
            found = self._encode(piece)
            keep, rest = self._settled(piece.encode(), found)
            if keep:
                ids += found[:keep]
                start += size - rest
                size = SLICE_CHARACTERS
            else:
                size *= 2
        return ids + self._encode(text[start:])

    def _settled(self, data: bytes, ids: list[int]) -> tuple[int, int]:
        """How many of ``ids`` no following text can change, and how many characters of ``data`` lie behind them.

        A match depends on at most ``longest`` bytes from its start; the cut must also fall between two characters.
        """
        position = len(data)
        for keep in range(len(ids) - 1, 0, -1):
            position -= len(self.token_bytes[ids[keep]])
            if position + self._longest <= len(data) and data[position] & 0xC0 != 0x80:
                return keep, len(data[position:].decode())
        return 0, 0

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ``ids``; ids without bytes add nothing."""
        table, limit = self.token_bytes, self.token_limit
        return b"".join(table[i] for i in ids if 0 <= i < limit)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")


_cache: dict[tuple[str, int, int], _Vocabulary] = {}
_cache_lock = threading.Lock()


def _load(path: Path) -> _Vocabulary:
    """Tables of one file, kept for as long as the file is unchanged."""
    try:
        facts = os.stat(path)
        if stat.S_ISFIFO(facts.st_mode) or stat.S_ISCHR(facts.st_mode):
            # Opening a pipe would wait for a writer; a device may never end.
            raise TokenizerError(f"{path} is no vocabulary file, but a pipe or a device")
        if facts.st_size > MAX_FILE_BYTES:
            raise TokenizerError(f"{path} is no vocabulary file: it has {facts.st_size} bytes, more than {MAX_FILE_BYTES}")
        key = (os.path.realpath(path), facts.st_mtime_ns, facts.st_size)
        with _cache_lock:
            if key not in _cache:
                table = _parse(path)
                _cache[key] = _Vocabulary(table, max(map(len, table)), _encoder(path, table))
            return _cache[key]
    except OSError as error:
        raise TokenizerError(f"the vocabulary file {path} cannot be read: {error.strerror or error}") from error


def _parse(path: Path) -> list[bytes]:
    """Read lines of ``id literal length``, for example ``5 '\\x04' 1``; the literal is str or bytes, the length is in bytes."""
    found: dict[int, bytes] = {}
    seen: set[bytes] = set()
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            token, content = _parse_line(line.decode())
            if token in found or content in seen:
                raise ValueError("it repeats an id or a token of an earlier line")
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise TokenizerError(f"the vocabulary file {path} is damaged in line {number}: {error}") from error
        found[token] = content
        seen.add(content)
    missing = next((byte for byte in range(256) if bytes([byte]) not in seen), None)
    if missing is not None:
        raise TokenizerError(f"the vocabulary file {path} is damaged: it has no token for the single byte {missing}")
    return [found.get(token, b"") for token in range(max(found) + 1)]


def _parse_line(line: str) -> tuple[int, bytes]:
    number, _, rest = line.strip().partition(" ")
    literal, _, length = rest.rpartition(" ")
    token = int(number) if number.isascii() and number.isdigit() else 0
    if not 1 <= token <= MAX_TOKEN_ID:
        raise ValueError(f"the id {number!r} is not between 1 and {MAX_TOKEN_ID}")
    quote, inner = literal[:1], literal[1:-1]
    if len(literal) >= 2 and quote in "'\"" and literal[-1] == quote and quote not in inner and "\\" not in inner:
        # Three of four lines are a plain quoted text, which needs no parser.
        value: object = inner
    else:
        value = ast.literal_eval(literal)
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes) or len(value) != int(length) or not value:
        raise ValueError(f"{literal} is not a token of {length} bytes")
    return token, value


def _encoder(path: Path, table: list[bytes]) -> Callable[[str], list[int]]:
    """The Rust encoder for the standard vocabulary where its package is installed, the Python one otherwise; same ids.

    The Rust reader panics on, or silently skips, lines that other writers of vocabulary files produce, so it gets only its own file.
    """
    try:
        import pyrwkv_tokenizer
    except ImportError as error:
        logger.info("prompts are encoded in Python, since pyrwkv-tokenizer cannot be imported: %s", error)
        return LongestMatch(table).encode
    own = Path(pyrwkv_tokenizer.__file__).parent / f"{DEFAULT_VOCABULARY}.txt"
    if own.is_file() and (own.resolve() == path.resolve() or _parse(own) == table):
        encode: Callable[[str], list[int]] = pyrwkv_tokenizer.WorldTokenizer(str(own)).encode
        return encode
    return LongestMatch(table).encode


class LongestMatch:
    """Greedy longest match in plain Python: for each pair of first bytes, the token lengths that occur, longest first."""

    def __init__(self, token_bytes: list[bytes]) -> None:
        self._ids = {content: token for token, content in enumerate(token_bytes) if content}
        lengths: dict[bytes, set[int]] = {}
        for content in self._ids:
            if len(content) > 1:
                lengths.setdefault(content[:2], set()).add(len(content))
        self._lengths = {pair: sorted(sizes, reverse=True) for pair, sizes in lengths.items()}

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; every single byte must be a token. Raises UnicodeEncodeError for a lone surrogate."""
        data = text.encode()
        ids: list[int] = []
        position, known = 0, self._ids
        while position < len(data):
            for length in self._lengths.get(data[position : position + 2], ()):
                token = known.get(data[position : position + length])
                if token is not None and position + length <= len(data):
                    break
            else:
                length = 1
                token = known[data[position : position + 1]]
            ids.append(token)
            position += length
        return ids
