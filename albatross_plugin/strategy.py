"""The strategy string: which words choose this engine, and what the words after them mean."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

STRATEGY_NAMES = ("albatross", "chirrup")


@dataclass(frozen=True)
class AlbatrossStrategy:
    """A parsed strategy string. ``device`` is None when the string does not name one."""

    worker_num: int = 1
    batch_size: int = 32
    device: str | None = None


def is_albatross_strategy(strategy: object) -> bool:
    """Whether the first word, in any case, is one of ours. Blank strings and what is no string are not."""
    words = strategy.split() if isinstance(strategy, str) else []
    return bool(words) and words[0].lower() in STRATEGY_NAMES


def _count(text: str) -> int | None:
    try:
        value = int(text)
    except ValueError:
        return None
    return value if value >= 1 else None


def _device(text: str) -> str | None:
    return text.lower() if text.lower() in ("cpu", "cuda") else None


_KEYS: dict[str, tuple[str, Callable[[str], int | str | None], str]] = {
    **{name: ("worker_num", _count, "a whole number of at least 1") for name in ("workers", "worker", "worker_num")},
    **{name: ("batch_size", _count, "a whole number of at least 1") for name in ("batch", "batch_size")},
    "device": ("device", _device, "cpu or cuda"),
}


def parse_albatross_strategy(strategy: str) -> AlbatrossStrategy:
    """Parse ``albatross key=value ...``. A part that cannot be used keeps its default and is logged once.

    Where a setting is given twice, the later usable part counts and the earlier one is logged.
    """
    used: dict[str, tuple[str, Any]] = {}
    for part in dict.fromkeys(strategy.split()[1:]):
        key, separator, text = part.partition("=")
        known = _KEYS.get(key.lower())
        if not separator or known is None:
            logger.warning("strategy %r: ignored %r; known keys are %s", strategy, part, ", ".join(sorted(_KEYS)))
            continue
        field, parse, expected = known
        value = parse(text)
        if value is None:
            kept = used[field][1] if field in used else getattr(AlbatrossStrategy(), field)
            logger.warning("strategy %r: ignored %r, which is not %s; using %s", strategy, part, expected, kept or "the default")
            continue
        if field in used:
            logger.warning("strategy %r: ignored %r, since %r follows", strategy, used[field][0], part)
        used[field] = part, value
    return AlbatrossStrategy(**{field: value for field, (_, value) in used.items()})
