"""Every error that a user of the plugin can cause, each on the built-in base that fits it."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping

REQUIREMENT_TEXT = "Albatross backend requires a CUDA-capable GPU and an RWKV-7 .pth model."
INIT_PREFIX = "Albatross engine initialization failed: "

# The desktop client of RWKV-Runner looks for these words in the reason of a failed load, and shows what to do in the user's language.
NO_MEMORY = "not enough memory"
NO_CUDA_BUILD = "not compiled with CUDA"
DAMAGED = "invalid header or archive is corrupted"
NO_DRIVER = "no NVIDIA driver"
NO_CARD_MEMORY = "CUDA out of memory"
NO_NINJA = "Ninja is required to load C++ extensions"
CONVERTED = "re-convert the model"
# What torch, Python and the systems say instead when memory ends.
_MEMORY_ENDED = (
    (re.compile(r"CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDA driver error: out of memory"), NO_CARD_MEMORY),
    (
        re.compile(
            r"^MemoryError\b|std::bad_alloc|DefaultCPUAllocator|[Cc]annot allocate memory"
            r"|[Pp]aging file is too small|os error 1455|WinError 1455"
        ),
        NO_MEMORY,
    ),
)


# A value that is refused may be as large as a body, and nested so deeply that Python cannot write it.
_SHOWN = 60
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _SHOWN

# How the fault of a text begins that its grammar leaves no token.
DEAD_END = "response_format leaves no way to go on"


class RequestError(ValueError):
    """One HTTP request cannot be served; a host recognises it by its ``status`` attribute.

    ``status`` is the HTTP status, ``code`` a stable machine-readable word, ``param`` the name of the
    offending parameter (or None), ``headers`` extra response headers such as ``Retry-After``.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "invalid_request_error",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


def shown(value: object) -> str:
    """A caller's value as an error tells it: short, however long or deep it is."""
    if isinstance(value, int) and value.bit_length() >= 128:
        return "a number of many digits"
    text = _short.repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def printable(text: str) -> str:
    """``text`` as UTF-8 can express it: halves of surrogate pairs, which JSON and the names of files may bring, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


class EngineInitError(RuntimeError):
    """The engine could not be started; the text is the cause behind one fixed prefix."""

    def __init__(self, cause: str) -> None:
        cause = printable(cause)
        super().__init__(cause if cause.startswith(INIT_PREFIX) else INIT_PREFIX + _in_known_words(cause))


def _in_known_words(cause: str) -> str:
    """``cause``, with the words for memory that ended in front of it where it says so in others."""
    if NO_MEMORY not in cause and NO_CARD_MEMORY not in cause:
        for said, words in _MEMORY_ENDED:
            if said.search(cause):
                return f"{words}: {cause}"
    return cause


class EngineInitTimeout(TimeoutError):
    """The workers reported neither success nor failure within the load timeout."""


class CheckpointError(ValueError):
    """The file is not a checkpoint that this engine can serve; the text names the key at fault."""


class DeviceError(ValueError):
    """The requested device, or number of devices, is not there."""


class DeviceLostError(RuntimeError):
    """The device has failed for good: nothing that this process asks of it will work any more."""


class TokenizerError(ValueError):
    """A vocabulary file is missing or cannot be read."""


class UnsupportedError(NotImplementedError):
    """A call of the host's model surface that a batch engine does not offer; routes answer 400."""

    status = 400
    code = "unsupported"
    param: str | None = None
    headers: Mapping[str, str] = {}

    @property
    def message(self) -> str:
        return str(self)


class GenerationError(RuntimeError):
    """A request that was accepted could not be finished.

    ``status`` is what HTTP would call it: 500 for a fault in the step, 503 when the engine went away; ``param`` the parameter at fault.
    """

    def __init__(self, message: str, *, status: int = 500, code: str = "engine_error") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = "response_format" if message.startswith(DEAD_END) else None
