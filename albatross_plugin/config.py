"""Settings of the plugin. The only module that reads environment variables, those aside by which compilers are found.

Precedence: a word in the strategy string, then the environment variable, then the default below.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from albatross_plugin.strategy import AlbatrossStrategy

logger = logging.getLogger(__name__)

DECODING_CHUNK = 100


def _setting(default: int | float | str | bool, env: str, about: str, low: float = 0) -> Any:
    """A field that the variable ``env`` can set; numbers below ``low`` are refused. Any, as dataclasses.field is."""
    return field(default=default, metadata={"env": env, "about": about, "low": low})


@dataclass(frozen=True)
class EngineConfig:
    """Everything that shapes an engine. ``environment_table()`` documents the fields that have a variable."""

    workers: int = 1
    batch: int = 32
    device: str = _setting("cuda", "ALBATROSS_DEVICE", "`cuda`, or `cpu` for the torch reference engine.")
    prefill_chunk: int = _setting(
        0,
        "ALBATROSS_PREFILL_CHUNK",
        "Most prompt tokens of one request in a pass; 0 means 100 while other requests are decoding and no limit but the pass's "
        "own when none is.",
    )
    prefill_budget: int = _setting(
        0,
        "ALBATROSS_PREFILL_BUDGET",
        "Most prompt tokens of all requests in one pass; 0 chooses 512 on the CPU; on a GPU 16 a slot, at least 4096 and at most 16384.",
    )
    max_prefill_count: int = _setting(
        0,
        "ALBATROSS_MAX_PREFILL_COUNT",
        "Most requests admitted in one step while others are decoding; 0 means an eighth of the batch, at least 1.",
    )
    min_forward_seq_len: int = _setting(
        10,
        "ALBATROSS_MIN_FORWARD_SEQ_LEN",
        "Prompts with fewer tokens left are fed one token a step beside the decoding rows.",
        1,
    )
    decode_prefill_ratio: int = _setting(
        5,
        "ALBATROSS_DECODE_PREFILL_RATIO",
        "Decode steps between two prefill passes while requests are decoding.",
        1,
    )
    gather_ms: float = _setting(
        -1.0,
        "ALBATROSS_GATHER_MS",
        "How long an idle engine waits for a sibling of the request that woke it, so that a burst shares one pass. "
        "Milliseconds; the whole wait is at most eight times this. -1 chooses 12 on the CPU and 2 on a GPU; 0 turns it off.",
        -1,
    )
    state: str = _setting(
        "auto", "ALBATROSS_STATE", "Type of the recurrent state on a card: `fp16`, `fp32`, or `auto` for the default of this version."
    )
    graphs: bool = _setting(True, "ALBATROSS_GRAPHS", "`0` turns CUDA graphs off: every step is then launched kernel by kernel.")
    kernel_arch: str = _setting(
        "auto",
        "ALBATROSS_KERNEL_ARCH",
        "Architecture of the CUDA kernels, `smNN` or `computeNN`, in place of the card's own, both for prebuilt files and for a build.",
    )
    cache_dir: str = _setting(
        "", "ALBATROSS_CACHE_DIR", "Folder for kernels that were built here; empty chooses `albatross-plugin/kernels` in the user's cache."
    )
    build_timeout: float = _setting(
        600.0, "ALBATROSS_BUILD_TIMEOUT", "Seconds until a build of the kernels, or waiting for another process's build, is given up.", 1
    )
    max_queue: int = _setting(4096, "ALBATROSS_MAX_QUEUE", "Requests that may wait for a slot; beyond it the answer is 429.")
    max_queue_tokens: int = _setting(
        16_777_216, "ALBATROSS_MAX_QUEUE_TOKENS", "Prompt tokens of all requests that wait for a slot; beyond it the answer is 429."
    )
    max_prompt_tokens: int = _setting(1_048_576, "ALBATROSS_MAX_PROMPT_TOKENS", "Longest prompt in tokens; beyond it the answer is 400.", 1)
    load_timeout: float = _setting(
        300.0, "ALBATROSS_LOAD_TIMEOUT", "Seconds until a load that has not ended is given up; building the kernels does not count.", 1
    )
    step_timeout: float = _setting(
        600.0,
        "ALBATROSS_STEP_TIMEOUT",
        "Seconds without the end of a step after which a worker is given up and its requests end with an error; 0 waits for ever.",
    )
    threads: int = _setting(0, "ALBATROSS_THREADS", "Threads of one operator on the CPU; 0 means one fewer than the cores, at least 1.")
    disconnect_check_interval: int = _setting(
        64,
        "ALBATROSS_DISCONNECT_CHECK_INTERVAL",
        "Tokens between two checks whether the client is still there.",
        1,
    )
    tps_log_interval: float = _setting(
        5.0,
        "ALBATROSS_TPS_LOG_INTERVAL",
        "Seconds between two log lines with the decode throughput; 0 turns them off.",
    )
    profile: bool = _setting(False, "ALBATROSS_PROFILE", "`1` turns on the counters of `/albatross/profile`.")

    @classmethod
    def load(cls, strategy: AlbatrossStrategy | None = None, environ: Mapping[str, str] | None = None) -> EngineConfig:
        """Merge strategy over environment over defaults; a bad variable is named in one warning and ignored."""
        environ = os.environ if environ is None else environ
        values: dict[str, object] = {}
        for item in fields(cls):
            name = item.metadata.get("env")
            if name and environ.get(name, "").strip():
                value = _parse(name, environ[name].strip(), item.default, item.metadata["low"])
                if value is not None:
                    values[item.name] = value
        if strategy is not None:
            values.update(workers=strategy.worker_num, batch=strategy.batch_size)
            if strategy.device is not None:
                values["device"] = strategy.device
        return cls(**values)  # type: ignore[arg-type]

    @property
    def admissions_per_step(self) -> int:
        return self.max_prefill_count or max(int(self.batch * 0.125), 1)

    @property
    def pass_budget(self) -> int:
        return self.prefill_budget or (512 if self.device == "cpu" else min(max(4096, 16 * self.batch), 16384))

    @property
    def gather_seconds(self) -> float:
        """On the CPU a step takes tens of milliseconds, and the clients of a burst share its cores with the engine."""
        return (self.gather_ms if self.gather_ms >= 0 else 12 if self.device == "cpu" else 2) / 1000

    def chunk_limit(self, decoding: bool) -> int:
        """Most prompt tokens of one request in a pass. A chunk that was set holds always, so that results depend less on load."""
        return self.prefill_chunk or (DECODING_CHUNK if decoding else self.pass_budget)

    @property
    def cpu_threads(self) -> int:
        return self.threads or max(1, (os.cpu_count() or 1) - 1)


_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
# Settings that know certain words only; other text settings take any.
_WORDS = {
    name: {word: word for word in words}
    for name, words in (("ALBATROSS_DEVICE", ("cpu", "cuda")), ("ALBATROSS_STATE", ("auto", "fp16", "fp32")))
}


def _parse(name: str, text: str, default: Any, low: float) -> int | float | str | bool | None:
    """The value of one variable in the type of its default, or None after one warning."""
    try:
        if isinstance(default, bool):
            return _FLAGS[text.lower()]
        if isinstance(default, str):
            if name in _WORDS:
                return _WORDS[name][text.lower()]
            return text
        number: int | float = type(default)(text)
        # Infinity would overflow in the waits that take these seconds; NaN compares with nothing.
        if low <= number < float("inf"):
            return number
    except (ValueError, KeyError, OverflowError):
        pass
    logger.warning("%s=%r is not usable; using the default %r", name, text, default)
    return None


def environment_table() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) for docs/environment.md."""
    return [(f.metadata["env"], str(f.default), f.metadata["about"]) for f in fields(EngineConfig) if "env" in f.metadata]
