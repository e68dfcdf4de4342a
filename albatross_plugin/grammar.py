"""Grammars of JSON answers: schemas compiled by llguidance for one vocabulary, and the matchers that follow a text through them.

llguidance is imported when the first schema is compiled.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from albatross_plugin.engine.grammar import Matcher
from albatross_plugin.engine.request import END_OF_TEXT
from albatross_plugin.errors import DEAD_END, RequestError
from albatross_plugin.schema_trial import SchemaTrial, trial_limits
from albatross_plugin.tokenizer import LongestMatch, WorldTokenizer

NEEDS_PACKAGE = "response_format needs the package llguidance; install it with: pip install 'albatross-plugin[grammar]'"
COMPILE_SECONDS = 10.0
MAX_WAITING = 64
"""Calls that wait for their turn to compile, each in a thread of its host; a further one is told to come again at once."""
_KEPT, _KEPT_CHARACTERS = 64, 524_288
_SHOWN = 300
# In a World vocabulary, the single bytes have the ids from 1 on.
_FIRST_TOKENS = tuple(byte + 1 for byte in b'{["')
_THREADS = 4
# Without a limit, a model that likes blanks may never get to the next word.
_BLANKS = r"[ \t\r\n]{0,40}"


def _refusal(message: str, code: str = "invalid_request_error", status: int = 400) -> RequestError:
    return RequestError(message, status=status, code=code, param="response_format")


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise _refusal(f"{NEEDS_PACKAGE} ({error})", "unsupported_parameter") from None
    return llguidance


class _Vocabulary:
    """The tokens as llguidance asks for them. Ids without bytes are in no text, and token 0 is the end."""

    is_tokenizer_wrapper = True
    eos_token_id = END_OF_TEXT
    bos_token_id = None
    special_token_ids = (END_OF_TEXT,)

    def __init__(self, token_bytes: Sequence[bytes], size: int, encode: Callable[[str], list[int]]) -> None:
        self.tokens = [b"\xff<end>", *token_bytes[1:size], *[b""] * (size - len(token_bytes))]
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class Grammars:
    """The grammars of one vocabulary file, for models with ``size`` rows of logits; those used lately stay compiled.

    From any thread; one grammar is compiled at a time. Objects over the same file and size are one, see ``of``.
    """

    def __init__(self, vocabulary: Path, size: int) -> None:
        self._vocabulary, self._size = vocabulary, size
        self._mask_bytes = 4 * -(-size // 32)
        self._lock, self._compiling = threading.Lock(), threading.Lock()
        self._waiting = 0
        self._trial = SchemaTrial()
        self._compiled: OrderedDict[str, JsonGrammar] = OrderedDict()
        self._tokenizer: Any = None
        self._executor: Any = None

    @staticmethod
    def of(vocabulary: Path, size: int) -> Grammars:
        with _lock:
            found = _known.get((str(vocabulary), size))
            if found is None:
                found = _known[str(vocabulary), size] = Grammars(vocabulary, size)
            return found

    def compile(self, source: str) -> JsonGrammar:
        """The grammar for llguidance's own text of it. Takes up to seconds, without the interpreter's lock for most of them.

        Raises RequestError: 400 with the cause for a grammar that cannot be met or takes too long, 503 when too many others wait or have
        been compiling for too long.
        """
        library = _library()
        found = self._find(source)
        if found is not None:
            return found
        self._wait()
        try:
            # Another thread may have been at the same one.
            return self._find(source) or self._keep(source, JsonGrammar(self, source, *self._compile(library, source)))
        finally:
            self._compiling.release()

    def _wait(self) -> None:
        with self._lock:
            crowded = self._waiting >= MAX_WAITING
            self._waiting += not crowded
        if not crowded:
            crowded = not self._compiling.acquire(timeout=COMPILE_SECONDS)
            with self._lock:
                self._waiting -= 1
        if crowded:
            message, again = "other schemas are being compiled; try again", {"Retry-After": "2"}
            raise RequestError(message, status=503, code="busy", param="response_format", headers=again)

    def _find(self, source: str) -> JsonGrammar | None:
        with self._lock:
            if source in self._compiled:
                self._compiled.move_to_end(source)
            return self._compiled.get(source)

    def _keep(self, source: str, grammar: JsonGrammar) -> JsonGrammar:
        with self._lock:
            self._compiled[source] = grammar
            while len(self._compiled) > _KEPT or sum(map(len, self._compiled)) > _KEPT_CHARACTERS:
                self._compiled.popitem(last=False)
        return grammar

    def _compile(self, library: Any, source: str) -> tuple[Any, bytes]:
        self._trial.check(source)
        if self._tokenizer is None:
            tokenizer = WorldTokenizer(self._vocabulary)
            table = tokenizer.token_bytes
            # llguidance relies on ids that it was told of.
            encode = tokenizer.encode if len(table) <= self._size else LongestMatch(table[: self._size]).encode
            self._tokenizer = library.LLTokenizer(_Vocabulary(table, self._size, encode))
            self._executor = library.LLExecutor(max(1, min(_THREADS, (os.cpu_count() or 1) - 1)))
        matcher = library.LLMatcher(self._tokenizer, source, log_level=0, limits=trial_limits(library))
        mask: bytes = matcher.compute_bitmask()
        probe = matcher
        for token in _FIRST_TOKENS:
            if not matcher.is_error() and mask[token // 8] >> token % 8 & 1:
                # What is too large shows behind the first bracket.
                probe = matcher.deep_copy()
                probe.consume_token(token)
                probe.compute_bitmask()
                break
        if probe.is_error():
            cause = _cause(probe)
            raise _refusal(f"this schema cannot be enforced: {'no text fits it' if cause.startswith('NoExtension') else cause}")
        return matcher, mask[: self._mask_bytes]

    def masks(self, matchers: Sequence[_JsonMatcher]) -> list[bytes]:
        """One after the other, or side by side in threads of llguidance; without the interpreter's lock, which is asked for once."""
        size = self._mask_bytes
        if len(matchers) == 1:
            found = [matchers[0].inner.compute_bitmask()[:size]]
        else:
            block = bytearray(size * len(matchers))
            address = ctypes.addressof((ctypes.c_char * len(block)).from_buffer(block))
            self._executor.unsafe_compute_mask_ptr([(m.inner, i) for i, m in enumerate(matchers)], address, size, len(matchers))
            found = [bytes(block[first : first + size]) for first in range(0, len(block), size)]
        return [bytes(size) if matcher.failed else mask for matcher, mask in zip(matchers, found, strict=True)]

    def __reduce__(self) -> tuple[Any, ...]:
        return Grammars.of, (self._vocabulary, self._size)


_lock = threading.Lock()
_known: weakref.WeakValueDictionary[tuple[str, int], Grammars] = weakref.WeakValueDictionary()


class JsonGrammar:
    """One compiled grammar; made by Grammars. Implements the engine's Grammar."""

    def __init__(self, home: Grammars, source: str, matcher: Any, first: bytes) -> None:
        self.slow = False
        self._home, self._source, self._first = home, source, first
        self._matcher = matcher

    def start(self) -> tuple[Matcher, bytes]:
        # Nobody moves the first one, so it may be copied by several threads at once.
        return _JsonMatcher(self, self._matcher.deep_copy()), self._first

    def masks(self, matchers: Sequence[Any]) -> list[bytes]:
        return self._home.masks(matchers)

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process it is compiled again, once for all requests that come with it.
        return Grammars.compile, (self._home, self._source)


class _JsonMatcher:
    """Implements the engine's Matcher. After a fault llguidance only lets the text end, as if it were complete: here it has failed."""

    def __init__(self, grammar: JsonGrammar, inner: Any) -> None:
        self.grammar, self.inner = grammar, inner

    @property
    def failed(self) -> bool:
        found: bool = self.inner.is_error()
        return found

    @property
    def error(self) -> str:
        return f"{DEAD_END}: {_cause(self.inner)}" if self.failed else ""

    @property
    def complete(self) -> bool:
        return bool(self.inner.is_stopped()) and not self.failed

    def accept(self, token: int) -> None:
        self.inner.consume_token(token)


def json_source(schema: str, lenient: bool, functions: Sequence[str]) -> str:
    """llguidance's text of a grammar: a JSON value that fits ``schema``; with ``functions``, or a call of one of these.

    A call has the form that hosts of RWKV models read. ``lenient``: keywords that are not known bind nothing. Raises RequestError (400).
    """
    options = {
        "whitespace_pattern": _BLANKS,
        "whitespace_flexible": True,
        "item_separator": ",",
        "key_separator": ":",
        "coerce_one_of": lenient,
        "lenient": lenient,
    }
    try:
        source: str = _library().LLMatcher.grammar_from_json_schema(schema, overrides=options)
    except ValueError as error:
        raise _refusal(f"this schema cannot be read: {shortened(str(error))}") from None
    if not functions:
        return source
    for name in functions:
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise RequestError("tools: the name of a function holds half a character", param="tools")
    bound = json.dumps(json.loads(source)["grammars"][0]["json_schema"])
    names = " | ".join(json.dumps(name) for name in functions)
    return _CALL_OR_ANSWER.replace("NAMES", names).replace("SCHEMA", bound)


_CALL_OR_ANSWER = r"""start: call | answer
answer: %json SCHEMA
call: NAME "\n```python\ntool_call(" (argument (", " argument)*)? ")\n```"
argument: "\"" KEY "\"=\"" VALUE "\""
NAME: NAMES
KEY: /[^"`\n]+/
VALUE: /[^"`]*/
"""


def _cause(matcher: Any) -> str:
    text: str = matcher.get_error()
    return shortened(text.replace("<non-verbose/>", "").partition("<backtrace>")[0])


def shortened(text: str) -> str:
    """An error of llguidance in one line that is not too long: some quote the schema."""
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
