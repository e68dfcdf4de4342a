"""What a run against a server gave: its figures as plain values, as text, and a table of several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from albatross_plugin.bench.openai_client import Generation
from albatross_plugin.bench.report import percentile, table

PARTS = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_NAMES = {
    "first_token_s": "first token:",
    "token_gap_s": "between tokens:",
    "event_gap_s": "between events:",
    "latency_s": "whole answer:",
}


def summarize(done: Sequence[Generation], wall: float, *, concurrency: int, max_tokens: int, stream: bool) -> dict[str, Any]:
    """The report of one run of ``wall`` seconds. Failed requests count nowhere but in ``failures`` and ``errors``.

    ``first_token_s``: from the request to the first text; ``token_gap_s``: per request, the time from its first to its last text over
    the tokens after the first; ``event_gap_s``: between any two events with text that follow each other; ``latency_s``: to the end.
    """
    good = [each for each in done if each.ok]
    tokens = sum(each.tokens for each in good)
    report: dict[str, Any] = {
        "requests": len(done),
        "failures": len(done) - len(good),
        "concurrency": concurrency,
        "stream": stream,
        "max_tokens": max_tokens,
        "total_tokens": tokens,
        "tokens_counted_by": "usage" if good and all(each.usage for each in good) else "chunks",
        "wall_s": round(wall, 4),
        "tokens_per_s": round(tokens / wall, 2) if wall > 0 else 0.0,
        "requests_per_s": round(len(good) / wall, 3) if wall > 0 else 0.0,
        "errors": dict(Counter(each.error for each in done if each.error).most_common()),
    }
    if stream:
        report["first_token_s"] = spread(each.first_latency for each in good if each.first_latency is not None)
        report["token_gap_s"] = spread(each.token_gap for each in good if each.token_gap is not None)
        report["event_gap_s"] = spread(gap for each in good for gap in each.event_gaps())
    report["latency_s"] = spread(each.latency for each in good)
    return report


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """Least, percentiles 50, 90 and 99, and most; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return {name: round(percentile(ordered, part), 6) for name, part in PARTS.items()}


def as_text(report: dict[str, Any]) -> str:
    """One run, a line for each figure."""
    lines = [
        f"requests:            {report['requests']} ({report['failures']} failed)",
        f"concurrent requests: {report['concurrency']}",
        f"total tokens:        {report['total_tokens']} (counted by {report['tokens_counted_by']})",
        f"wall time:           {report['wall_s']:.3f} s",
        f"tokens/s:            {report['tokens_per_s']:.1f}",
    ]
    for key, name in _NAMES.items():
        if report.get(key):
            lines.append(f"{name:20} " + ", ".join(f"{part} {1e3 * value:.1f} ms" for part, value in report[key].items()))
    lines += errors_of(report)
    if report.get("profile") is not None:
        lines.append("profile of the server:")
        lines += [f"  {name:20} {value:g}" for name, value in report["profile"].items()]
    return "\n".join(lines)


def errors_of(report: dict[str, Any]) -> list[str]:
    return [f"error ({count}x): {error}" for error, count in report["errors"].items()]


def as_table(reports: Sequence[dict[str, Any]]) -> str:
    """Several runs, a row for each; times in milliseconds."""
    head = ["concurrency", "requests", "failed", "tokens", "wall s", "tokens/s"]
    parts = [(key, part) for key in ("first_token_s", "token_gap_s", "latency_s") for part in ("p50", "p99")]
    shown = [(key, part) for key, part in parts if any(report.get(key) for report in reports)]
    head += [f"{_NAMES[key].rstrip(':')} {part} ms" for key, part in shown]
    rows = []
    for report in reports:
        row = [str(report[key]) for key in ("concurrency", "requests", "failures", "total_tokens")]
        row += [f"{report['wall_s']:.3f}", f"{report['tokens_per_s']:.1f}"]
        row += [f"{1e3 * report[key][part]:.1f}" if report.get(key) else "" for key, part in shown]
        rows.append(row)
    errors = [f"concurrency {report['concurrency']}: {line}" for report in reports for line in errors_of(report)]
    return "\n".join([table(head, rows), *errors])
